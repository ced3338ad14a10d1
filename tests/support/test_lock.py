"""A folder's lock: one holder, named to others, and none once the holder is gone."""

import errno
import fcntl
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from atoll import Experiment, make_runs, run_events
from atoll.support import lock
from atoll.support.errors import InputError, RunError
from atoll.support.lock import LOCK, locked
from tests.killing import fork, wait_for


def test_there_is_one_holder_and_nothing_is_left(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
        with pytest.raises(InputError, match=f"is in use by process {os.getpid()};"), locked(tmp_path):
            raise AssertionError("two hold the lock")
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n", "who did not get it changes nothing"
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        pass


def hold(folder: Path, seconds: float = 60) -> int:
    """Hold the lock in a child, and return its number once it does."""

    def work() -> None:
        with locked(folder):
            (folder / "held").touch()
            time.sleep(seconds)

    child = fork(work)
    while not (folder / "held").exists():
        time.sleep(0.001)
    return child


def test_a_dead_holders_lock_is_taken_over(tmp_path: Path) -> None:
    child = hold(tmp_path)
    with pytest.raises(InputError, match=f"is in use by process {child};"), locked(tmp_path):
        raise AssertionError("two hold the lock")
    os.kill(child, signal.SIGKILL)
    wait_for(child)
    assert (tmp_path / LOCK).read_text() == f"{child}\n"
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_a_forked_process_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        child = fork(lambda: time.sleep(60))
    try:
        with locked(tmp_path):
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    finally:
        os.kill(child, signal.SIGKILL)
        wait_for(child)


def test_many_processes_never_hold_it_together(tmp_path: Path) -> None:
    """Each takes the lock as soon as it can, again and again, and looks whether another one has it."""

    def work() -> None:
        done = 0
        while done < 50:
            try:
                with locked(tmp_path):
                    descriptor = os.open(tmp_path / "alone", os.O_CREAT | os.O_EXCL)
                    os.close(descriptor)
                    os.unlink(tmp_path / "alone")
                    done += 1
            except InputError:
                pass

    children = [fork(work) for _ in range(3)]
    assert [wait_for(child) for child in children] == [0, 0, 0]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot lock .*: No such file"), locked(tmp_path / "missing"):
        pass
    (tmp_path / LOCK).mkdir()
    with pytest.raises(RunError, match=r"cannot lock .*: Is a directory"), locked(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_read_only_folder_is_told_as_one(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: int) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(RunError, match=f"^cannot write to the folder {tmp_path}: [A-Z][a-z -]+$"), locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        pass


def test_who_is_patient_waits_for_the_holder(tmp_path: Path) -> None:
    child = hold(tmp_path, seconds=0.3)
    with locked(tmp_path, patience=60):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    assert wait_for(child) == 0


def as_on_windows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the module as Windows would, where bytes of a file are locked, and an open file cannot be removed."""
    opened: set[int] = set()

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count, os.lseek(descriptor, 0, os.SEEK_CUR) > 20) == (2, 1, True), "the number stays readable"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error
        opened.add(descriptor)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        for descriptor in opened:
            try:
                is_open = os.path.samestat(os.fstat(descriptor), path.stat())
            except OSError:
                continue
            assert not is_open
        os.unlink(path)

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(Path, "unlink", unlink)
    spec = importlib.util.spec_from_file_location("lock_on_windows", str(lock.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_windows_has_the_same_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_it = as_on_windows(monkeypatch).locked
    with hold_it(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
        with pytest.raises(InputError, match=f"is in use by process {os.getpid()};"), hold_it(tmp_path):
            raise AssertionError("two hold the lock")
    assert list(tmp_path.iterdir()) == []
    with hold_it(tmp_path):
        pass


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    """The second is refused before it writes anything, in one process too; the first ends as if it were alone."""
    changes = ("rounds=2", "data.clients=6", "data.samples=8", "clustering.clusters=2", "local.steps=1")
    experiment = Experiment(make_runs({}, changes=(*changes, "model.name=linear"))[0])
    steps = run_events(experiment, tmp_path / "run")
    next(steps)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for resume in (True, False):
        with pytest.raises(InputError, match=f"is in use by process {os.getpid()}"):
            next(run_events(experiment, tmp_path / "run", resume, overwrite=not resume))
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    for _ in steps:
        pass
    assert (tmp_path / "run" / "summary.json").is_file()
    assert not (tmp_path / "run" / LOCK).exists()
