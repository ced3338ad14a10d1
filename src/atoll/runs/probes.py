"""Probes: what is measured of a run's models, as columns of ``metrics.jsonl``."""

from collections.abc import Callable
from typing import Any

from atoll.aggregation.mean import mean
from atoll.engine.engine import State
from atoll.evaluation.scores import Score, heterogeneity, parameter_error
from atoll.experiment.experiment import Experiment
from atoll.support.errors import InputError

Columns = dict[str, Any]
Probe = Callable[[State], Columns]


def make_probe(experiment: Experiment) -> tuple[Probe, int]:
    """Return the probe that fits the method, and how many samples its training loss is measured on.

    Raises:
        InputError: `run.heterogeneity` for a method without a server's model.
    """
    if experiment.method.schedule.has_server:
        return _probe_server(experiment)
    if experiment.settings.run.heterogeneity:
        raise InputError(
            f"run.heterogeneity = true: is measured at the server's model, and method.name = "
            f"{experiment.settings.method.name!r} has none"
        )
    if not experiment.method.finds_clusters and experiment.needs("phases"):
        return _probe_aggregators(experiment)
    return _probe_clusters(experiment)


def _probe_server(experiment: Experiment) -> tuple[Probe, int]:
    evaluator = experiment.make_evaluator()

    def probe(state: State) -> Columns:
        model = experiment.method.global_model(state)
        columns = _columns(evaluator.score(model))
        if experiment.settings.run.heterogeneity:
            found = heterogeneity(experiment.population, experiment.clustering, evaluator.module, model)
            columns |= {"h_device": found.device, "h_cluster": found.cluster}
        return columns

    return probe, evaluator.samples


def _probe_aggregators(experiment: Experiment) -> tuple[Probe, int]:
    """Measure the data-weighted mean of the aggregators' models, and each of these."""
    evaluator = experiment.make_evaluator()

    def probe(state: State) -> Columns:
        samples = experiment.samples_of_clusters(experiment.method.schedule.rounds_done(state.events_done))
        held = {j: float(count) for j, count in enumerate(samples) if count}
        model = mean((count, state.starts[j]) for j, count in held.items())
        accuracies = {j: evaluator.test(state.starts[j])[1] for j in held}
        columns = _columns(evaluator.score(model))
        columns["cluster_accuracy"] = [accuracies.get(j) for j in range(len(samples))]
        if known := [accuracy for accuracy in accuracies.values() if accuracy is not None]:
            columns |= {"mean_cluster_accuracy": sum(known) / len(known), "worst_cluster_accuracy": min(known)}
        return columns

    return probe, evaluator.samples


def _probe_clusters(experiment: Experiment) -> tuple[Probe, int]:
    evaluator = experiment.make_cluster_evaluator()
    planted = experiment.population.data.planted
    parameters = sum(tensor.numel() for tensor in experiment.module.state_dict().values())
    if planted is not None and (len(planted) > experiment.method.schedule.clusters or planted.shape[1] != parameters):
        planted = None  # the models are too few, or of another kind

    def probe(state: State) -> Columns:
        found = evaluator.score(state.starts)
        columns = _columns(found.score) | {
            "ari": found.ari,
            "confusion": found.confusion.tolist(),
            "cluster_clients": found.confusion.sum(axis=0).tolist(),
            "cluster_accuracy": list(found.accuracies),
        }
        if planted is not None:
            columns["parameter_error"] = parameter_error(state.starts, planted)
        return columns

    return probe, evaluator.samples


def _columns(score: Score) -> Columns:
    return {"train_loss": score.train_loss, "test_loss": score.test_loss, "test_accuracy": score.test_accuracy}
