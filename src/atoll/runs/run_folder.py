"""The run folder: settings, metrics, schedule, environment and summary, each written completely or not at all."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from atoll.experiment.start_model import require_kept
from atoll.privacy.ledger import Account, begin_ledger
from atoll.runs.data_files import digest_of_file, digests_of
from atoll.runs.fingerprint import as_written, differences, flatten
from atoll.runs.run_files import (
    CLIENTS,
    CLUSTERINGS,
    FILES,
    HAPPENED,
    MEASURED,
    REFUSED,
    STRIKES,
    TRACKED,
    clear,
    entries_of,
    halves,
    is_taken,
)
from atoll.schedules.events import Schedule
from atoll.schedules.recorded import head_of
from atoll.schedules.schedule_files import write_schedule
from atoll.settings.experiment_file import as_toml
from atoll.settings.validation import Settings
from atoll.support.arrays import Floats
from atoll.support.environment import describe_environment
from atoll.support.errors import InputError, RunError, reason_of, refusing
from atoll.support.files import append_line, line_as_bytes, to_json, whole_lines, write_atomically
from atoll.support.lock import claimed
from atoll.support.untrusted import parse_json, read_json, read_toml

Row = dict[str, Any]


def require_own_file(option: str, path: Path) -> None:
    """Reject a path that is a folder, or one of a run's own files."""
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; give the path of a file")
    if path.name in FILES and RunFolder(path.parent).is_run:
        raise InputError(f"{option} {path}: is a file of the run in {path.parent}; give another path")


class RunFolder:
    """The folder of one run: its metrics, appended row by row, and the events of a live run."""

    def __init__(self, path: Path) -> None:
        """Name the folder; write nothing."""
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.schedule = path / "schedule.npz"
        self.happened = path / HAPPENED
        self.clusterings = path / CLUSTERINGS
        self.strikes = path / STRIKES
        self.refused = path / REFUSED
        self.measured = path / MEASURED

    @property
    def is_run(self) -> bool:
        """Whether the folder holds a run; ``config.toml`` is written last, so the rest exists too."""
        return (self.path / "config.toml").is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "summary.json").is_file()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the folder for one run, creating it first; remove it again if it stays empty."""
        with claimed(self.path):
            for half in halves(FILES):  # left by a killed run
                (self.path / half).unlink(missing_ok=True)
            yield

    def require_room(self, overwrite: bool = False) -> None:
        """Reject a folder in which a run cannot start; write nothing."""
        if self.is_run and not overwrite:
            raise InputError(
                f"--out {self.path}: already holds a run; add --resume to continue it, --overwrite to replace it, "
                "or give another folder"
            )
        if not self.is_run and is_taken(self.path, (*FILES, TRACKED)):
            raise InputError(f"--out {self.path}: is not empty and is not a run's folder; give the path of a new one")
        if not self.is_run and not overwrite and self._has_results():
            raise InputError(
                f"--out {self.path}: holds rows or checkpoints of a run, but no config.toml; put it back to continue "
                "the run, add --overwrite to replace it, or give another folder"
            )

    def _has_results(self) -> bool:
        """Whether the folder holds more than what a start that was killed leaves."""
        rows = self.metrics.stat().st_size if self.metrics.is_file() else 0
        return bool(rows or self.is_finished or entries_of(self.path / "checkpoint"))

    def create(
        self,
        settings: Settings,
        schedule: Schedule,
        overwrite: bool = False,
        is_live: bool = False,
        replayed: str | None = None,
        account: Account | None = None,
    ) -> None:
        """Write everything known before training, or nothing; the folder exists and is claimed.

        A live run's schedule is as planned; its actual events are recorded later. `replayed` is the checksum of a
        schedule that replaces the method's; `account` is the privacy ledger's, if there is one.
        """
        self.require_room(overwrite)
        if self.is_run:
            require_kept(settings.model.start, self.path)
        try:
            clear(self.path)
            (self.path / "checkpoint").mkdir(exist_ok=True)
            if is_live:
                write_atomically(self.happened, line_as_bytes(head_of(schedule)))
            write_schedule(self.schedule, schedule)
            environment = describe_environment(settings.seed) | ({"replayed": replayed} if replayed else {})
            environment |= {"schedule": digest_of_file(self.schedule), "data": digests_of(settings)}
            write_atomically(self.path / "environment.json", to_json(environment))
            write_atomically(self.metrics, b"")
            if account is not None:
                begin_ledger(self.path, account)
            self._write_settings(settings)
        except (OSError, RunError) as error:
            with suppress(OSError):
                clear(self.path)
            if isinstance(error, RunError):
                raise
            raise RunError(f"cannot write to the folder {self.path}: {reason_of(error)}") from error

    def _write_settings(self, settings: Settings) -> None:
        write_atomically(self.path / "config.toml", as_toml(settings).encode())

    def settings_table(self) -> dict[str, Any]:
        """Return the settings of the folder's run."""
        with refusing(f"--resume: {self.path / 'config.toml'} cannot be read", ValueError):
            return read_toml(self.path / "config.toml", self.path)

    def stopped_otherwise(self, settings: Settings) -> str:
        """Return why the finished run stopped early, if `run.stop_at` was another one then; or else nothing."""
        is_same = flatten(self.settings_table()).get("run.stop_at") == settings.run.stop_at
        return "" if is_same else str(self.summary().get("stopped", ""))

    def lengthen(self, settings: Settings, schedule: Schedule) -> None:
        """Give the run another schedule, and make it unfinished; killed at any point, it can be lengthened again."""
        (self.path / "summary.json").unlink(missing_ok=True)
        write_schedule(self.schedule, schedule)
        place = self.path / "environment.json"
        environment = read_json(place, self.path) | {"schedule": digest_of_file(self.schedule)}
        write_atomically(place, to_json(environment))
        self._write_settings(settings)

    def take_over(self, settings: Settings) -> None:
        """Reject settings other than the run's; record those that may differ."""
        if self.require_same(settings) != as_written(settings):
            self._write_settings(settings)

    def require_same(self, settings: Settings) -> dict[str, Any]:
        """Return the settings of the folder's run, after comparing them with these."""
        before = self.settings_table()
        if changes := differences(before, settings):
            raise InputError(f"--resume: {self.path} was run with other settings: {changes}")
        return before

    def append(self, row: Row) -> None:
        """Append one row of metrics; if the disk is full, the file keeps its complete rows."""
        append_line(self.metrics, row)

    def write_clients(self, row: Row, values: Mapping[str, Floats]) -> None:
        """Write the row's metrics of single clients, replacing earlier ones."""
        columns = {
            name: {"clients": (known := np.flatnonzero(np.isfinite(each))).tolist(), "values": each[known].tolist()}
            for name, each in values.items()
        }
        if columns:
            write_atomically(self.path / CLIENTS, to_json({"event": row["event"], "round": row["round"]} | columns))

    def rows(self) -> list[Row]:
        """Return the complete rows of metrics so far; one cut short by a crash is left out."""
        told = f"--resume: {self.metrics}"
        damaged = refusing(f"{told} is damaged", ValueError, hint="; add --overwrite to start again")
        with damaged, refusing(f"{told} cannot be read"):
            return [_whole(parse_json(line)) for line in whole_lines(self.metrics, self.path)]

    def keep_rows(self, rows: Sequence[Row]) -> None:
        """Drop all other rows, and an incomplete last one."""
        content = b"".join(map(line_as_bytes, rows))
        if content != self.metrics.read_bytes():
            write_atomically(self.metrics, content)

    def summary(self) -> dict[str, Any]:
        """Return the content of a finished run's ``summary.json``."""
        path = self.path / "summary.json"
        with refusing(f"{path} cannot be read", ValueError):
            summary: Any = read_json(path, self.path)
            if not isinstance(summary, dict):
                raise ValueError("it is not a table")
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, which marks the run as finished."""
        write_atomically(self.path / "summary.json", to_json(dict(summary)))


def _whole(row: Any) -> Row:
    if not isinstance(row, dict) or not isinstance(row.get("event"), int) or "wall_time" not in row:
        raise ValueError("a row has no event")
    return row
