"""FedGroup (Duan et al. 2021) against a loop by hand that tries all groupings."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from atoll import fedgroup
from atoll.methods.papers.fedgroup import Grouper
from atoll.support.arrays import Floats
from tests.by_hand import FIRST, POPULATION, best_means, groups_of, rounds_by_hand, run, starts, trained
from tests.methods.twins import RULE


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize(("clusters", "pretrained", "fraction"), [(2, 2, 0.4), (2, 4, 1.0), (3, 2, 0.3)])
def test_it_is_the_loop_by_hand(clusters: int, pretrained: int, fraction: float) -> None:
    method = fedgroup(POPULATION, RULE, 7, clusters, pretrained, fraction, seed=2)
    events, found = method.schedule.events, run(method)
    founders = events[0].cohort.tolist()
    assert len(founders) == min(8, clusters * pretrained)
    first = {k: trained(events[0], k, FIRST) - FIRST for k in founders}
    stacked = np.stack([first[k] for k in founders])
    values, vectors = np.linalg.eigh(stacked.T @ stacked)
    leading = vectors[:, np.argsort(values)[::-1][:clusters]].T
    embedded = np.array([[cosine(first[k], v) for v in leading] for k in founders])
    labels = found[0].labels
    assert labels is not None
    assert groups_of(labels[founders]) == best_means(embedded, clusters)
    assert (np.delete(labels, founders) == -1).all()
    known, joined = labels.copy(), set(founders)
    means = [np.mean([first[k] for k in founders if labels[k] == g], axis=0) for g in range(clusters)]
    models = [FIRST + mean for mean in means]
    np.testing.assert_allclose(starts(found[0]), models, rtol=0, atol=1e-10)
    for event, state in zip(events[1:], found[1:], strict=True):
        if event.regroups:
            assert joined.isdisjoint(event.cohort)
            for k in event.cohort.tolist():
                own = trained(event, k, FIRST) - FIRST
                known[k] = np.argmax([cosine(own, mean) for mean in means])
                joined.add(k)
        else:
            (models,) = rounds_by_hand((event,), known, models)
        assert state.labels is not None
        assert np.array_equal(state.labels, known)
        np.testing.assert_allclose(starts(state), models, rtol=0, atol=1e-10)


def test_newcomers_are_known_before_training() -> None:
    events = fedgroup(POPULATION, RULE, 9, 2, 1, 0.4, seed=2).schedule.events
    assert any(event.regroups for event in events[1:])
    seen = set[int]()
    for event in events:
        assert event.models_up == event.models_down == len(event.cohort)
        assert event.regroups == (not seen.issuperset(event.cohort))
        seen |= set(event.cohort.tolist())


def test_a_newcomer_joins_the_group_whose_direction_is_nearest_whatever_its_length() -> None:
    updates = {0: [1.0, 0.0, 0.0], 1: [0.0, 0.0, 5.0], 2: [0.9, 0.2, 0.3]}
    clients = {client: {"w": torch.tensor(each)} for client, each in updates.items()}
    state: Any = SimpleNamespace(labels=np.array([0, 1, -1]), clients=clients, starts=[{}, {}])
    event: Any = SimpleNamespace(index=1, cohort=np.array([2]))
    assert Grouper(2, np.array([0, 1]), 0)(event, state).labels.tolist() == [0, 1, 0]
