"""Probes: numbers that are measured of a run's models besides the scores, as columns of ``metrics.jsonl``.

A probe is one function. Its parameters say what it needs, by the names in `Probes.offered`; it returns a number, which
is a column under the function's name, or a dict of numbers by column. NaN stands for no value. An array in the place of
a number has one number a client, and gives the columns of `spread_of`. Those in `PROBES` have names; a user's own is
named in the experiment file as ``probes = ["module:function"]``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.engine.engine import Method, State, init
from atoll.evaluation import gradients, scores
from atoll.evaluation.personal import OwnTests
from atoll.evaluation.scores import Evaluator
from atoll.experiment.experiment import Experiment
from atoll.local.batches import Batches, measure_models
from atoll.local.models import Model
from atoll.runs import client_probes
from atoll.runs.client_probes import require_states_here, whole_models
from atoll.runs.columns import SPENT, is_built_in
from atoll.settings.choices import method_needs
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import REQUIRED, asks_for, parameters_of
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.process import one_thread
from atoll.support.wording import unknown

Probe = Callable[..., Any]
Numbers = dict[str, float | None]


def heterogeneity(population: Population, clustering: Clustering, module: nn.Module, model: Model) -> Numbers:
    """Measure H_device and H_cluster at the server's model."""
    found = gradients.heterogeneity(population, clustering, module, model)
    return {"h_device": found.device, "h_cluster": found.cluster}


def parameter_error(population: Population, models: tuple[Model, ...]) -> float:
    """Return the largest distance between planted parameters and the model of the cluster that is matched to them."""
    if population.data.planted is None:
        raise InputError("run.probes = 'parameter_error': no parameters are planted in the data")
    return scores.parameter_error(models, population.data.planted)


def cycle_accuracy(cycle_accuracies: Sequence[float]) -> float:
    """Return the mean test accuracy of the server's model over a round's events: FedCluster's cycles."""
    return float(np.mean(cycle_accuracies)) if cycle_accuracies else math.nan


def personal_model_accuracy(
    experiment: Experiment, method: Method, state: State, labels: Ids, module: nn.Module
) -> float:
    """Return the mean accuracy of the models that clients keep (`bcd`, `ditto`), of clients that have trained."""
    if not method.keeps_model:
        raise InputError("run.probes = 'personal_model_accuracy': clients keep no models; method.name = 'bcd' has them")
    if not experiment.clients.dealt.data.classes:
        raise InputError("run.probes = 'personal_model_accuracy': the data have no classes")
    require_states_here("personal_model_accuracy", experiment)
    tests = OwnTests(experiment.clients.dealt, module, experiment.settings.data.partition == "natural")
    models = whole_models(experiment, state, labels)
    found = np.array([tests.accuracies(model, [client])[0] for client, model in models])
    known = found[np.isfinite(found)]
    return float(known.mean()) if len(known) else math.nan


PROBES: Mapping[str, Probe] = {
    "heterogeneity": heterogeneity,
    "parameter_error": parameter_error,
    "cycle_accuracy": cycle_accuracy,
    "personal_model_accuracy": personal_model_accuracy,
    "client_accuracy": client_probes.client_accuracy,
    "trained_client_accuracy": client_probes.trained_client_accuracy,
    "new_client_accuracy": client_probes.new_client_accuracy,
    "trained_new_client_accuracy": client_probes.trained_new_client_accuracy,
}


class Probes:
    """The probes of one run."""

    def __init__(self, experiment: Experiment) -> None:
        """Find the functions that the settings name.

        Raises:
            InputError: a name that comes twice, or of no function, or a function that asks for what is not offered.
        """
        self.experiment = experiment
        named = experiment.settings.run.probes
        if twice := [name for i, name in enumerate(named) if name in named[:i]]:
            raise InputError(f"run.probes: names {twice[0]!r} twice")
        self.functions = {name: resolve("run.probes", name, PROBES) for name in named}
        if experiment.settings.run.heterogeneity:
            self.functions.setdefault("heterogeneity", heterogeneity)
        if _has_planted(experiment):
            self.functions.setdefault("parameter_error", parameter_error)
        for name, function in self.functions.items():
            self._require_offered(name, function)
        self.watches = any(asks_for(function, "cycle_accuracies") for function in self.functions.values())
        self.by_client: dict[str, Floats] = {}  # what was measured last of single clients, by column, [clients]
        self._watched: tuple[int, list[float]] = (-1, [])  # a round, and the accuracies after its events so far

    def watch(self, state: State, round_: int) -> None:
        """Note the test accuracy of the server's model after an event that has no row of its own."""
        self._watched = round_, self._accuracies(state, round_)

    def measure(self, state: State) -> Numbers:
        """Return all probes' columns at a state.

        Raises:
            InputError: one fails, returns no number, or a column that there is already.
        """
        columns: Numbers = {}
        self.by_client = {}
        for name, function in self.functions.items():
            found = self._measure(name, function, state)
            taken = {*columns, *((SPENT,) if self.experiment.planned.private is not None else ())}
            if clash := [key for key in found if key in taken or (is_built_in(key) and name not in PROBES)]:
                raise InputError(
                    f"run.probes = {name!r}: there is a column {clash[0]!r} already; give the function, or its number, "
                    "another name"
                )
            columns |= found
        return columns

    def rehearse(self) -> Numbers:
        """Measure the initial models if the settings name probes, so that a bad one is met before training.

        Raises:
            InputError: as for `measure`.
        """
        if not self.experiment.settings.run.probes:
            return {}
        return self.measure(init(self.experiment.method, *self.experiment.training.initial_models()))

    def offered(self, state: State) -> dict[str, Callable[[], Any]]:
        """Return what makes each object that a probe may ask for; `docs/extending.md` says what they are."""
        experiment = self.experiment
        return {
            "experiment": lambda: experiment,
            "population": lambda: experiment.population,
            "test_clients": lambda: experiment.clients.test,
            "clustering": lambda: self._clustering(state),
            "method": lambda: experiment.method,
            "evaluator": lambda: self.evaluator,
            "module": lambda: self._copy() if experiment.method.stays else self.module,
            "state": lambda: state,
            "round": lambda: experiment.method.schedule.rounds_done(state.events_done),
            "model": lambda: state.server,
            "models": lambda: state.starts,
            "cycle_accuracies": lambda: self._accuracies(state, self._round_of(state)),
            "labels": lambda: self._labels(state),
        }

    @cached_property
    def evaluator(self) -> Evaluator:
        """What scores a model on all clients' data and the test set."""
        return self.experiment.execution.make_evaluator()

    @cached_property
    def module(self) -> nn.Module:
        """A module that models can be loaded into, on the device."""
        return self._copy()

    def _copy(self) -> nn.Module:
        return self.experiment.initial.copy()

    def _round_of(self, state: State) -> int:
        """Return the round of the last event; -1 before the first."""
        done = state.events_done
        return self.experiment.method.schedule.events[done - 1].round if done else -1

    def _accuracies(self, state: State, round_: int) -> list[float]:
        """Return the accuracies after a round's events so far, with that of this state, which is after the last."""
        before = self._watched[1] if self._watched[0] == round_ else []
        accuracy = None if state.server is None or round_ < 0 else self.evaluator.test(state.server)[1]
        return before if accuracy is None else [*before, accuracy]

    def _clustering(self, state: State) -> Clustering:
        """Return the clustering in force, which changes where clients move."""
        if not method_needs(self.experiment.settings, "phases"):
            return self.experiment.clustering
        done = self.experiment.method.schedule.rounds_done(state.events_done)
        return [phase for phase in self.experiment.plan.phases if phase.round <= done][-1].clustering

    def _labels(self, state: State) -> Ids:
        """Return each client's cluster: the clustering's, the learned one (-1: none yet), or that of the least loss."""
        if state.labels is not None:
            return state.labels
        if not self.experiment.method.finds_clusters:
            return self._clustering(state).labels
        population = self.experiment.population
        rows = [population.samples(client) for client in range(len(population))]
        losses = measure_models(self.module, Batches(population.data, self.module), state.starts, rows).losses
        return np.asarray(losses.argmin(axis=1))

    def _measure(self, name: str, function: Probe, state: State) -> Numbers:
        offered = self.offered(state)
        with one_thread():
            given = {key: make() for key, make in offered.items() if asks_for(function, key)}
            made = call("run.probes", function, given)
        found = made if isinstance(made, Mapping) else {name.rpartition(":")[2].rpartition(".")[2]: made}
        if not found or not all(isinstance(key, str) and key.isidentifier() for key in found):
            raise InputError(
                f"run.probes = {name!r}: must return a number, or a dict of numbers under names such as "
                f"'worst_accuracy'; it returned {made!r:.100}"
            )
        columns: Numbers = {}
        for key, value in found.items():
            if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
                self.by_client[key] = value
                columns |= spread_of(key, value)
            else:
                columns[key] = _read_number(name, made, value)
        return columns

    def _require_offered(self, name: str, function: Probe) -> None:
        """Refuse a function that asks for what is not there in this run, or never."""
        settings = self.experiment.settings
        told = f"run.probes = {name!r}" if name in settings.run.probes else f"run.{name} = true"
        try:
            needed = [key for key, each in parameters_of(function).items() if each.default is REQUIRED]
        except ValueError:  # `call` refuses it, and says so
            return
        offered = self.offered(State(0, None, (), ()))
        if missing := [key for key in needed if key not in offered]:
            raise InputError(f"{told}: its parameter {missing[0]!r} is {unknown(missing[0], offered)}")
        if not {"model", "cycle_accuracies"}.isdisjoint(needed) and not self.experiment.method.schedule.has_server:
            raise InputError(
                f"{told}: is measured at the server's model, and method.name = {settings.method.name!r} has none"
            )
        anew = settings.fleet.recluster_every if settings.run.executor == "fleet" else None
        if anew is not None and (changing := {"clustering", "labels"}.intersection(needed)):
            raise InputError(
                f"{told}: asks for {min(changing)!r}, and fleet.recluster_every = {anew} changes it on the way; unset "
                "one of them"
            )


def check_probes(experiment: Experiment) -> Numbers:
    """Return what a user's own probes measure of the initial models.

    Raises:
        InputError: what is wrong with one of them.
    """
    return Probes(experiment).rehearse()


def spread_of(name: str, values: Floats) -> Numbers:
    """Return the mean, deviation, tenth percentile and least of what was measured of clients; NaN is left out.

    Of what is no accuracy, and so better the less it is, they are the ninetieth and the greatest.

    >>> spread_of("own_accuracy", np.array([0.0, 1.0]))["worst_own_accuracy"]
    0.0
    """
    known = values[np.isfinite(values)]
    tail, worst = (10, 0) if name.endswith("accuracy") else (90, 100)
    if not len(known):
        return dict.fromkeys((name, f"{name}_std", f"p{tail}_{name}", f"worst_{name}"))
    return {
        name: float(known.mean()),
        f"{name}_std": float(known.std()),
        f"p{tail}_{name}": float(np.percentile(known, tail)),
        f"worst_{name}": float(np.percentile(known, worst)),
    }


def _read_number(name: str, made: Any, value: Any) -> float | None:
    """Return a number of any kind as Python's, NaN as None."""
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(
            f"run.probes = {name!r}: must return a number, or a dict of numbers by name; it returned {made!r:.100}"
        )
    return None if math.isnan(number) else number


def _has_planted(experiment: Experiment) -> bool:
    """Return whether clusters' models are to be compared with planted parameters: as many at least, of their size."""
    planted = experiment.population.data.planted
    if planted is None:
        return False
    method = experiment.method
    if method.schedule.has_server or (not method.finds_clusters and method_needs(experiment.settings, "phases")):
        return False
    parameters = sum(tensor.numel() for tensor in experiment.module.state_dict().values())
    return len(planted) <= method.schedule.clusters and planted.shape[1] == parameters
