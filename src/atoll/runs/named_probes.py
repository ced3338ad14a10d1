"""The built-in probes, and the columns of a metric of single clients."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.engine.run_state import State
from atoll.evaluation import gradients, scores
from atoll.evaluation.personal import OwnTests
from atoll.experiment.experiment import Experiment
from atoll.local.models import Model
from atoll.runs import client_probes
from atoll.runs.client_probes import of_clients, of_new_clients, require_states_here, whole_models
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

Probe = Callable[..., Any]
Numbers = dict[str, float | None]


def heterogeneity(population: Population, clustering: Clustering, module: nn.Module, model: Model) -> Numbers:
    """Measure H_device and H_cluster at the server's model."""
    found = gradients.heterogeneity(population, clustering, module, model)
    return {"h_device": found.device, "h_cluster": found.cluster}


def parameter_error(population: Population, models: tuple[Model, ...]) -> float:
    """Return the largest distance between planted parameters and the cluster model matched to them."""
    if population.data.planted is None:
        raise InputError("run.probes = 'parameter_error': the data have no planted parameters")
    return scores.parameter_error(models, population.data.planted)


def cycle_accuracy(cycle_accuracies: Sequence[float]) -> float:
    """Return the mean test accuracy of the server's model after each event of a round (FedCluster's cycles)."""
    return float(np.mean(cycle_accuracies)) if cycle_accuracies else math.nan


def personal_model_accuracy(
    experiment: Experiment, method: Method, state: State, labels: Ids, module: nn.Module
) -> float:
    """Return the mean accuracy of personal models (`bcd`, `ditto`), over clients that have trained."""
    if not method.keeps_model:
        raise InputError("run.probes = 'personal_model_accuracy': clients keep no models; method.name = 'bcd' has them")
    if not experiment.clients.dealt.data.classes:
        raise InputError("run.probes = 'personal_model_accuracy': the data have no classes")
    require_states_here("personal_model_accuracy", experiment)
    tests = OwnTests(experiment.clients.dealt, module, experiment.settings.data.partition == "natural")
    models = whole_models(experiment, state, labels)
    found = np.array([tests.scores(model, [client])[0] for client, model in models])
    known = found[np.isfinite(found)]
    return float(known.mean()) if len(known) else math.nan


PROBES: Mapping[str, Probe] = {
    "heterogeneity": heterogeneity,
    "parameter_error": parameter_error,
    "cycle_accuracy": cycle_accuracy,
    "personal_model_accuracy": personal_model_accuracy,
    "client_loss": client_probes.client_loss,
    "client_perplexity": client_probes.client_perplexity,
    **{n: partial(of_clients, n) for n in ("client_accuracy", "trained_client_accuracy", "client_score")},
    **{
        n: partial(of_new_clients, n)
        for n in ("new_client_accuracy", "trained_new_client_accuracy", "new_client_score")
    },
}


def probe_of(column: str) -> str | None:
    """Return the built-in probe that records a column, if one does."""
    name = "heterogeneity" if column in ("h_device", "h_cluster") else re.sub(r"^(worst|p[19]0)_|_std$", "", column)
    return name if name in PROBES else None


def spread_of(name: str, values: Floats) -> Numbers:
    """Return mean, standard deviation, 10th percentile and minimum over clients; NaN is left out.

    For metrics other than accuracies and scores, which are better when lower: the 90th percentile and the maximum.
    """
    known = values[~np.isnan(values)]
    tail, worst = (10, 0) if name.endswith(("accuracy", "score")) else (90, 100)
    if not len(known):
        return dict.fromkeys((name, f"{name}_std", f"p{tail}_{name}", f"worst_{name}"))
    with np.errstate(invalid="ignore"):  # infinity, which ends the run
        return {
            name: float(known.mean()),
            f"{name}_std": float(known.std()),
            f"p{tail}_{name}": float(np.percentile(known, tail)),
            f"worst_{name}": float(np.percentile(known, worst)),
        }
