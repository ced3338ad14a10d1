"""What clients keep gives the same bits in files as in memory, and is as safe there from kills."""

import sys
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll import Experiment, make_runs, run_events
from atoll.engine.run_state import State
from atoll.local.models import Model
from atoll.runs import run_folder, spilling
from atoll.runs.checkpoint import load_checkpoint, read_note, save_checkpoint
from atoll.runs.fingerprint import Fingerprint
from atoll.runs.saved import read_saved
from atoll.runs.spilling import Shelf, SpilledStates, files_in, place_states
from atoll.support.errors import InputError, RunError
from tests.killing import carry_to_end, count_steps, kill_at
from tests.runs.test_resume import BASE, rows
from tests.tiers import thinned

ORIGIN = Fingerprint(seed=0, settings="abc", executor="serial")
START = {"w": torch.zeros(3)}
BYTES = 20  # of what `kept` returns


def kept(value: float) -> Model:
    return {"n": torch.tensor(int(value), dtype=torch.int32), "a/b": torch.full((2, 2), value)}


def kept_by(clients: Mapping[int, float]) -> dict[int, Model]:
    return {client: kept(value) for client, value in clients.items()}


def state(clients: Mapping[int, Model], events_done: int = 0) -> State:
    return State(events_done, START, (START,), (START,), clients=clients)


def empty(folder: Path, most_bytes: int) -> SpilledStates:
    return SpilledStates(Shelf(folder, torch.device("cpu"), most_bytes))


def assert_equal(found: Mapping[int, Model], wanted: Mapping[int, Model]) -> None:
    assert sorted(found) == sorted(wanted)
    assert len(found) == len(wanted)
    for client, model in wanted.items():
        assert found[client].keys() == model.keys()
        for name, tensor in model.items():
            assert found[client][name].dtype == tensor.dtype
            assert torch.equal(found[client][name], tensor)


@pytest.mark.more
@pytest.mark.parametrize("most_bytes", thinned([1, 5 * BYTES, 1000 * BYTES], 1))
def test_states_in_files_are_those_of_a_dict(tmp_path: Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also all older versions, as long as no checkpoint has let their files go."""
    monkeypatch.setattr(spilling, "FILE_BYTES", 3 * BYTES)
    rng = np.random.default_rng(most_bytes)
    states, twin = empty(tmp_path, most_bytes), dict[int, Model]()
    versions = [(states, twin)]
    for _ in range(40):
        newer = kept_by({int(k): float(rng.integers(1000)) for k in rng.choice(20, 4, replace=False)})
        states, twin = states | newer, twin | newer
        versions.append((states, twin))
        assert states.bytes_in_memory <= most_bytes
        if rng.random() < 0.2:
            states.settle()
    for found, wanted in versions:
        assert_equal(found, wanted)
        assert all(list(found[client]) == list(model) for client, model in wanted.items()), "names in their order"
    assert 30 not in states
    assert states.get(30) is None


def test_a_state_of_no_tensors_is_one(tmp_path: Path) -> None:
    states = empty(tmp_path, 1) | {4: {}} | kept_by({5: 1.0})
    states.settle()
    assert states[4] == {}


def test_a_checkpoint_writes_only_what_has_changed(tmp_path: Path) -> None:
    states = empty(tmp_path, 10**9) | kept_by(dict.fromkeys(range(8), 1.0))
    save_checkpoint(tmp_path, state(states, 1), ORIGIN)
    (first,) = files_in(tmp_path)
    written = first.stat()
    states = states | kept_by({3: 2.0})
    save_checkpoint(tmp_path, state(states, 2), ORIGIN)
    (second,) = set(files_in(tmp_path)) - {first}
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert second.stat().st_size < written.st_size / 2
    assert states.bytes_in_memory == 8 * BYTES, "what may stay in memory stays there"
    save_checkpoint(tmp_path, state(states, 3), ORIGIN)
    assert set(files_in(tmp_path)) == {first, second}


def test_files_take_little_more_than_the_states(tmp_path: Path) -> None:
    """Files that are mostly out of date are written anew, once the checkpoints that name them are gone they go."""
    states = empty(tmp_path, 1)
    rng = np.random.default_rng(0)
    for event in range(60):
        states = states | kept_by({int(k): float(event) for k in rng.choice(100, 20, replace=False)})
        save_checkpoint(tmp_path, state(states, event + 1), ORIGIN)
    stored = sum(file["clients"] for file in states.settle().values())
    assert stored <= 2 * len(states)
    assert len(files_in(tmp_path)) <= 40


@pytest.mark.parametrize("most_bytes", [None, 1, 10**9])
def test_a_checkpoint_gives_states_back(tmp_path: Path, most_bytes: int | None) -> None:
    """Whatever the number of bytes before and now."""
    wanted = kept_by({k: k / 3 for k in range(9)})
    states = empty(tmp_path, 3 * BYTES)
    for client, model in wanted.items():
        states = states | {client: model}
    save_checkpoint(tmp_path, state(states, 1), ORIGIN)
    found = load_checkpoint(tmp_path, state({}), ORIGIN)
    assert found is not None
    again = place_states(found[0], tmp_path, most_bytes)
    assert isinstance(again.clients, dict) == (most_bytes is None)
    assert_equal(again.clients, wanted)
    newer = kept_by({2: 7.0, 30: 8.0})
    save_checkpoint(tmp_path, replace(again, events_done=2, clients=newer), ORIGIN)
    found = load_checkpoint(tmp_path, state({}), ORIGIN)
    assert found is not None
    assert_equal(place_states(found[0], tmp_path, most_bytes).clients, newer)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_checkpoint_whose_files_are_damaged_is_passed_over(tmp_path: Path, damage: str) -> None:
    first = empty(tmp_path, 1) | kept_by({0: 1.0, 1: 1.0, 2: 1.0})
    save_checkpoint(tmp_path, state(first, 1), ORIGIN)
    before = set(files_in(tmp_path))
    save_checkpoint(tmp_path, state(first | kept_by({1: 2.0}), 2), ORIGIN)
    (path,) = set(files_in(tmp_path)) - before
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + (b"" if damage == "cut" else b"\x7f"))
    found = load_checkpoint(tmp_path, state({}), ORIGIN)
    assert found is not None
    assert_equal(found[0].clients, kept_by({0: 1.0, 1: 1.0, 2: 1.0}))
    assert found[1][0].startswith("the checkpoint event-00000002 is damaged (")


def test_a_file_that_is_lost_while_the_run_goes_on_is_an_error(tmp_path: Path) -> None:
    states = empty(tmp_path, 1) | kept_by({7: 1.0})
    (path,) = files_in(tmp_path)
    path.unlink()
    with pytest.raises(RunError, match=r"the state of client 7 cannot be read from .*clients-00000001"):
        states[7]


def test_a_client_whose_state_is_in_a_file_takes_few_bytes(tmp_path: Path) -> None:
    clients = 100_000
    shelf = Shelf(tmp_path, torch.device("cpu"), 1)
    tracemalloc.start()
    try:
        states = SpilledStates(shelf, dict.fromkeys(range(clients), 1))
        assert tracemalloc.get_traced_memory()[0] < 300 * clients
    finally:
        tracemalloc.stop()
    assert len(states) == clients


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "'all'"])
def test_bad_numbers_of_bytes_are_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"run\.state_bytes"):
        run_of("scaffold", f"run.state_bytes={value}")


METHODS = {
    "scaffold": ("method.name=scaffold",),
    "feddyn": ("method.name=feddyn", "run.executor=cores", "run.workers=2"),
    "ditto": ("method.name=ditto", "run.probes=['client_accuracy', 'trained_client_accuracy']"),
    "fedper": ("method.name=fedper", "model.name=mlp"),
    "cfl": ("method.name=cfl", "method.fraction=", "method.eps1=9", "method.eps2=0"),
}
SOME = "run.state_bytes=6000"  # of one or two clients' states


def run_of(method: str, *changes: str) -> Experiment:
    return Experiment(make_runs(BASE, changes=("rounds=6", *METHODS[method], *changes))[0])


def assert_same(folder: Path, whole: Path) -> None:
    assert rows(folder) == rows(whole)
    found, wanted = read_saved(folder).state, read_saved(whole).state
    assert found.events_done == wanted.events_done
    assert len(wanted.clients)
    assert_equal(found.clients, wanted.clients)
    assert_equal(dict(enumerate(found.starts)), dict(enumerate(wanted.starts)))


@pytest.mark.parametrize("method", thinned(METHODS, 2))
@pytest.mark.parametrize("change", thinned(["run.state_bytes=1", SOME], 1))
def test_a_run_with_files_has_the_bits_of_one_without(tmp_path: Path, method: str, change: str) -> None:
    carry_to_end(run_of(method), tmp_path / "memory")
    carry_to_end(run_of(method, change), tmp_path / "files")
    assert files_in(tmp_path / "files" / "checkpoint")
    assert not files_in(tmp_path / "memory" / "checkpoint")
    assert_same(tmp_path / "files", tmp_path / "memory")


def test_a_run_may_go_on_with_another_number_of_bytes(tmp_path: Path) -> None:
    carry_to_end(run_of("scaffold"), tmp_path / "whole")
    changes = ["run.state_bytes=1", "run.state_bytes=", SOME, "run.state_bytes=", "run.state_bytes=1"]
    for stop, change in enumerate(changes, start=1):
        for progress in run_events(run_of("scaffold", change), tmp_path / "run", resume=True):
            if progress.events_done == stop:
                break
    carry_to_end(run_of("scaffold"), tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert not [path for path in (tmp_path / "run" / "checkpoint").iterdir() if path.name.startswith(".")]


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and /proc to name a descriptor's file")
@pytest.mark.parametrize("method", thinned(["scaffold", "fedper"], 1))
@pytest.mark.parametrize("change", thinned(["run.state_bytes=1", SOME], 1))
def test_a_run_with_files_that_was_killed_where_it_writes(tmp_path: Path, method: str, change: str) -> None:
    experiment = run_of(method, change)
    carry_to_end(run_of(method), tmp_path / "whole")
    steps = count_steps(experiment, tmp_path / "counted")
    rng = np.random.default_rng([list(METHODS).index(method), len(change)])
    for number in range(3):
        folder = tmp_path / f"run{number}"
        for _ in range(3):
            kill_at(experiment, folder, int(rng.integers(steps)), rng.uniform(0, 1))
        carry_to_end(experiment, folder)
        assert_same(folder, tmp_path / "whole")
        assert_nothing_is_left_over(folder / "checkpoint")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and /proc to name a descriptor's file")
def test_a_run_with_files_that_was_killed_at_each_step_on_a_file(tmp_path: Path) -> None:
    experiment = run_of("scaffold", SOME)
    carry_to_end(run_of("scaffold"), tmp_path / "whole")
    for number in range(count_steps(experiment, tmp_path / "counted")):
        folder = tmp_path / f"run{number}"
        assert kill_at(experiment, folder, number, kept=0.5)
        carry_to_end(experiment, folder)
        assert_same(folder, tmp_path / "whole")
        assert_nothing_is_left_over(folder / "checkpoint")


def assert_nothing_is_left_over(folder: Path) -> None:
    """Only files that one of the checkpoints names are there."""
    named = {file for note in folder.glob("event-*.json") for file in spilled_by(note)}
    assert {path.name for path in files_in(folder)} == named
    assert not list(folder.glob(".*"))


def spilled_by(note: Path) -> list[str]:
    return [f"clients-{int(number):08d}.safetensors" for number in read_note(note)["state"]["files"]]


def test_a_state_whose_name_is_damaged_is_told(tmp_path: Path) -> None:
    """As Hypothesis found it: the second slash of ``3/000000/w`` is gone."""
    shelf = Shelf(tmp_path, torch.device("cpu"))
    shelf.write([(3, kept := spilling._Kept({"w": torch.ones(2)}))])
    (file,) = tmp_path.glob("clients-*.safetensors")
    file.write_bytes(file.read_bytes().replace(b"3/000000/w", b"3/000000-w"))
    kept.model = None
    with pytest.raises(RunError, match="the state of client 3 cannot be read"):
        shelf.read(3, kept)


def test_a_run_that_is_replaced_leaves_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the next one cannot start: the disk may be full of them."""
    run, folder = run_of("scaffold", "run.state_bytes=1"), tmp_path / "run"
    carry_to_end(run, folder)
    assert files_in(folder / "checkpoint")

    def full(*_: object) -> None:
        raise RunError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "write_schedule", full)
        with pytest.raises(RunError, match="no space left"):
            next(run_events(run, folder, overwrite=True))
    assert list(folder.iterdir()) == []
    assert carry_to_end(run, folder) == []
