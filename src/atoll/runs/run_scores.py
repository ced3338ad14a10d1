"""Scores: the losses and accuracies of every row, measured at the method's models."""

from collections.abc import Callable
from typing import Any

from atoll.aggregation.mean import mean
from atoll.engine.run_state import State
from atoll.evaluation.scores import Score
from atoll.experiment.experiment import Experiment
from atoll.local.batches import perplexity
from atoll.local.models import Model
from atoll.privacy.privacy_plan import finite

Columns = dict[str, Any]
Scorer = Callable[[State], Columns]


def make_scorer(experiment: Experiment) -> tuple[Scorer, int]:
    """Return a function that scores the method's models, and the number of samples of its training loss.

    Where clients' data change, models are scored on those of the last event's round.
    """
    clients = experiment.clients.dealt
    first, samples = _score_phase(experiment)
    scorers = {0: first}

    def score(state: State) -> Columns:
        round_ = experiment.method.schedule.last_round(state.events_done)
        if (phase := clients.phase_of(round_)) not in scorers:
            scorers[phase] = _score_phase(experiment.at(round_))[0]
        return scorers[phase](state)

    return score if clients.later else first, samples


def _score_phase(experiment: Experiment) -> tuple[Scorer, int]:
    if experiment.planned.tests_by_client:
        return _score_clusters(experiment)
    return (_score_server if experiment.method.schedule.has_server else _score_aggregators)(experiment)


def _score_server(experiment: Experiment) -> tuple[Scorer, int]:
    made, causal = experiment.execution.make_evaluator(), _is_causal(experiment)
    return lambda state: _columns(made.score(experiment.method.global_model(state)), causal), made.samples


def _score_aggregators(experiment: Experiment) -> tuple[Scorer, int]:
    """Score the data-weighted mean of the aggregators' models, and each model."""
    evaluator = experiment.execution.make_evaluator()

    def score(state: State) -> Columns:
        model, held = mean_of_aggregators(experiment, state)
        accuracies = {j: evaluator.test(state.starts[j])[1] for j in held}
        columns = _columns(evaluator.score(model), _is_causal(experiment))
        columns["cluster_accuracy"] = [accuracies.get(j) for j in range(len(state.starts))]
        if known := [accuracy for accuracy in accuracies.values() if accuracy is not None]:
            columns |= {"mean_cluster_accuracy": sum(known) / len(known), "worst_cluster_accuracy": min(known)}
        return columns

    return score, evaluator.samples


def mean_of_aggregators(experiment: Experiment, state: State) -> tuple[Model, list[int]]:
    """Return the mean of the aggregators' models weighted by their samples, and the aggregators that have any."""
    samples = experiment.plan.samples_of_clusters(experiment.method.schedule.rounds_done(state.events_done))
    held = [j for j, count in enumerate(samples) if count]
    return mean((float(samples[j]), state.starts[j]) for j in held), held


def _score_clusters(experiment: Experiment) -> tuple[Scorer, int]:
    evaluator, causal = experiment.execution.make_cluster_evaluator(), _is_causal(experiment)

    def score(state: State) -> Columns:
        found = evaluator.score(state.starts, state.labels)
        columns = _columns(found.score, causal)
        if causal:
            columns["cluster_perplexity"] = [
                None if loss is None else finite(float(perplexity(loss))) for loss in found.losses
            ]
        return columns | {
            "ari": found.ari,
            "confusion": found.confusion.tolist(),
            "cluster_clients": found.confusion.sum(axis=0).tolist(),
            "cluster_accuracy": list(found.accuracies),
        }

    return score, evaluator.samples


def _is_causal(experiment: Experiment) -> bool:
    return experiment.clients.dealt.data.loss == "next-token"


def _columns(score: Score, causal: bool) -> Columns:
    """Return the columns of a score; where next tokens are predicted, with the perplexity of the test."""
    own = {"perplexity": float(perplexity(score.test_loss))} if causal else {}
    return {"train_loss": score.train_loss, "test_loss": score.test_loss, "test_accuracy": score.test_accuracy} | own
