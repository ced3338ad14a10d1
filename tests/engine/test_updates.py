"""Merges that add updates: laws of `Mix.updates`, and FedBuff against a loop by hand."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atoll import Clock, Event, InputError, LocalRule, Method, Schedule, Serial, Trainer, init, read_model, train
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.schedules.events import FROM_SERVER, Mix
from atoll.schedules.recorded import lines_of, mix_of
from atoll.schedules.schedule_files import digest_of, read_schedule, write_schedule
from atoll.support.files import line_as_bytes
from tests.cli.pages import write_files
from tests.problems import as_vector, linear_module, quadratics

POPULATION, SEED = quadratics(clients=12), 3
RULE = LocalRule(sgd, lr=0.05, steps=3, batch_size=2)
CLOCK = Clock(np.random.default_rng(0).uniform(1, 9, 12), np.ones(12))


@pytest.fixture(scope="module", autouse=True)
def _page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("page")
    write_files(Path(__file__).parents[2] / "docs/extending.md", folder)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def fedbuff(rounds: int = 30) -> Method:
    made: Method = importlib.import_module("fedbuff").fedbuff(POPULATION, RULE, CLOCK, rounds, 5, 3, 0.8, seed=1)
    return made


def servers(method: Method) -> list[Model]:
    executor = Serial(Trainer(linear_module(), POPULATION, RULE, SEED))
    found = []
    for step in train(method, executor, init(method, read_model(linear_module()))):
        assert step.state.server is not None
        found.append(step.state.server)
    return found


def test_fedbuff_is_the_loop_by_hand() -> None:
    """Each client begins from the server's model `staleness` merges ago, and every model of the server is kept here."""
    method, trainer = fedbuff(), Trainer(linear_module(), POPULATION, RULE, SEED)
    versions = [as_vector(read_model(linear_module()))]
    for event, found in zip(method.schedule.events, servers(method), strict=True):
        update = np.zeros(3)
        for client, staleness in zip(event.cohort.tolist(), event.staleness, strict=True):
            start = y = versions[event.index - staleness]
            for rows in trainer.draw_rows(ClientTask(event.index, event.round, 0, 0, client, {})):
                x, targets = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
                y = y - 0.05 * x.T @ (x @ y - targets) / len(rows)
            update += (y - start) / np.sqrt(1 + staleness)
        versions.append(versions[-1] + 0.8 / 3 * update)
        np.testing.assert_allclose(as_vector(found), versions[-1], rtol=0, atol=1e-12)


def test_fedbuffs_clusters_are_clients_at_work_and_no_ghosts() -> None:
    schedule = fedbuff().schedule
    assert {cluster for event in schedule.events for cluster in event.active} == set(range(schedule.clusters))
    assert max(max(event.staleness) for event in schedule.events) > 0
    last = np.full(schedule.clusters, -1.0)
    for event in schedule.events:
        assert np.array_equal(event.clusters if event.clusters is not None else [], event.active)
        for cluster, began, client in zip(event.active, event.began, event.cohort.tolist(), strict=True):
            assert began >= last[cluster], "a place holds one client at a time"
            assert began + CLOCK.seconds_of(np.array([client]))[0] <= event.seconds + 1e-9
            last[cluster] = event.seconds


def one_event(server: Mix | None = FROM_SERVER, starts: tuple[tuple[int, Mix], ...] = ()) -> Event:
    cohort, ones = np.arange(4), np.ones(4)
    return Event(0, 0, 1.0, (0, 1), (0.0, 0.0), cohort, cohort % 2, ones, server=server, starts=starts)


def server_after(mix: Mix) -> np.ndarray:
    return as_vector(servers(Method(Schedule((one_event(mix),), 2, 1), RULE))[0])


def test_updates_of_clusters_that_began_from_the_servers_model_are_means_of_models() -> None:
    """``w + sum p_j (w_j - w)`` is ``sum p_j w_j`` where the p_j sum to one; half the weights go half of the way."""
    mean = server_after(Mix(published=((0, 0.3), (1, 0.7))))
    added = server_after(Mix(server=1.0, updates=((0, 0.3), (1, 0.7))))
    half = server_after(Mix(server=1.0, updates=((0, 0.15), (1, 0.35))))
    first = as_vector(read_model(linear_module()))
    np.testing.assert_allclose(added, mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(half, (first + mean) / 2, rtol=0, atol=1e-14)
    assert server_after(Mix(server=1.0, updates=((0, 0.0),))).tobytes() == first.tobytes()


def test_a_merge_of_updates_leaves_the_models_that_it_is_made_from_alone() -> None:
    first = read_model(linear_module())
    before = as_vector(first).copy()
    method = Method(Schedule((one_event(Mix(server=1.0, updates=((0, 1.0),))),), 2, 1), RULE)
    executor = Serial(Trainer(linear_module(), POPULATION, RULE, SEED))
    (step,) = train(method, executor, init(method, first))
    assert as_vector(first).tobytes() == before.tobytes()
    assert step.state.starts[0] is first


def test_weights_of_models_must_sum_to_one_whatever_the_updates() -> None:
    Mix(server=1.0, updates=((0, 5.0),))
    with pytest.raises(InputError, match=r"must sum to one, but they sum to 0\.0"):
        Mix(updates=((0, 1.0),))


@pytest.mark.parametrize("where", ["server", "starts"])
def test_updates_of_a_cluster_that_does_not_train_are_refused(where: str) -> None:
    mix = Mix(server=1.0, updates=((2, 0.5),))
    with pytest.raises(InputError, match=r"event 0: Mix\.updates names cluster 2, which is not active"):
        one_event(mix) if where == "server" else one_event(starts=((0, mix),))


def test_files_of_schedules_hold_updates(tmp_path: Path) -> None:
    schedule = fedbuff(rounds=4).schedule
    write_schedule(tmp_path / "schedule.npz", schedule)
    (tmp_path / "happened.jsonl").write_bytes(b"".join(map(line_as_bytes, lines_of(schedule))))
    for name in ("schedule.npz", "happened.jsonl"):
        found = read_schedule(tmp_path / name)
        assert [event.server for event in found.events] == [event.server for event in schedule.events]
        assert digest_of(found) == digest_of(schedule)
    changed = replace(schedule.events[0], server=Mix(server=1.0, updates=((2, 9.0),)))
    assert digest_of(replace(schedule, events=(changed, *schedule.events[1:]))) != digest_of(schedule)
    assert mix_of(FROM_SERVER) == {"server": 1.0, "published": []}, "files of other schedules are as they were"
