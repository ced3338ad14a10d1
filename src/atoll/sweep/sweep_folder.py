"""The folder of a sweep: what it holds, and which process may write to it."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from atoll.runs.going_on import changed_data
from atoll.runs.run_files import entries_of, is_taken
from atoll.runs.run_folder import RunFolder
from atoll.settings.validation import Settings
from atoll.support import lock
from atoll.support.errors import InputError, refusing
from atoll.support.files import make_folder, to_json, write_atomically
from atoll.support.untrusted import read_json

NOTE = "sweep.json"
_PATIENCE_SECONDS = 60.0  # of processes that share a folder; each holds it while it writes a note or a table


def require_folder(out: Path, note: Mapping[str, Any], resume: bool) -> bool:
    """Return whether the folder already holds this sweep; writes nothing.

    A sweep may be resumed with more runs than before, such as further seeds, and a search with more trials.
    """
    if (before := read_note(out)) is None:
        return False
    if not resume:
        raise InputError(f"--out {out}: already holds a sweep; add --resume to continue it, or give another folder")
    if before.get("kind") != note["kind"]:
        raise InputError(f"--resume: {out} holds a {before.get('kind')}, not a {note['kind']}; give another folder")
    if note["kind"] == "search":
        fixed = ("over", "metric", "target", "settings", "run.stop_at")
        if changed := [key for key in fixed if before.get(key) != note[key]]:
            raise InputError(
                f"--resume: {out} holds another search, which differs in {', '.join(changed)}; give the same options "
                "(more --trials are fine), or another folder"
            )
    elif gone := [name for name in before["runs"] if name not in note["runs"]]:
        raise InputError(
            f"--resume: {out} holds another sweep, with {len(gone)} runs that this one lacks, such as {gone[0]}; "
            "give the same --over (values may be added), or another folder"
        )
    return True


def require_same(folder: Path, settings: Settings, goes_on: bool, is_mine: bool = True) -> None:
    """Reject a run's folder of other settings or, if the sweep goes on, other data; others' once they are runs."""
    if RunFolder(folder).is_run:
        RunFolder(folder).require_same(settings)
        if goes_on and (told := changed_data(RunFolder(folder), settings)):
            raise InputError(f"--resume: {told}; undo that, or give another folder")
    elif is_mine:
        RunFolder(folder).require_room()


def is_over(folder: Path, settings: Settings) -> bool:
    """Return whether a run is finished, and was not stopped early by another `run.stop_at`."""
    run = RunFolder(folder)
    return run.is_finished and not run.stopped_otherwise(settings)


@contextmanager
def claimed(out: Path, note: Mapping[str, Any], check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock the sweep's folder for this process alone, check its runs, and write its note."""
    with lock.claimed(out):
        check()  # which may take minutes
        write_note(out, note)
        yield


@contextmanager
def shared(out: Path, note: Mapping[str, Any], check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Check this part's runs; start the sweep's folder, or join the processes that work in it on their own runs."""
    check()
    make_folder(out)
    with in_turn(out):
        require_folder(out, note, resume=True)
        if read_note(out) != json.loads(to_json(dict(note))):
            write_note(out, note)
    yield


def in_turn(out: Path) -> AbstractContextManager[None]:
    """Lock a shared sweep's folder for a moment, waiting for its turn."""
    return lock.locked(out, _PATIENCE_SECONDS)


def write_note(out: Path, note: Mapping[str, Any]) -> None:
    """Write ``sweep.json``, and ``experiment.json``, which gives `atoll report` the order of the runs."""
    write_atomically(out / "experiment.json", to_json({"runs": list(note["runs"])}))
    write_atomically(out / NOTE, to_json(dict(note)))


def read_note(out: Path) -> dict[str, Any] | None:
    """Return a sweep folder's note; None if the folder is empty or does not exist."""
    if NOTE not in entries_of(out):
        if is_taken(out, ("experiment.json", NOTE)):
            raise InputError(f"--out {out}: is not empty and holds no sweep; give the path of a new folder")
        return None  # empty, or of a sweep killed at its start
    with refusing(f"--out {out}: its {NOTE} cannot be read", ValueError, hint="; give another folder"):
        note: Any = read_json(out / NOTE, out)
        if not isinstance(note, dict) or not isinstance(note.get("runs"), dict):
            raise ValueError("it has no runs")
    return note
