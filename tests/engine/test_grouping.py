"""Learned clusters: what a rule that finds them may return, when it is asked, and what it changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Event, Grouping, InputError, Method, RunError, State, fedavg, ifca, least_loss, lose_clients
from atoll.engine.assignment import Assignment, least_or_none
from atoll.engine.cohorts import Executor
from atoll.local.models import Model
from atoll.methods.papers.ifca import all_together
from atoll.runs.checkpoint import load_checkpoint, save_checkpoint
from atoll.runs.fingerprint import Fingerprint
from atoll.support.arrays import Ids
from tests.by_hand import POPULATION, rounds_by_hand, run, starts
from tests.methods.twins import RULE

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2])
MODEL = {"0.weight": torch.full((1, 3), 7.0, dtype=torch.float64)}
LISTED: Any = [MODEL]
MODULE: Any = torch.nn.Linear(3, 1)
ORIGIN = Fingerprint(seed=0, settings="abc", executor="serial")


def test_a_model_without_a_loss_is_nobodys_least() -> None:
    losses = np.array([[np.nan, 2.0, 1.0], [3.0, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    assert least_or_none(losses).tolist() == [2, 0, -1]


def make(regroup: Any, after: int = 1, labels: Ids = LABELS, rounds: int = 4) -> Method:
    plain = all_together(POPULATION, 4, rounds)
    events = tuple(replace(event, regroups=event.index == after) for event in plain.events)
    return Method(replace(plain, events=events), RULE, labels=labels, regroup=regroup)


def test_labels_say_who_trains_where_and_an_empty_cluster_stays() -> None:
    method = make(None, after=-1)
    states, first = run(method), starts(run(method)[0])[3]
    models = [first] * 4
    for state, each in zip(states, rounds_by_hand(method.schedule.events, LABELS, models), strict=True):
        np.testing.assert_allclose(starts(state), each, rtol=0, atol=1e-10)
        assert np.array_equal(starts(state)[3], first)


def test_clusters_found_anew_go_on_from_their_models() -> None:
    other = np.array([3, 0, 0, 1, 1, 2, 2, -1])
    states = run(make(lambda event, state: Grouping(other, {3: MODEL})))
    assert np.array_equal(states[1].labels, other)  # type: ignore[arg-type]
    assert states[1].starts[3] is MODEL
    assert states[1].published[3] is MODEL
    assert not np.array_equal(starts(states[2])[3], starts(states[1])[3])


def test_a_client_in_no_cluster_does_not_train() -> None:
    alone = run(make(None, -1, np.array([0, -1, -1, -1, -1, -1, -1, -1])))[-1]
    nobody = run(make(None, -1, np.full(8, -1)))[-1]
    assert not np.array_equal(starts(alone)[0], starts(nobody)[0])
    assert np.array_equal(starts(alone)[1], starts(nobody)[0])


def test_one_cluster_is_allowed() -> None:
    state = run(make(lambda event, state: np.zeros(8, int)))[-1]
    assert state.labels is not None
    assert not state.labels.any()


def test_nothing_trains_together_across_an_event_that_regroups() -> None:
    plain = all_together(POPULATION, 2, 4)
    events = tuple(replace(event, starts=(), regroups=event.index == 1) for event in plain.events)
    schedule = replace(plain, events=events)
    assert [event.index for event in schedule.ready(0)] == [0, 1]
    assert [event.index for event in schedule.ready(2)] == [2, 3]


def misplaced(event: Event, state: State) -> Any:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("regroup", "told"),
    [
        (lambda event, state: np.zeros(5, int), r"event 1: Method\.regroup gave int64 of shape \[5\]: .* 8 clients"),
        (lambda event, state: np.zeros((8, 1), int), r"event 1: .* of shape \[8, 1\]: must be whole numbers"),
        (lambda event, state: np.zeros(8), r"event 1: .* gave float64 of shape \[8\]: must be whole numbers"),
        (lambda event, state: None, r"event 1: .* gave object of shape \[\]"),
        (lambda event, state: np.full(8, 4), r"event 1: .* labels from 4 to 4: must be from 0 to 3.* has 4 clusters"),
        (lambda event, state: np.full(8, -2), r"event 1: .* labels from -2 to -2"),
        (lambda event, state: Grouping(LABELS, {4: MODEL}), r"event 1: .* gave a model to cluster 4, .* are 0 to 3"),
        (lambda event, state: Grouping(LABELS, {0: {}}), r"event 1: .* gave cluster 0 a model with other names"),
        (lambda event, state: Grouping(LABELS, LISTED), r"event 1: .* must give models as a dict, with a dict of"),
        (lambda event, state: Grouping(LABELS, {0: MODULE}), r"event 1: .* must give models as a dict"),
        (lambda event, state: [[0], [1, 2]], r"event 1: Method\.regroup failed \(ValueError: setting an array"),
        (misplaced, r"event 1: Method\.regroup failed \(ValueError: no idea, test_grouping.py line"),
        (None, r"event 1: regroups, but the method has no Method\.regroup"),
    ],
)
def test_what_does_not_fit_is_told(regroup: Callable[[Event, State], Any], told: str) -> None:
    with pytest.raises(RunError, match=told):
        run(make(regroup))


def unknown(event: Event, starts: Sequence[Model], executor: Executor) -> Ids:
    raise KeyError("nowhere")


@pytest.mark.parametrize(
    ("assign", "told"),
    [
        (lambda event, starts, executor: np.full(8, 4), r"must return clusters from 0 to 3, -1 or -2, not from 4 to 4"),
        (lambda event, starts, executor: np.full(8, -3), r"must return clusters from 0 to 3, -1 or -2, not from -3 to"),
        (lambda event, starts, executor: np.zeros(8), r"must return whole numbers \[8\], not an array of float64"),
        (unknown, r"event 0: finding clients' clusters failed \(KeyError: 'nowhere', test_grouping.py line"),
    ],
)
def test_what_finds_clients_clusters_may_return_no_others(assign: Assignment, told: str) -> None:
    with pytest.raises(RunError, match=told):
        run(Method(all_together(POPULATION, 4, 2), RULE, assign=assign))


def test_a_method_must_be_able_to_learn() -> None:
    method = make(None)
    with pytest.raises(InputError, match=r"Method\.regroup: needs Method\.labels"):
        replace(method, labels=None, regroup=misplaced)
    with pytest.raises(InputError, match=r"Method\.labels: cannot be used with Method\.assign"):
        replace(method, assign=least_loss)
    with pytest.raises(InputError, match=r"Method\.labels: gave labels from 0 to 9: must be from 0 to 3"):
        replace(method, labels=np.arange(10))


@pytest.mark.parametrize("labels", [None, LABELS])
def test_labels_are_in_checkpoints(tmp_path: Path, labels: Ids | None) -> None:
    state = State(3, None, (MODEL,), (MODEL,), labels=labels)
    save_checkpoint(tmp_path, state, ORIGIN)
    loaded = load_checkpoint(tmp_path, state, ORIGIN)
    assert loaded is not None
    found = loaded[0].labels
    assert found is None if labels is None else found is not None and np.array_equal(found, labels)


def test_who_is_absent_was_sent_as_many_models_as_anybody() -> None:
    everywhere = np.zeros((len(POPULATION), 1), bool)
    for method, each in ((make(None, -1), 4), (ifca(POPULATION, RULE, 2, 3, fraction=1.0), 3), (some(), 1)):
        lost = lose_clients(method.schedule, 0, slots=everywhere)
        assert [event.models_down for event in lost.events] == [0] * len(lost)
        assert method.schedule.events[0].models_down == each * len(POPULATION)


def some() -> Method:
    return fedavg(POPULATION, RULE, 2, 1.0)
