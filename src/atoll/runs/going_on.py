"""Checks before a run resumes, against its environment.json: kind of run, data and schedule."""

from contextlib import suppress
from typing import Any

from atoll.runs.data_files import digest_of_file, digests_of, files_of
from atoll.runs.run_files import HAPPENED
from atoll.runs.run_folder import RunFolder
from atoll.schedules.events import Schedule
from atoll.schedules.schedule_files import digest_of, write_schedule
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.untrusted import read_json


def require_kind(folder: RunFolder, is_live: bool, replayed: Schedule | None) -> None:
    """Reject a run of another kind: on a fleet or not, with the method's schedule or another."""
    if is_live and not folder.happened.exists():
        raise InputError(f"--resume: {folder.path} was run in simulation, and cannot continue on a fleet")
    if not is_live and folder.happened.exists():
        raise InputError(
            f"--resume: {folder.path} was run on a fleet, and can only continue on one; to simulate it, give its "
            f"{HAPPENED} as --schedule of another run"
        )
    before = _environment(folder).get("replayed")
    if before != (None if replayed is None else digest_of(replayed)):
        how = "without" if before is None else "with another" if replayed else "with a"
        raise InputError(f"--resume: {folder.path} was run {how} --schedule; continue in the same way")


def require_data(folder: RunFolder, settings: Settings) -> None:
    """Reject data files other than those the run was started with."""
    if (before := _environment(folder).get("data")) is None:  # written by an older version
        return
    now, files = digests_of(settings), files_of(settings)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            what = "is new" if name not in before else "is missing" if name not in now else "has changed"
            raise InputError(
                f"--resume: {name} ({files.get(name, settings.data.root)}) {what} since {folder.path} was started; "
                "undo that, or add --overwrite to start again"
            )


def mend_schedule(folder: RunFolder, schedule: Schedule) -> list[str]:
    """Rewrite the schedule if its file is missing or damaged, and say so; resuming does not read it."""
    with suppress(OSError):
        if digest_of_file(folder.schedule) == _environment(folder).get("schedule"):
            return []
    write_schedule(folder.schedule, schedule)
    return [f"{folder.schedule} was missing or damaged, and has been rewritten"]


def _environment(folder: RunFolder) -> dict[str, Any]:
    """Return the content of ``environment.json``."""
    path = folder.path / "environment.json"
    try:
        environment = read_json(path, folder.path)
        if not isinstance(environment, dict) or not isinstance(environment.get("data", {}), dict):
            raise ValueError("it is not as it was written")
    except (OSError, ValueError) as error:
        raise InputError(f"--resume: {path} is missing or damaged") from error
    return environment
