"""The run folder: settings, metrics, schedule, environment and summary, written so that nothing is left half done."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from atoll.privacy.ledger import LEDGER, SEAL, Account, begin_ledger
from atoll.runs.data_files import digest_of_file, digests_of
from atoll.runs.fingerprint import as_written, differences
from atoll.schedules.events import Schedule
from atoll.schedules.recorded import head_of
from atoll.schedules.schedule_files import write_schedule
from atoll.settings.experiment_file import resolved
from atoll.settings.sections import Settings
from atoll.support.arrays import Floats
from atoll.support.environment import describe_environment
from atoll.support.errors import InputError, RunError
from atoll.support.files import append_line, line_as_bytes, make_folder, to_json, whole_lines, write_atomically
from atoll.support.lock import LOCK, locked
from atoll.support.untrusted import parse_json, read_json, read_toml

Row = dict[str, Any]
HAPPENED = "happened.jsonl"
CLUSTERINGS = "clusterings.jsonl"
STRIKES = "strikes.jsonl"
CLIENTS = "clients.json"
MEASURED = "measured.json"
FILES = (
    *("config.toml", "summary.json", "metrics.jsonl", HAPPENED, CLUSTERINGS, STRIKES, CLIENTS, MEASURED),
    *("environment.json", "schedule.npz", "checkpoint", LEDGER, SEAL),
)
TRACKED = "trackers"  # what `run.trackers` write; they manage it themselves


def prepare_folders(names: Sequence[str], out: Path, resume: bool, overwrite: bool) -> list[Path]:
    """Return the folder of each run, `out` itself for one run, after checking that all can be used.

    Raises:
        InputError: a folder in which a run can neither begin nor continue.
    """
    if len(names) == 1:
        folders = [out]
    else:
        if (out / "config.toml").exists():
            raise InputError(f"--out {out}: holds a single run, this experiment has {len(names)}; give another folder")
        if _is_taken(out, ("experiment.json", "report", *names)):
            raise InputError(f"--out {out}: holds other files than this experiment's runs; give another folder")
        folders = [out / name for name in names]
    for folder in map(RunFolder, folders):
        if not (resume and folder.is_run):
            folder.require_room(overwrite)
    return folders


def begin_folders(out: Path, names: Sequence[str]) -> None:
    """Write down which runs a folder holds, and in which order; a single run needs no such list.

    Raises:
        RunError: it cannot be written.
    """
    if len(names) == 1:
        return
    make_folder(out)
    write_atomically(out / "experiment.json", to_json({"runs": list(names)}))


def _is_taken(path: Path, allowed: tuple[str, ...]) -> bool:
    """Return whether a path holds anything but a folder with these files, whole, half written or locked.

    Raises:
        InputError: it cannot be read, or is a file, or lies below one.
    """
    try:
        known = {*allowed, *_halves(allowed), LOCK}
        return any(entry.name not in known for entry in path.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise InputError(f"--out {path}: is a file, or lies below one; give the path of a new folder") from error
    except OSError as error:
        raise InputError(f"--out {path}: cannot be used ({error.strerror or error})") from error


def _halves(names: tuple[str, ...]) -> set[str]:
    """Return what `write_atomically` calls these files while it writes them."""
    return {f".{name}.part" for name in names}


def slug(name: str) -> str:
    """Return a name that is safe in file systems and shells: no leading dot, no spaces, no slashes.

    >>> slug("CFL-MGD, seed 3")
    'cfl-mgd-seed-3'
    """
    return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in name.lower()).split()).strip(".-")[:100]


class RunFolder:
    """The folder of one run: its metrics, one row appended per probe, and the events of a live run."""

    def __init__(self, path: Path) -> None:
        """Name the folder; nothing is written."""
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.schedule = path / "schedule.npz"
        self.happened = path / HAPPENED
        self.clusterings = path / CLUSTERINGS
        self.strikes = path / STRIKES
        self.measured = path / MEASURED

    @property
    def is_run(self) -> bool:
        """Whether a run has been begun in the folder; ``config.toml`` is written last, so the rest is there too."""
        return (self.path / "config.toml").is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "summary.json").is_file()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder for one run alone, creating it first; if it stays empty it is removed again.

        Raises:
            InputError: another run holds it; names the process.
            RunError: it cannot be made.
        """
        is_new = not self.path.exists()
        make_folder(self.path)
        try:
            with locked(self.path):
                for half in _halves(FILES):  # a killed run's
                    (self.path / half).unlink(missing_ok=True)
                yield
        finally:
            if is_new:
                with suppress(OSError):
                    self.path.rmdir()

    def require_room(self, overwrite: bool = False) -> None:
        """Refuse a folder in which a run cannot begin; nothing is written.

        Raises:
            InputError: the folder holds a run and `overwrite` is off, or something other than a run.
        """
        if self.is_run and not overwrite:
            raise InputError(
                f"--out {self.path}: holds a run already; add --resume to continue it, --overwrite to replace it, "
                "or give another folder"
            )
        if not self.is_run and _is_taken(self.path, (*FILES, TRACKED)):
            raise InputError(f"--out {self.path}: is not empty and holds no run; give the path of a new folder")

    def create(
        self,
        settings: Settings,
        schedule: Schedule,
        overwrite: bool = False,
        is_live: bool = False,
        replayed: str | None = None,
        account: Account | None = None,
    ) -> None:
        """Write everything that is known before training, or nothing; the folder is there, and claimed.

        Args:
            settings: of the run.
            schedule: its events, or the plan for them.
            overwrite: whether a run in the folder is replaced.
            is_live: whether the events that take place are recorded.
            replayed: checksum of the schedule, if it is not the method's own.
            account: what a ledger is kept of; None: none is.

        Raises:
            InputError: as `require_room` does.
            RunError: it cannot be written.
        """
        self.require_room(overwrite)
        try:
            self._clear()
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
                self._clear()
            if isinstance(error, RunError):
                raise
            raise RunError(f"cannot write to the folder {self.path}: {error.strerror or error}") from error

    def _write_settings(self, settings: Settings) -> None:
        write_atomically(self.path / "config.toml", tomli_w.dumps(resolved(settings)).encode())

    def _clear(self) -> None:
        """Remove a run's files and no others; the one that marks it as a run goes first."""
        for name in FILES:
            place = self.path / name
            if place.is_dir():
                for pattern in ("event-*", ".event-*.part"):
                    for entry in place.glob(pattern):
                        entry.unlink()
                with suppress(OSError):  # the user's own files in it stay
                    place.rmdir()
            else:
                place.unlink(missing_ok=True)
                place.with_name(f".{name}.part").unlink(missing_ok=True)

    def take_over(self, settings: Settings) -> None:
        """Refuse to continue with settings other than the run's; record those that may differ.

        Raises:
            InputError: names the settings that differ; or the folder's settings cannot be read.
        """
        try:
            before = read_toml(self.path / "config.toml", self.path)
        except (OSError, ValueError) as error:
            raise InputError(f"--resume: {self.path / 'config.toml'} cannot be read ({error})") from error
        if changes := differences(before, settings):
            raise InputError(f"--resume: {self.path} was run with other settings: {changes}")
        if before != as_written(settings):
            self._write_settings(settings)

    def append(self, row: Row) -> None:
        """Append one row of metrics; if the disk is full the file keeps its whole rows.

        Raises:
            RunError: the row cannot be written.
        """
        append_line(self.metrics, row)

    def write_clients(self, row: Row, values: Mapping[str, Floats]) -> None:
        """Write what the row's probes measured of single clients, in the place of what earlier ones did.

        Raises:
            RunError: it cannot be written.
        """
        if not values:
            return
        columns = {
            name: {"clients": (known := np.flatnonzero(np.isfinite(each))).tolist(), "values": each[known].tolist()}
            for name, each in values.items()
        }
        write_atomically(self.path / CLIENTS, to_json({"event": row["event"], "round": row["round"]} | columns))

    def rows(self) -> list[Row]:
        """Return the whole rows of metrics so far; one torn by a crash is left out.

        Raises:
            InputError: the file is missing or damaged.
        """
        try:
            return [_whole(parse_json(line)) for line in whole_lines(self.metrics, self.path)]
        except OSError as error:
            raise InputError(f"--resume: {self.metrics} cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise InputError(
                f"--resume: {self.metrics} is damaged ({error}); add --overwrite to start again"
            ) from error

    def keep_rows(self, events_done: int) -> list[Row]:
        """Drop rows later than an event, and a torn last one; return those kept."""
        kept = [row for row in self.rows() if row["event"] <= events_done]
        content = b"".join(map(line_as_bytes, kept))
        if content != self.metrics.read_bytes():
            write_atomically(self.metrics, content)
        return kept

    def summary(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of a finished run.

        Raises:
            InputError: it is missing or damaged.
        """
        path = self.path / "summary.json"
        try:
            summary = read_json(path, self.path)
            if not isinstance(summary, dict):
                raise ValueError("it is no table")
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error})") from error
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, which marks the run as finished."""
        write_atomically(self.path / "summary.json", to_json(dict(summary)))


def _whole(row: Any) -> Row:
    if not isinstance(row, dict) or not isinstance(row.get("event"), int) or "wall_time" not in row:
        raise ValueError("a row has no event")
    return row
