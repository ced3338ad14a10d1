"""FL+HC (Briggs et al. 2020) against a loop by hand that merges clusters one by one."""

import numpy as np
import pytest

from atoll import InputError, fedavg, flhc
from atoll.methods.papers.flhc import Metric
from atoll.methods.parts.learned import Linkage
from atoll.support.arrays import Floats
from tests.by_hand import FIRST, POPULATION, agglomerated, groups_of, mean_of, rounds_by_hand, run, starts, trained
from tests.methods.twins import RULE
from tests.tiers import thinned


def distance(metric: Metric, a: Floats, b: Floats) -> float:
    if metric == "cosine":
        return float(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return float(np.linalg.norm(a - b, ord=1 if metric == "manhattan" else 2))


@pytest.mark.parametrize("metric", thinned(["euclidean", "manhattan", "cosine"], 1))
@pytest.mark.parametrize("linkage", thinned(["complete", "average", "single"], 1))
@pytest.mark.parametrize("threshold", [None, 0.2, 1e9])
def test_it_is_the_loop_by_hand(metric: Metric, linkage: Linkage, threshold: float | None) -> None:
    method = flhc(POPULATION, RULE, 9, 3, 2, linkage, metric, threshold, fraction=0.6)
    events, found, w = method.schedule.events, run(method), FIRST
    for event, state in zip(events[:2], found, strict=False):
        w = mean_of({k: trained(event, k, w) for k in event.cohort.tolist()})
        np.testing.assert_allclose(starts(state)[0], w, rtol=0, atol=1e-10)
    assert events[2].cohort.tolist() == list(range(8))
    updates = [trained(events[2], k, w) - w for k in range(8)]
    distances = np.array([[distance(metric, a, b) for b in updates] for a in updates])
    expected = agglomerated(distances, 3, linkage, -1.0 if threshold is None else threshold)
    labels = found[2].labels
    assert labels is not None
    assert groups_of(labels) == expected
    assert len(expected) == (1 if threshold == 1e9 else 3)
    for state, models in zip(found[3:], rounds_by_hand(events[3:], labels, [w] * 3), strict=True):
        own = range(len(expected))
        np.testing.assert_allclose([starts(state)[c] for c in own], [models[c] for c in own], rtol=0, atol=1e-10)


def test_its_warm_up_is_fedavg_to_the_bit() -> None:
    ours = run(flhc(POPULATION, RULE, 6, warmup=5, fraction=0.5, seed=1))
    for one, other in zip(ours[:5], run(fedavg(POPULATION, RULE, 5, 0.5, seed=1)), strict=True):
        assert other.server is not None
        assert all(one.starts[0][name].equal(tensor) for name, tensor in other.server.items())


def test_it_counts_all_clients_once() -> None:
    events = flhc(POPULATION, RULE, 6, warmup=3, fraction=0.5).schedule.events
    assert [event.models_up for event in events] == [4, 4, 4, 8, 4, 4]
    assert [event.models_down for event in events] == [4, 4, 4, 8, 4, 4]
    assert [event.regroups for event in events] == [False, False, False, True, False, False]


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InputError, match=r"method\.warmup = 4: must be less than rounds = 4"):
        flhc(POPULATION, RULE, 4, warmup=4)
    with pytest.raises(
        InputError, match=r"method\.metric = 'cosine': must be 'euclidean' with method.linkage = 'ward'"
    ):
        flhc(POPULATION, RULE, 9, linkage="ward", metric="cosine")
    with pytest.raises(InputError, match=r"method\.clusters = 9: must be at most data\.clients = 8"):
        flhc(POPULATION, RULE, 9, clusters=9)
