"""The files of a run's folder: their names, and how they are removed."""

from contextlib import suppress
from pathlib import Path

from atoll.privacy.ledger import LEDGER, SEAL
from atoll.support.errors import InputError, reason_of
from atoll.support.lock import LOCK

HAPPENED = "happened.jsonl"
CLUSTERINGS = "clusterings.jsonl"
STRIKES = "strikes.jsonl"
REFUSED = "refused.jsonl"
CLIENTS = "clients.json"
MEASURED = "measured.json"
FILES = (
    *("config.toml", "summary.json", "metrics.jsonl", HAPPENED, CLUSTERINGS, STRIKES, REFUSED, CLIENTS, MEASURED),
    *("environment.json", "schedule.npz", "checkpoint", LEDGER, SEAL),
)
_STEMS = ("curves-*", "parameter-error", "probe-*", "clients-*", "identity-*", "against-*")
_MADE = (  # from a run, by `atoll export` and `atoll report`
    *(f"{stem}.{end}" for stem in ("model", "model-cluster-*") for end in ("safetensors", "pt", "onnx")),
    *(f"report/{stem}.{end}" for stem in _STEMS for end in ("png", "svg", "pdf")),
    *(f"report/{stem}.{end}" for stem in ("table", "spread", "targets") for end in ("md", "tex", "csv", "json")),
)
TRACKED = "trackers"  # written and managed by `run.trackers`


def entries_of(path: Path) -> set[str]:
    """Return the names of a folder's entries; none if it does not exist."""
    try:
        return {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return set()
    except NotADirectoryError as error:
        raise InputError(f"--out {path}: is a file, or lies below one; give the path of a new folder") from error
    except OSError as error:
        raise InputError(f"--out {path}: cannot be used ({reason_of(error)})") from error


def is_taken(path: Path, allowed: tuple[str, ...]) -> bool:
    """Return whether a path is anything but a folder of these files, complete, partly written or locked."""
    return bool(entries_of(path) - {*allowed, *halves(allowed), LOCK})


def halves(names: tuple[str, ...]) -> set[str]:
    """Return the names of these files while `write_atomically` writes them."""
    return {f".{name}.part" for name in names}


def clear(path: Path) -> None:
    """Remove what was made from a run and then its own files, first the one that marks it as a run."""
    for place in (each for pattern in _MADE for each in path.glob(pattern)):
        place.unlink()
    with suppress(OSError):
        (path / "report").rmdir()
    for name in FILES:
        place = path / name
        if place.is_dir():
            for pattern in ("event-*", "clients-*.safetensors", ".event-*.part", ".clients-*.part"):
                for entry in place.glob(pattern):
                    entry.unlink()
            with suppress(OSError):  # it may hold the user's files, which stay
                place.rmdir()
        else:
            place.unlink(missing_ok=True)
            place.with_name(f".{name}.part").unlink(missing_ok=True)
