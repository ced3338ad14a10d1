"""Clients whose data change during the run (`[drift]`): what they hold in each phase, train on and are tested on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, Population, Trainer, generator, init, make_runs, run_events, train
from atoll.data.dealing.drift import draw_concepts
from atoll.data.named_datasets import DATASETS
from atoll.data.population import make_population
from atoll.evaluation.personal import OwnTests
from atoll.local.batches import Batches, measure_models
from atoll.local.task import ClientTask
from atoll.report.reading.records import with_recovery
from atoll.runs.probes import Probes
from atoll.support.arrays import Ids
from tests.killing import carry_to_end
from tests.tiers import thinned

CONCEPTS = [[0, 0, 0, 0, 1, 1], [0, 1, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0]]
BASE: dict[str, Any] = {
    "rounds": 9,
    "data": {"clients": 6, "samples": 12, "partition": "iid", "rotations": 2},
    "drift": {"kind": "groups", "rounds": [3, 6], "concepts": CONCEPTS},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "method": {"name": "ifca", "clusters": 2, "fraction": 1.0},
    "run": {"executor": "serial", "checkpoint_every": 1},
}


def experiment(*changes: str) -> Experiment:
    return Experiment(make_runs(BASE, changes=list(changes))[0])


def held(population: Population) -> list[set[int]]:
    return [set(population.samples(client).tolist()) for client in range(len(population))]


def test_clients_hold_new_samples_of_their_concept_in_each_phase() -> None:
    made = experiment()
    for population in (made.population, made.clients.test):
        assert population.phase_rounds == (0, 3, 6)
        for row, first in zip(CONCEPTS, population.phase_rounds, strict=True):
            now = population.at(first)
            assert now.groups().tolist() == row
            assert population.at(first + 2) is now
            assert now.sizes.tolist() == [12] * 6
            groups = population.data.groups_of(now.indices)
            assert groups.tolist() == np.repeat(row, 12).tolist()
    every = [part for first in (0, 3, 6) for part in held(made.population.at(first))]
    assert len(set.union(*every)) == sum(map(len, every)), "the pool suffices, so nobody's samples come twice"


def test_the_test_samples_of_a_concept_are_shared_out_once() -> None:
    tests = experiment().clients.test
    same = [client for client in range(6) if CONCEPTS[0][client] == CONCEPTS[2][client]]
    assert held(tests)[same[0]] == held(tests.at(6))[same[0]]
    assert sum(map(len, held(tests.at(6)))) == len(set.union(*held(tests.at(6))))


@pytest.mark.parametrize("dealt", ["one-label", "major-class"])
def test_labels_that_go_by_a_clients_place_would_drift_too(dealt: str) -> None:
    with pytest.raises(InputError, match=f"needs a partition that draws labels, not data.partition = '{dealt}'"):
        assert experiment(f"data.partition={dealt}").population


def test_a_change_may_be_gradual() -> None:
    population = experiment("drift.gradual_rounds=2").population
    assert population.phase_rounds == (0, 3, 4, 5, 6, 7, 8)
    for client in range(6):
        old, new = held(population)[client], held(population.at(5))[client]
        shares = [len(held(population.at(round_))[client] & new) / 12 for round_ in (2, 3, 4, 5)]
        assert shares == [0, 4 / 12, 8 / 12, 1]
        assert held(population.at(3))[client] <= old | new


def test_partitions_are_dealt_out_anew() -> None:
    changes = "drift.kind=partition", "data.rotations=1", "drift.concepts=[[0,0,0,0,0,0],[1,0,0,0,0,1],[1,0,0,0,0,0]]"
    population = experiment(*changes).population
    first, second, third = (held(population.at(round_)) for round_ in (0, 3, 6))
    assert [one == other for one, other in zip(first, second, strict=True)] == [False, *[True] * 4, False]
    assert (third[0], third[5]) == (second[0], first[5])


@pytest.mark.parametrize("dealt", ["partition=dirichlet", "partition=planted", "partition=major-class"])
def test_test_clients_hold_what_their_clients_hold_in_each_deal(dealt: str) -> None:
    few = "data.rotations=1" if "planted" not in dealt else "data.rotations=2"
    made = experiment("drift.kind=partition", few, f"data.{dealt}", *(["data.alpha=0.1"] if "dir" in dealt else []))
    for round_ in (0, 3, 6):
        own, tests = made.population.at(round_), made.clients.test.at(round_)
        shares = [each.class_counts() / each.class_counts().sum(axis=1, keepdims=True) for each in (own, tests)]
        assert np.abs(shares[0] - shares[1]).max() < 0.1
        assert own.groups().tolist() == tests.groups().tolist()


def test_labels_may_be_swapped() -> None:
    made = experiment("data.rotations=1", "data.swaps=2")
    data = made.population.data
    plain, copy = data.labels[: len(data.inputs)], data.labels[len(data.inputs) :]
    assert np.array_equal(copy, np.array([0, 2, 1, *range(3, 10)])[plain])
    one = int(np.flatnonzero(plain == 1)[0])
    rows = np.array([one, one + len(data.inputs), 11])
    inputs, targets = Batches(data, made.module).gather(rows)
    assert targets[:2].tolist() == [1, 2]
    assert inputs[0].equal(inputs[1])
    assert targets.tolist() == data.labels[rows].tolist()
    assert made.clients.test.at(6).groups().tolist() == CONCEPTS[2]


def test_two_copies_are_half_a_turn_apart() -> None:
    made = experiment()
    data = made.population.data
    (plain, copy), _ = Batches(data, made.module).gather(np.array([11, 11 + len(data.inputs)]))
    assert copy.equal(plain.rot90(2, (-2, -1)))


@pytest.mark.parametrize("seed", range(3))
def test_a_share_of_the_clients_moves(seed: int) -> None:
    rows = draw_concepts(np.arange(20) % 4, 4, 5, 0.3, generator(seed, "test"))
    assert (rows[1:] != rows[:-1]).sum(axis=1).tolist() == [6] * 4
    few = draw_concepts(np.zeros(20, np.int64), 4, 5, 0.01, generator(seed, "test"))
    assert (few[1:] != few[:-1]).sum(axis=1).tolist() == [1] * 4  # somebody moves
    assert 0 <= rows.min() <= rows.max() < 4


@pytest.mark.parametrize("own", [("drift.concepts=",), ("data.rotations=4", "drift.concepts=2")])
def test_concepts_are_the_planted_groups_unless_told_otherwise(own: tuple[str, ...]) -> None:
    found = experiment(*own, "drift.share=1.0").clients.dealt
    first, other = [0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]
    assert [found.at(round_).groups().tolist() for round_ in (0, 3, 6)] == [first, other, first]


def test_sea_has_four_thresholds() -> None:
    data = DATASETS["sea"](rng=generator(0, "test"), pool=2000, flips=0.2)
    for group, least in enumerate((8, 9, 7, 9.5)):
        own, tests = data.groups == group, data.test_groups == group
        wanted = data.inputs[own][:, :2].sum(axis=1) > least
        assert np.mean(wanted != data.targets[own]) == pytest.approx(0.2, abs=0.03)
        assert np.array_equal(data.test_inputs[tests][:, :2].sum(axis=1) > least, data.test_targets[tests])


def test_clients_train_on_the_data_of_the_round() -> None:
    made = experiment()
    trainer: Any = made.training.trainer().for_executors()
    for round_ in (2, 3, 8):
        rows = trainer.draw_rows(ClientTask(round_, round_, 0, 0, 4, made.training.start()))
        assert set(rows.ravel().tolist()) <= held(made.population.at(round_))[4]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in ("wall_time", "crc32")} for row in rows]


def test_rows_are_scored_on_the_data_of_the_last_round(tmp_path: Path) -> None:
    made = experiment("run.probes=['client_accuracy']")
    carry_to_end(made, tmp_path / "run")
    states = {row["event"]: row for row in rows_of(tmp_path / "run")}
    executor, state = made.execution.make_executor(), None
    for step in train(made.method, executor, init(made.method, *made.training.initial_models())):
        state = step.state
        now, tests = (each.at(step.event.round) for each in (made.population, made.clients.test))
        parts = [now.samples(k) for k in range(6)]
        losses = measure_models(made.module, Batches(now.data, made.module), state.starts, parts).losses
        chosen = losses.argmin(axis=1)
        parts = [tests.samples(k) for k in range(6)]
        hits = measure_models(made.module, Batches(tests.data, made.module), state.starts, parts).accuracies
        row = states[state.events_done]
        assert row["train_loss"] == pytest.approx(losses.min(axis=1).mean())
        assert row["test_accuracy"] == pytest.approx(hits[range(6), chosen].mean())
        assert np.sum(row["confusion"], axis=1).tolist() == np.bincount(now.groups(), minlength=2).tolist()


def test_a_model_for_all_is_tested_on_the_concepts_of_the_moment(tmp_path: Path) -> None:
    """Not on those that no client has now, so that its accuracy can be compared with that of clusters' models."""
    own = ["method.name=fedcluster", "method.clusters=", "clustering.clusters=2", "run.probes=['cycle_accuracy']"]
    made = experiment(*own, f"drift.concepts={[[0] * 6, [1] * 6, [0] * 6]}", "drift.gradual_rounds=1")
    carry_to_end(made, tmp_path / "run")
    before, *rows = rows_of(tmp_path / "run")
    state = init(made.method, *made.training.initial_models())
    found = [0.0, measured(made, made.clients.test, state.server)]
    assert before["test_accuracy"] == pytest.approx(found[-1])
    for step in train(made.method, made.execution.make_executor(), state):
        found.append(measured(made, made.clients.test.at(step.event.round), step.state.server))
        if row := next((row for row in rows if row["event"] == step.state.events_done), None):
            assert row["test_accuracy"] == pytest.approx(found[-1])
            assert row["cycle_accuracy"] == pytest.approx((found[-2] + found[-1]) / 2)
    assert len(rows) == 9


def measured(made: Experiment, tests: Population, model: Any) -> float:
    """Return a model's accuracy on the test clients' samples."""
    parts = [tests.samples(k) for k in range(len(tests))]
    hits = measure_models(made.module, Batches(tests.data, made.module), [model], parts).accuracies[:, 0]
    return float(np.average(hits, weights=tests.sizes))


METHODS = {
    "feddrift": ["method.name=feddrift", "method.delta=0.01", "method.clusters=3"],
    "eager": ["method.name=feddrift", "method.delta=0.01", "method.clusters=3", "method.variant=eager"],
    "ifca": [],
    "cfl": ["method.name=cfl", "method.clusters=2", "method.eps1=9", "method.eps2=0"],
    "fedcluster": ["method.name=fedcluster", "method.fraction=1.0"],
}


@pytest.mark.more
@pytest.mark.parametrize("name", thinned(METHODS, 1))
def test_resumed_and_on_cores_it_has_the_same_rows_and_bits(tmp_path: Path, name: str) -> None:
    changes = [change for change in METHODS[name] if name != "fedcluster" or "clusters" not in change]
    table = {**BASE, "method": {} if name != "ifca" else BASE["method"], "clustering": {"clusters": 2}}

    def make(*more: str) -> Experiment:
        return Experiment(make_runs(table, changes=[*changes, *more])[0])

    carry_to_end(make(), tmp_path / "whole")
    for stop in (1, 3, 4, 6):
        for progress in run_events(make(), tmp_path / "stopped", resume=True):
            if progress.events_done > stop and progress.is_settled:
                break
    carry_to_end(make(), tmp_path / "stopped")
    carry_to_end(make("run.executor=cores", "run.workers=2"), tmp_path / "cores")
    for other in ("stopped", "cores"):
        assert rows_of(tmp_path / other) == rows_of(tmp_path / "whole")
        last, its = (max((tmp_path / each / "checkpoint").glob("*.safetensors")) for each in ("whole", other))
        assert last.read_bytes() == its.read_bytes()


def test_clients_of_feddrift_are_measured_after_training_on_what_they_remember() -> None:
    made = experiment(*METHODS["feddrift"], "run.probes=['trained_client_accuracy']")
    probes, whole, recalling = Probes(made), made.population, 0
    for step in train(made.method, made.execution.make_executor(), init(made.method, *made.training.initial_models())):
        state, now = step.state, whole.phase_of(step.event.round)
        probes.measure(state)
        assert state.labels is not None
        remembered = []
        for k, label in enumerate(state.labels.tolist()):
            phases = [t for t in range(now + 1) if int(state.clients[k]["clusters"][t]) == label]
            remembered.append(np.concatenate([whole.at(whole.phase_rounds[t]).samples(k) for t in phases]))
            recalling += len(phases) > 1
        trainer = Trainer(made.initial.copy(), make_population(whole.data, remembered), made.method.rule, 0)
        tests = OwnTests(whole.at(step.event.round), made.initial.copy(), owned=False)
        for k, label in enumerate(state.labels.tolist()):
            task = ClientTask(state.events_done, 0, 0, label, k, state.starts[label], drawn_as=10**15)
            expected = tests.scores(trainer.train(task).model, [k])[0]
            assert probes.by_client["trained_client_accuracy"][k] == pytest.approx(expected)
    assert recalling


def own(dataset: Any, concepts: Ids, offset: int = 0) -> list[Any]:
    """Give client k ten samples from its concept's place on, in each phase."""
    return [[np.arange(10) + 100 * concept + offset + k for k, concept in enumerate(row)] for row in concepts]


def test_a_function_of_ones_own() -> None:
    made = experiment(f"drift.kind={__name__}:own", "drift.offset=7")
    assert sorted(made.population.at(6).samples(1)) == list(range(108, 118))


def short(concepts: Ids) -> list[Any]:
    return own(None, concepts)[:1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["drift.rounds=[3, 9]"], r"drift\.rounds: names round 9, but rounds = 9, so the last is 8"),
        (["drift.rounds=[6, 3]"], r"drift\.rounds = \[6, 3\]: must be ascending rounds"),
        (["drift.concepts=[[0,0,0,0,0,0],[0,0,0,0,0,5],[0,0,0,0,0,0]]"], r"names the group 5, but the data has 2"),
        (["drift.concepts=[[0,0,0,0,0,0],[0,0,0,0,0,999999999999],[0,0,0,0,0,0]]"], r"the group 999999999999, but"),
        (["drift.share=0.5"], r"^drift\.share = 0\.5: has no effect, since lists of drift\.concepts say"),
        (["drift.concepts=9"], r"^drift\.concepts = 9: must be at most 2, the data's groups$"),
        (["drift.kind=none"], r"drift\.rounds = \[3, 6\]: needs a drift\.kind"),
        (["data.rotations=1"], r"^drift\.kind = 'groups': the data has no groups"),
        (["data.rotations=1", "data.swaps=6"], r"^data\.swaps = 6: digits has 10 classes, so the most is 5$"),
        (["run.executor=fleet"], r"^drift\.kind = 'groups': is for simulation; with run\.executor = 'fleet'"),
        (
            ["drift.gradual_rounds=1", "method.name=feddrift", "method.clusters=2"],
            r"drift\.gradual_rounds = 1: cannot be used with method\.name = 'feddrift', whose time steps are",
        ),
        (["drift.gradual_rounds=3"], r"drift\.gradual_rounds = 3: must be less .* shortest has 3"),
        (["method.name=pacfl"], r"'pacfl', whose clusters are found from clients' data before training"),
        (
            ["data.partition=rotated", "data.samples=100"],
            r"test samples, of which drift gives clients as many as they train on: data\.clients = 6: group . has 360",
        ),
        (["method.resample=true"], r"method\.resample = True, which assumes that data do not change"),
        (
            [
                *("method.name=hierarchical", "method.clusters=", "clustering.clusters=2", "method.intra_rounds=2"),
                *("rounds=12", "drift.rounds=[4, 6]"),
            ],
            r"drift\.rounds.*: the data change in round 6, in which no event begins; the next begins in round 8",
        ),
        ([f"drift.kind={__name__}:short"], r"must return a partition among 6 clients for each of 3 rows"),
    ],
)
def test_what_is_refused(changes: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        experiment(*changes).check()


def test_a_population_must_keep_its_sizes() -> None:
    population = experiment().population
    with pytest.raises(InputError, match="as many indices in each phase"):
        Population(population.data, population.indices, population.offsets, later=((3, population.indices[1:]),))


def test_recovery_counts_rounds_until_the_accuracy_is_back() -> None:
    rows = {
        "round": np.arange(9.0),
        "test_accuracy": np.array([0.1, 0.8, 0.9, 0.5, 0.7, 0.895, 0.9, 0.6, 0.7]),
        "test_loss": np.full(9, np.nan),
    }
    config = {"drift": {"kind": "groups", "rounds": [2, 6]}}
    found = with_recovery(rows, config)["recovery_rounds"]
    assert found[:3].tolist() == pytest.approx([np.nan] * 3, nan_ok=True)
    assert found[3:].tolist() == [1, 2, 3, 3, (3 + 1) / 2, (3 + 2) / 2], "the second is not over at the end"
    assert "recovery_rounds" not in with_recovery(rows, {"drift": {"kind": "none", "rounds": []}})
    for strange in ([-3], [10**400]):  # of a damaged folder, which a report may read
        assert "recovery_rounds" not in with_recovery(rows, {"drift": {"kind": "shift", "rounds": strange}})
    late = with_recovery({name: values[4:] for name, values in rows.items()}, config)["recovery_rounds"]
    assert late[3:].tolist() == [1, 2], "without a row before it the first change counts for nothing"
    losses = {**rows, "test_accuracy": np.full(9, np.nan), "test_loss": 1 - rows["test_accuracy"]}
    assert with_recovery(losses, config)["recovery_rounds"][5] == 3
