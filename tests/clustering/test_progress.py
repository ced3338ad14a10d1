"""Clustering by the predicted time to a target: the prediction against loops, and what the search never does worse."""

from dataclasses import replace

import numpy as np
import pytest

from atoll.clustering.clustering import Clustering
from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.feduc import feduc
from atoll.clustering.feduc.greedy import feduc_labels
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.clustering.feduc.progress import MIXING, feduc_for_progress, progress_of
from atoll.network.completion import event_seconds
from atoll.network.topology import is_cut
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from tests.clustering.test_feasible import small_problem

patterns = pytest.mark.parametrize("pattern", PATTERNS)


def problem_of(seed: int, pattern: Pattern, clients: int = 12) -> Problem:
    problem = small_problem(seed, pattern, clients, 2.0)
    return replace(problem, limits=np.full(problem.network.aggregators, np.inf))


def by_loops(problem: Problem, labels: Ids) -> tuple[float, float]:
    """Return E and V as the module says them, client by client."""
    network, sizes, h = problem.network, problem.sizes, problem.deviations
    clusters = sorted(set(labels[labels >= 0].tolist()))
    events = event_seconds(network, labels, problem.pattern, problem.intra_rounds)
    held = {j: sum(sizes[i] for i in range(len(labels)) if labels[i] == j) for j in clusters}
    whole = sum(held.values())
    mean = {j: sum(sizes[i] * h[i] for i in range(len(labels)) if labels[i] == j) / held[j] for j in clusters}
    if problem.pattern.endswith("syn"):
        seconds = max(events[j] for j in clusters)
    else:
        seconds = 1 / sum(held[j] / whole / events[j] for j in clusters)
    met = 0.0
    if problem.pattern == "cenasy":
        weights = {j: held[j] / events[j] for j in clusters}
        met = float(((sum(weights[j] * mean[j] for j in clusters) / sum(weights.values())) ** 2).sum())
    elif problem.pattern != "censyn":
        for j in clusters:
            near = [k for k in clusters if k == j or k in network.neighbours[j]]
            mixed = sum(held[k] * mean[k] for k in near) / sum(held[k] for k in near)
            met += held[j] / whole * float((mixed**2).sum())
    alone = sum(sizes[i] * float((h[i] ** 2).sum()) for i in range(len(sizes))) / sizes.sum()
    return float(seconds), met / alone


@patterns
@pytest.mark.parametrize("seed", range(3))
def test_the_prediction_against_loops(pattern: Pattern, seed: int) -> None:
    problem = problem_of(seed, pattern)
    labels = np.random.default_rng(seed).integers(0, problem.network.aggregators, 12)
    found, (seconds, unlike) = progress_of(problem, labels), by_loops(problem, labels)
    assert found.seconds == pytest.approx(seconds)
    assert found.unlike == pytest.approx(unlike, abs=1e-15)
    assert found.log_seconds(2.0) == pytest.approx(np.log(seconds) + 2 * unlike)
    assert evaluate(problem, labels).event_seconds.max() >= seconds * (1 - 1e-12)


@patterns
@pytest.mark.parametrize("seed", range(2))
def test_the_search_is_never_worse_than_where_it_starts(pattern: Pattern, seed: int) -> None:
    problem = problem_of(seed, pattern)
    labels = feduc_for_progress(problem)

    def predicted(labels: Ids) -> float:
        return progress_of(problem, labels).log_seconds(MIXING)

    for start in (feduc_labels(problem), problem.network.upload_seconds.argmin(axis=1)):
        if not pattern.startswith("dec") or not is_cut(problem.network.neighbours, np.unique(start).tolist()):
            assert predicted(labels) <= predicted(start) * (1 + 1e-12) + 1e-12
    for client in range(12):  # no single move is better
        for aggregator in range(problem.network.aggregators):
            moved = labels.copy()
            moved[client] = aggregator
            if pattern.startswith("cen"):
                assert predicted(moved) >= predicted(labels) - 1e-8 * abs(predicted(labels))


def test_mixing_says_how_much_unlike_data_count() -> None:
    problem = problem_of(5, "decsyn")
    quick, mixed = (progress_of(problem, feduc_for_progress(problem, mixing)) for mixing in (0.0, 1000.0))
    assert quick.seconds <= mixed.seconds
    assert mixed.unlike <= quick.unlike


def test_it_goes_by_name_and_refuses_what_does_not_go_with_it() -> None:
    problem = problem_of(0, "cenasy")
    made = feduc(problem, objective="progress")
    assert isinstance(made, Clustering)
    assert made.labels.tolist() == feduc_for_progress(problem).tolist()
    with pytest.raises(InputError, match=r"clustering\.opening = 'first': cannot be used with clustering\.objective"):
        feduc(problem, objective="progress", opening="first")


@patterns
def test_events_of_no_time_are_refused(pattern: Pattern) -> None:
    problem = problem_of(0, pattern)
    seconds = {name: value for name, value in vars(problem.network).items() if "seconds" in name and value is not None}
    zero = {name: np.zeros_like(value) for name, value in seconds.items()}
    with pytest.raises(InputError, match=r"^network: an event of aggregator \d.* takes 0 seconds"):
        feduc(replace(problem, network=replace(problem.network, **zero)), objective="progress")


def test_labels_of_another_length_are_refused() -> None:
    problem = problem_of(0, "censyn")
    with pytest.raises(InputError, match="labels"):
        progress_of(problem, np.zeros(problem.network.clients - 1, np.int64))
