"""LCFed (Zhang et al. 2025) against a loop by hand in NumPy, and its limit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from atoll import InputError, LocalRule, Method, Serial, State, Trainer, fedavg, lcfed, make_event, read_model
from atoll.local.task import ClientTask
from atoll.methods.papers.lcfed import LowRank
from atoll.support.arrays import Floats
from tests.by_hand import best_means, groups_of
from tests.methods.running import SEED, states_of, trainer_of
from tests.methods.test_moon import LR, POPULATION, RULE, gradient
from tests.problems import network
from tests.tiers import thinned

Weights = dict[str, Any]
EMBEDDING = ("0.weight", "0.bias")


def serial(method: Method) -> list[State]:
    return states_of(method, Serial(trainer_of(method, network(), POPULATION)), network())


def flat(w: Weights) -> Floats:
    return np.concatenate([w[name].ravel() for name in sorted(w)])


def mean_of(models: list[Weights], weights: list[float]) -> Weights:
    return {name: np.average([each[name] for each in models], axis=0, weights=weights) for name in models[0]}


@pytest.mark.parametrize(("clusters", "fraction", "rank"), thinned([(2, 0.5, 2), (3, 1.0, 10), (1, 0.5, 1)], 1))
def test_it_is_the_loop_by_hand(clusters: int, fraction: float, rank: int) -> None:
    mu, lam = 0.3, 0.8
    method = lcfed(POPULATION, RULE, 6, network(), clusters, mu, lam, 1, rank, fraction)
    first: Weights = {name: each.numpy() for name, each in read_model(network()).items()}
    draws = Trainer(network(), POPULATION, RULE, SEED)
    centres, common, last = [first] * clusters, first, dict[int, Weights]()
    labels = np.zeros(6, np.int64)
    for event, state in zip(method.schedule.events, serial(method), strict=True):
        cohort = event.cohort.tolist()
        for k in cohort:
            w = centres[labels[k]]
            for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                step = gradient(w, w, w, rows, 0.0, 1.0)
                step = {name: each + mu * (w[name] - centres[labels[k]][name]) for name, each in step.items()}
                step |= {name: step[name] + lam * (w[name] - common[name]) for name in EMBEDDING}
                w = {name: each - LR * 0.9**event.round * step[name] for name, each in w.items()}
            last[k] = w
        rows = np.stack([flat(last[k]) for k in range(6)])
        values, vectors = np.linalg.eigh(np.cov(rows.T))
        directions = vectors[:, np.argsort(values)[::-1][: min(rank, 5)]]  # six models, centred, have five
        low, near = rows @ directions, np.stack([flat(each) for each in centres]) @ directions
        assert state.labels is not None
        if event.index:
            for k in cohort:
                labels[k] = np.argmax([low[k] @ c / np.linalg.norm(low[k]) / np.linalg.norm(c) for c in near])
        else:
            assert cohort == list(range(6))
            units = low / np.linalg.norm(low, axis=1, keepdims=True)
            assert groups_of(state.labels) == best_means(units, clusters)
            labels = state.labels.copy()
        assert np.array_equal(state.labels, labels)
        sizes = {k: float(POPULATION.sizes[k]) for k in cohort}
        common = mean_of([last[k] for k in cohort], [sizes[k] for k in cohort])
        for c in range(clusters):
            if own := [k for k in cohort if labels[k] == c]:
                centres[c] = mean_of([last[k] for k in own], [sizes[k] for k in own])
        for start, centre in zip(state.starts, centres, strict=True):
            for name, each in centre.items():
                np.testing.assert_allclose(start[name], each, rtol=0, atol=1e-10)
            for name in EMBEDDING:
                np.testing.assert_allclose(start[f"{name}@common"], common[name], rtol=0, atol=1e-10)


def test_rounding_is_no_direction() -> None:
    """Of six centred models there are five: along a sixth they differ by rounding, which a mean magnifies."""
    event = make_event(1, np.arange(6), np.ones(6), 0.0, 1.0)
    for seed in range(40):
        rows = np.random.default_rng(seed).normal(5.0, 0.5, size=(6, 43))
        kept = {k: {"w": torch.from_numpy(row)} for k, row in enumerate(rows)}
        state = State(1, None, (kept[0], kept[1]), (), clients=kept, labels=np.zeros(6, np.int64))
        one, other = (LowRank(2, rank, ("w",), 0)(event, state).labels.tolist() for rank in (5, 10))
        assert one == other


def test_models_that_are_all_alike_are_grouped_too() -> None:
    kept = {k: {"w": torch.ones(5, dtype=torch.float64)} for k in range(4)}
    state = State(0, None, (kept[0], kept[1]), (), clients=kept, labels=np.zeros(4, np.int64))
    with pytest.warns(UserWarning, match="distinct clusters"):
        found = LowRank(2, 10, ("w",), 0)(make_event(0, np.arange(4), np.ones(4), 0.0, 1.0), state)
    assert len(found.labels) == 4


def test_one_cluster_without_pulls_is_fedavg_to_the_bit() -> None:
    ours = serial(lcfed(POPULATION, RULE, 5, network(), 1, 0.0, 0.0, fraction=1.0))
    for one, other in zip(ours, serial(fedavg(POPULATION, RULE, 5, 1.0)), strict=True):
        assert other.server is not None
        assert all(one.starts[0][name].equal(tensor) for name, tensor in other.server.items())


def test_the_embedding_is_counted_on_the_way_down() -> None:
    events = lcfed(POPULATION, RULE, 3, network(), 2, fraction=0.5).schedule.events
    assert [event.models_up for event in events] == [6, 3, 3]
    assert [event.models_down for event in events] == [6, 3 + 2, 3 + 2]  # 25 of 43 numbers are the embedding's


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"decision_layers": 2}, r"method\.decision_layers = 2: must be less than the model's 2 layers"),
        ({"rule": replace(RULE, proximal=0.1)}, r"local\.proximal = 0\.1: cannot be used with method\.name = 'lcfed'"),
        ({"clusters": 7}, r"method\.clusters = 7: must be at most data\.clients = 6"),
    ],
)
def test_what_it_cannot_do_is_refused(given: dict[str, Any], told: str) -> None:
    rule: LocalRule = given.pop("rule", RULE)
    with pytest.raises(InputError, match=told):
        lcfed(POPULATION, rule, 2, network(), **given)
