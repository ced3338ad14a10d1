"""The runs of a sweep, seen through before the first of them begins."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.experiment.executor_choice import require_no_fleet
from atoll.experiment.experiment import Experiment
from atoll.runs.fingerprint import differences
from atoll.runs.probes import check_probes
from atoll.runs.run_folder import RunFolder
from atoll.runs.run_folders import name_folders
from atoll.runs.titles import title_of
from atoll.settings.experiment_file import Table, make_runs
from atoll.settings.sections import Settings
from atoll.support.errors import InputError
from atoll.support.files import make_folder, to_json, write_atomically
from atoll.support.lock import LOCK, locked
from atoll.support.untrusted import read_json, read_toml
from atoll.sweep.axes import Axis, combinations, file_part, parse_value, short_names
from atoll.trackers import require_trackers

NOTE = "sweep.json"
_PATIENCE_SECONDS = 60.0  # of those who share a folder; each holds it while it writes a note or a table
_LONGEST = 200  # characters of a folder's name; file systems take 255 bytes


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        name: of its folder.
        run: the experiment's run that it is, by panel and label; empty where the experiment has but one.
        values: of the settings that are swept over, by name.
        settings: all settings.
    """

    name: str
    run: str
    values: Mapping[str, Any]
    settings: Settings

    @property
    def setting(self) -> str:
        """What it has in common with the runs that differ in their seed alone."""
        return json.dumps([self.run, {key: value for key, value in self.values.items() if key != "seed"}], default=str)


def make_members(
    table: Table, axes: Sequence[Axis], scale: str | None = None, changes: Iterable[str] = (), only: Iterable[str] = ()
) -> list[Member]:
    """Return every run of the experiment with every combination of values.

    Args:
        table: the experiment, as `atoll.read_experiment` returns it.
        axes: what is swept over.
        scale: one of the experiment's scales.
        changes: ``section.key=value`` texts.
        only: titles (panel and label, see `title_of`) of the experiment's runs to take; none: all.

    Raises:
        InputError: an unknown setting or a value out of range, or two runs with the same folder.
    """
    changes, titles, shorts = list(changes), set(only), short_names([axis.name for axis in axes])
    members: list[Member] = []
    for texts in combinations(axes):
        over = [f"{axis.name}={text}" for axis, text in zip(axes, texts, strict=True)]
        runs = [s for s in make_runs(table, scale, [*changes, *over]) if not titles or title_of(s) in titles]
        prefixes = name_folders([Experiment(settings) for settings in runs]) if len(runs) > 1 else [""]
        values = {axis.name: parse_value(axis.name, text) for axis, text in zip(axes, texts, strict=True)}
        parts = [f"{short}={file_part(text)}" for short, text in zip(shorts, texts, strict=True)]
        labels = [f"seed {t}" if short == "seed" else f"{short} = {t}" for short, t in zip(shorts, texts, strict=True)]
        for prefix, settings in zip(prefixes, runs, strict=True):
            label = ", ".join(filter(None, (settings.label, *labels)))
            name = ",".join(filter(None, (prefix, *parts)))[:_LONGEST]
            run = title_of(settings) if len(runs) > 1 else ""
            members.append(Member(name, run, values, settings.model_copy(update={"label": label})))
    _require_names(members)
    return members


def check_members(members: Iterable[Member]) -> None:
    """Make what can be made before training, of the first run of each setting.

    Raises:
        InputError: what is wrong with the settings, and of which run.
    """
    first: dict[str, Member] = {}
    for member in members:
        first.setdefault(member.setting, member)
    check_settings({member.name: member.settings for member in first.values()})


def check_settings(runs: Mapping[str, Settings]) -> None:
    """Make what can be made of runs before training; `runs` maps what each is called by to its settings.

    Raises:
        InputError: what is wrong with the settings, and of which run.
    """
    for name, settings in runs.items():
        try:
            require_no_fleet(settings.run)
            experiment = Experiment(settings)
            experiment.check()
            check_probes(experiment)
            require_trackers(settings)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error


def require_folder(out: Path, note: Mapping[str, Any], resume: bool) -> bool:
    """Return whether the folder holds this sweep already; refuse one that cannot be used. Nothing is written.

    A sweep may go on with more runs than it was begun with, such as further seeds, and a search with more trials.

    Raises:
        InputError: says what the folder holds, and what to do.
    """
    before = read_note(out)
    if before is None:
        return False
    if not resume:
        raise InputError(f"--out {out}: holds a sweep already; add --resume to go on with it, or give another folder")
    if before.get("kind") != note["kind"]:
        raise InputError(f"--resume: {out} holds a {before.get('kind')}, not a {note['kind']}; give another folder")
    if note["kind"] == "search":
        if changed := [key for key in ("over", "metric", "target", "settings") if before.get(key) != note[key]]:
            raise InputError(
                f"--resume: {out} holds another search; what differs: {', '.join(changed)}; give the same options "
                "again (more --trials are fine), or another folder"
            )
    elif gone := [name for name in before["runs"] if name not in note["runs"]]:
        raise InputError(
            f"--resume: {out} holds another sweep, with {len(gone)} runs that this one lacks, such as {gone[0]}; "
            "give its --over again (values may be added), or another folder"
        )
    return True


def require_same(folder: Path, settings: Settings) -> None:
    """Refuse a run's folder that was begun with other settings.

    Raises:
        InputError: names the settings that differ; or the folder cannot be used.
    """
    if not RunFolder(folder).is_run:
        RunFolder(folder).require_room()
        return
    try:
        before = read_toml(folder / "config.toml", folder)
    except (OSError, ValueError) as error:
        raise InputError(f"--resume: {folder / 'config.toml'} cannot be read ({error})") from error
    if changes := differences(before, settings):
        raise InputError(f"--resume: {folder} was run with other settings: {changes}")


@contextmanager
def claimed(out: Path, note: Mapping[str, Any]) -> Iterator[None]:
    """Hold the sweep's folder for this process alone, and write the note of what it holds.

    ``experiment.json`` is written too, so that `atoll report` finds the runs in their order.

    Raises:
        InputError: another process holds it.
        RunError: it cannot be written.
    """
    make_folder(out)
    with locked(out):
        write_note(out, note)
        yield


@contextmanager
def shared(out: Path, note: Mapping[str, Any]) -> Iterator[None]:
    """Begin a sweep's folder, or join the processes that work in it, each on runs of its own.

    Raises:
        InputError: a process holds it for itself, or has begun something else in it meanwhile.
        RunError: it cannot be written.
    """
    make_folder(out)
    with in_turn(out):
        require_folder(out, note, resume=True)
        if read_note(out) != json.loads(to_json(dict(note))):
            write_note(out, note)
    yield


def in_turn(out: Path) -> AbstractContextManager[None]:
    """Hold a sweep's folder for a moment, once others that share it have done the same."""
    return locked(out, _PATIENCE_SECONDS)


def with_runs_before(out: Path, note: Mapping[str, Any]) -> dict[str, Any]:
    """Return a note with the runs that the folder's note names already, for a search, which makes them as it goes."""
    before = read_note(out) or {}
    return {**note, "runs": before.get("runs", {})}


def write_note(out: Path, note: Mapping[str, Any]) -> None:
    """Write ``sweep.json`` and ``experiment.json``.

    Raises:
        RunError: they cannot be written.
    """
    write_atomically(out / "experiment.json", to_json({"runs": list(note["runs"])}))
    write_atomically(out / NOTE, to_json(dict(note)))


def _require_names(members: Sequence[Member]) -> None:
    seen: dict[str, Member] = {}
    for member in members:
        before = seen.setdefault(member.name.casefold(), member)
        if before is not member:
            raise InputError(
                f"--over: {dict(before.values)} and {dict(member.values)} have the same folder name {member.name!r}"
            )


def entries_of(out: Path) -> set[str]:
    """Return the names of what is in a folder; none if it is not there.

    Raises:
        InputError: it is none, or cannot be read.
    """
    try:
        return {entry.name for entry in out.iterdir()}
    except FileNotFoundError:
        return set()
    except NotADirectoryError as error:
        raise InputError(f"--out {out}: is a file, or lies below one; give the path of a new folder") from error
    except OSError as error:
        raise InputError(f"--out {out}: cannot be used ({error.strerror or error})") from error


def read_note(out: Path) -> dict[str, Any] | None:
    """Return a sweep folder's note; None for a folder that is empty or not there.

    Raises:
        InputError: the folder holds something else than a sweep.
    """
    entries = entries_of(out)
    if NOTE not in entries:
        # what a sweep that was killed while it began may have left
        if entries <= {LOCK, "experiment.json", ".experiment.json.part", f".{NOTE}.part"}:
            return None
        raise InputError(f"--out {out}: is not empty and holds no sweep; give the path of a new folder")
    try:
        note = read_json(out / NOTE, out)
        if not isinstance(note, dict) or not isinstance(note.get("runs"), dict):
            raise ValueError("it has no runs")
    except (OSError, ValueError) as error:
        raise InputError(f"--out {out}: its {NOTE} cannot be read ({error}); give another folder") from error
    return note
