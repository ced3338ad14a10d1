"""CFL (Sattler et al. 2020) against a loop by hand that tries all bipartitions, and its limits."""

from itertools import product

import numpy as np
import pytest
import torch

from atoll import State, cfl, fedavg, make_event
from atoll.methods.papers.cfl import Splitting, bipartition
from atoll.support.arrays import Floats, Ids
from tests.by_hand import FIRST, POPULATION, mean_of, run, starts, trained
from tests.methods.running import SEED
from tests.methods.twins import RULE
from tests.tiers import thinned


def across(units: Floats, second: Ids) -> float:
    """Return the largest similarity of a client of one part and one of the other."""
    return float((units[second == 1] @ units[second == 0].T).max())


def best_split(updates: Floats) -> tuple[Ids, float]:
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    tries = [np.array((0, *rest)) for rest in product((0, 1), repeat=len(updates) - 1) if any(rest)]
    best = min(tries, key=lambda second: across(units, second))
    return best, across(units, best)


@pytest.mark.parametrize("seed", range(20))
def test_no_bipartition_is_better(seed: int) -> None:
    updates = np.random.default_rng(seed).normal(size=(7, 4))
    second, similarity = bipartition(updates)
    best, least = best_split(updates)
    assert np.array_equal(second, best == 1)
    assert similarity == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize(("clusters", "gamma"), thinned([(2, 0.0), (4, 0.0), (4, 0.3)], 1))
def test_it_is_the_loop_by_hand(clusters: int, gamma: float) -> None:
    eps1, eps2 = 0.35, 0.5
    method = cfl(POPULATION, RULE, 12, clusters, eps1, eps2, gamma)
    labels, models = np.zeros(len(POPULATION), np.int64), [FIRST] * clusters
    found = run(method)
    for event, state in zip(method.schedule.events, found, strict=True):
        local = {k: trained(event, k, models[labels[k]]) for k in range(len(labels))}
        updates = {k: w - models[labels[k]] for k, w in local.items()}
        for c in np.unique(labels):
            own = np.flatnonzero(labels == c)
            mean = mean_of({k: updates[k] for k in own.tolist()})
            models[c] = models[c] + mean
            longest = max(np.linalg.norm(updates[k]) for k in own.tolist())
            if np.linalg.norm(mean) < eps1 and longest > eps2 and labels.max() + 1 < clusters:
                second, similarity = best_split(np.stack([updates[k] for k in own.tolist()]))
                if gamma < np.sqrt((1 - similarity) / 2):
                    models[labels.max() + 1] = models[c]
                    labels[own[second == 1]] = labels.max() + 1
        assert state.labels is not None
        assert np.array_equal(state.labels, labels)
        np.testing.assert_allclose(starts(state), models, rtol=0, atol=1e-10)
    assert labels.max() + 1 == clusters, "there were splits to compare"


def test_what_never_splits_is_fedavg_to_the_bit() -> None:
    for ours, theirs in zip(
        run(cfl(POPULATION, RULE, 5, eps1=0.0)), run(fedavg(POPULATION, RULE, 5, 1.0, seed=SEED)), strict=True
    ):
        assert theirs.server is not None
        assert all(ours.starts[0][name].equal(tensor) for name, tensor in theirs.server.items())


def test_a_limit_of_one_cluster_is_fedavg_too() -> None:
    state = run(cfl(POPULATION, RULE, 5, clusters=1, eps1=9.0, eps2=0.0))[-1]
    assert state.labels is not None
    assert not state.labels.any()


def test_everybody_alone_is_the_end_of_it() -> None:
    state = run(cfl(POPULATION, RULE, 9, clusters=8, eps1=9.0, eps2=0.0))[-1]
    assert state.labels is not None
    assert sorted(state.labels) == list(range(8))


@pytest.mark.parametrize(
    ("sizes", "weights", "splits"), [([1, 3], None, True), ([3, 1], None, False), ([1, 3], [1, 1], False)]
)
def test_a_cluster_is_stationary_by_the_mean_over_samples(
    sizes: list[int], weights: list[int] | None, splits: bool
) -> None:
    """Or, with `method.weights = "equal"`, by that over clients."""
    event = make_event(0, np.arange(2), np.array(weights or sizes, float), 0.0, 1.0)
    model = {"w": torch.zeros(1)}
    kept = {client: {"w": torch.tensor([update])} for client, update in enumerate((3.0, -1.0))}
    state = State(1, None, (model, model), (model, model), clients=kept, labels=np.zeros(2, np.int64))
    found = Splitting(eps1=0.5, eps2=0.5, gamma=0.0)(event, state)
    assert found.labels.tolist() == ([0, 1] if splits else [0, 0])
