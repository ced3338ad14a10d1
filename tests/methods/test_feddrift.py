"""FedDrift (Jothimurugesan et al. 2023) against a loop by hand, and what it is without drift."""

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import Dataset, InputError, Population, Serial, State, fedavg, feddrift, generator, read_model
from atoll.data.population import make_population
from atoll.executors.ray.ray_executor import Ray
from atoll.local.task import ClientTask
from atoll.methods.papers.feddrift import Drifting, Found
from atoll.methods.parts.recalling_trainer import recalled, remembered
from atoll.support.arrays import Floats, Ids
from tests.by_hand import agglomerated
from tests.by_hand import run as run_fixed
from tests.methods import twins
from tests.methods.running import SEED, equal, states_of, trainer_of
from tests.methods.twins import LR, RULE, STEPS
from tests.problems import as_vector, linear_module, quadratics
from tests.tiers import thinned

FIRSTS, ROUNDS, EACH, CLIENTS = (0, 5, 10, 15, 20), 25, 12, 6
CONCEPTS = np.array([[0] * 6, [0, 0, 1, 0, 1, 0], [0, 0, 1, 2, 1, 2], [1, 0, 1, 2, 0, 2], [1, 0, 1, 0, 0, 2]])


def drifting() -> Population:
    """Return clients of least squares whose planted parameters change, with new samples in each phase."""
    rng = generator(3, "test drift")
    width = sum(tensor.numel() for tensor in read_model(linear_module()).values())
    planted = rng.normal(size=(3, width))
    groups = np.repeat(CONCEPTS.ravel(), EACH)
    inputs = rng.normal(size=(len(groups), width))
    targets = (inputs * planted[groups]).sum(axis=1) + 0.1 * rng.normal(size=len(groups))
    data = Dataset(
        "drift", inputs, targets, inputs, targets, 0, loss="squared", groups=groups, test_groups=groups, planted=planted
    )
    rows = np.arange(len(groups), dtype=np.int32).reshape(len(FIRSTS), CLIENTS, EACH)
    later = tuple(zip(FIRSTS[1:], (each.ravel() for each in rows[1:]), strict=True))
    return replace(make_population(data, rows[0]), later=later)


POPULATION = drifting()


def rows_of(step: int, client: int) -> Ids:
    return np.arange(EACH) + EACH * (client + CLIENTS * step)


def loss(w: Floats, step: int, client: int) -> float:
    rows = rows_of(step, client)
    return float(((POPULATION.data.inputs[rows] @ w - POPULATION.data.targets[rows]) ** 2).mean() / 2)


class ByHand:
    """FedDrift as its Algorithms 1 and 2 say, client by client."""

    def __init__(self, clusters: int, delta: float, variant: str) -> None:
        self.clusters, self.delta, self.variant = clusters, delta, variant
        self.models: list[Floats] = [as_vector(read_model(linear_module()))] * clusters
        self.own: dict[tuple[int, int], int] = {}  # the cluster of each (step, client)
        self.losses = dict.fromkeys(range(CLIENTS), 0.0)
        self.events: dict[str, int] = {"split": 0, "merged": 0, "full": 0, "forgotten": 0}

    def begin(self, step: int) -> None:
        if self.variant == "oracle":
            self.own |= {(step, k): int(CONCEPTS[step, k]) for k in range(CLIENTS)}
        elif step == 0:
            self.own |= {(0, k): 0 for k in range(CLIENTS)}
        else:
            self.choose(step)

    def choose(self, step: int) -> None:
        used = sorted({*self.own.values()})
        old, drifted = list(self.models), []
        for k in range(CLIENTS):
            before = loss(old[self.own[0, k]], 0, k) if step == 1 else self.losses[k]
            best = min(used, key=lambda m: loss(old[m], step, k))
            self.own[step, k], self.losses[k] = best, loss(old[best], step, k)
            if self.losses[k] > before + self.delta:
                drifted.append(k)
        for group in [drifted] * bool(drifted) if self.variant == "eager" else [[k] for k in drifted]:
            last = {m: max((t for (t, _), c in self.own.items() if c == m), default=-1) for m in range(self.clusters)}
            free = min(last, key=lambda m: (last[m], m))
            if last[free] == step:
                self.events["full"] += 1
                continue
            self.events["split"] += 1
            self.events["forgotten"] += last[free] >= 0
            self.own = {cell: c for cell, c in self.own.items() if c != free}
            self.models[free] = old[self.own[step, group[0]]]
            self.own |= {(step, k): free for k in group}
            used = [m for m in used if m != free]
        if self.variant == "feddrift" and len(used) > 1:
            self.merge(used, old)

    def merge(self, used: list[int], old: list[Floats]) -> None:
        cells = {m: [cell for cell, c in self.own.items() if c == m] for m in used}
        mean = {(i, j): float(np.mean([loss(old[i], *cell) for cell in cells[j]])) for i in used for j in used}
        apart = np.array([[max(mean[i, j] - mean[i, i], mean[j, i] - mean[j, j], 0) for j in used] for i in used])
        for part in agglomerated(apart, len(used), "complete", self.delta):
            ids = [used[place] for place in sorted(part)]
            total = sum(len(cells[m]) for m in ids)
            self.models[ids[0]] = np.asarray(sum(len(cells[m]) / total * old[m] for m in ids))
            self.own = {cell: ids[0] if c in ids else c for cell, c in self.own.items()}
            self.events["merged"] += len(ids) - 1

    def round(self, index: int, step: int) -> None:
        after = list(self.models)
        for m in {c for (t, _), c in self.own.items() if t == step}:
            held = {k: [t for t in range(step + 1) if self.own.get((t, k)) == m] for k in range(CLIENTS)}
            total = sum(map(len, held.values()))
            after[m] = np.asarray(
                sum(len(ts) / total * self.train(index, k, ts, self.models[m]) for k, ts in held.items() if ts)
            )
        self.models = after

    def train(self, index: int, client: int, steps: list[int], w: Floats) -> Floats:
        samples = np.concatenate([rows_of(t, client) for t in steps])
        for drawn in generator(SEED, "batches", index, 0, client).integers(len(samples), size=(STEPS, 2)):
            x, y = POPULATION.data.inputs[samples[drawn]], POPULATION.data.targets[samples[drawn]]
            w = w - LR * 0.9**index * (x.T @ (x @ w - y) / len(drawn))
        return w


def run(*given: Any, **named: Any) -> list[State]:
    method = feddrift(POPULATION, RULE, ROUNDS, *given, **named)
    return states_of(method, Serial(trainer_of(method, linear_module(), POPULATION)), linear_module())


@pytest.mark.parametrize(
    ("clusters", "delta", "variant", "happens"),
    thinned(
        [
            (4, 0.2, "feddrift", {"split", "merged", "full", "forgotten"}),
            (3, 0.2, "eager", {"split", "forgotten"}),
            (6, 0.8, "feddrift", {"split", "merged"}),
            (4, 0.8, "feddrift", {"split", "merged", "forgotten"}),
            (2, 0.2, "eager", {"split", "full"}),
            (3, 0.0, "oracle", set[str]()),
        ],
        2,
    ),
)
def test_it_is_the_loop_by_hand(clusters: int, delta: float, variant: str, happens: set[str]) -> None:
    twin = ByHand(clusters, delta, variant)
    for index, state in enumerate(run(clusters, delta, variant)):
        step = max(t for t, first in enumerate(FIRSTS) if first <= index)
        if index in FIRSTS:
            twin.begin(step)
        twin.round(index, step)
        assert state.labels is not None
        assert state.labels.tolist() == [twin.own[step, k] for k in range(CLIENTS)]
        np.testing.assert_allclose([as_vector(model) for model in state.starts], twin.models, rtol=0, atol=1e-10)
    assert happens <= {name for name, count in twin.events.items() if count}, twin.events


def test_a_loss_that_does_not_rise_at_all_is_no_drift_even_where_any_rise_is() -> None:
    same = replace(POPULATION, later=((2, POPULATION.indices),))
    method = feddrift(same, RULE, 4, clusters=3, delta=0.0)
    states = states_of(method, Serial(trainer_of(method, linear_module(), same)), linear_module())
    assert [state.labels.tolist() for state in states if state.labels is not None] == [[0] * CLIENTS] * 4


@pytest.mark.parametrize("variant", ["feddrift", "eager", "oracle"])
def test_without_drift_it_is_fedavg_to_the_bit(variant: str) -> None:
    ours = run_fixed(feddrift(twins.POPULATION, RULE, 5, clusters=1, variant=variant))  # type: ignore[arg-type]
    for one, other in zip(ours, run_fixed(fedavg(twins.POPULATION, RULE, 5, 1.0, seed=SEED)), strict=True):
        assert equal(one.starts[0], other.server)


@pytest.mark.more
def test_every_row_has_all_planted_groups_also_where_none_holds_them_any_more() -> None:
    tables = atoll.run("sea-4", scale="tiny", only="FedDrift").history["confusion"]
    assert tables.shape[1:] == (4, 10)
    assert (tables.sum(axis=(1, 2)) == 10).all()
    assert (tables.sum(axis=2)[:, 3] == 0).any()


@pytest.mark.more
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
def test_workers_of_ray_follow_drift_with_the_same_bits() -> None:
    method = feddrift(POPULATION, RULE, ROUNDS, 3, 0.1)
    theirs = states_of(method, Ray(trainer_of(method, linear_module(), POPULATION), 2), linear_module())
    for one, other in zip(run(3, 0.1), theirs, strict=True):
        assert np.array_equal(one.labels, other.labels)  # type: ignore[arg-type]
        assert all(equal(a, b) for a, b in zip(one.starts, other.starts, strict=True))
        assert all(equal(dict(kept), dict(other.clients[client])) for client, kept in one.clients.items())


def test_the_oracle_needs_a_cluster_for_each_group() -> None:
    with pytest.raises(InputError, match=r"method.clusters = 2: the oracle needs one for each of 3 groups"):
        run(2, 0.1, "oracle")


def test_the_oracle_needs_groups_if_data_change() -> None:
    one = replace(POPULATION, data=replace(POPULATION.data, groups=None, test_groups=None, planted=None))
    assert feddrift(one, RULE, ROUNDS, 3).schedule.clusters == 3
    with pytest.raises(InputError, match=r"'oracle': needs several planted groups, and all data are of one"):
        feddrift(one, RULE, ROUNDS, 3, variant="oracle")


def test_only_clients_that_choose_their_clusters_are_sent_all_models() -> None:
    """In the oracle they know them: at each of four changes three fewer models go to each client."""
    chosen, known = (
        sum(event.models_down for event in feddrift(POPULATION, RULE, ROUNDS, 3, variant=variant).schedule.events)
        for variant in ("feddrift", "oracle")
    )
    assert chosen - known == 4 * 3 * CLIENTS


class OnCard(torch.Tensor):
    """A tensor that NumPy cannot read before it is on the CPU, as one on a GPU."""

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *_: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_what_clients_remember_may_be_on_a_gpu_where_a_resumed_run_has_it() -> None:
    past, losses = np.array([[0, 1], [1, -1]]), np.array([0.5, 2.0])
    states = remembered(past, losses)
    moved: dict[int, Any] = {
        client: {name: own.as_subclass(OnCard) for name, own in each.items()} for client, each in states.items()
    }
    assert all(map(np.array_equal, recalled(moved), (past, losses)))
    trainer: Any = trainer_of(feddrift(POPULATION, RULE, ROUNDS, 3), linear_module(), POPULATION)
    start = read_model(linear_module())
    found = trainer.samples_of(ClientTask(6, 6, 0, 1, 0, start, state=moved[0]))
    assert found.tolist() == rows_of(1, 0).tolist()


def test_of_a_chain_of_clusters_the_ends_stay_apart() -> None:
    """Complete linkage: the first and the last are further apart than delta."""
    losses = np.array([[[0.0, 0.1, 1.0], [0.1, 0.0, 0.1], [1.0, 0.1, 0.0]]])
    found = Found(np.array([[0, 1, 2]]), np.zeros(3), [{"w": torch.zeros(1)} for _ in range(3)])
    Drifting(quadratics(clients=3), 3, 0.2, "feddrift")._merge(found, np.arange(3), losses)
    assert len(np.unique(found.past)) == 2
