"""Finished runs that are kept as evidence: what each measured, a few KB a run, by recipe and scale.

`atoll reproduce` puts kept runs where its own would be, and so takes them as finished, and keeps each run that it
finishes: no run is lost with the machine that made it, and anybody can add some. A kept run names the commit that it
ran at and the digest of its settings; a file that does not fit its recipe any more is refused.
"""

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from atoll.runs.fingerprint import digest, flatten
from atoll.runs.run_folder import RunFolder
from atoll.settings.experiment_file import as_toml
from atoll.settings.validation import Settings, validate
from atoll.support.environment import describe_environment
from atoll.support.errors import InputError, refusing
from atoll.support.files import make_folder, unsealed, write_atomically
from atoll.support.untrusted import parse_json, parse_toml, read_bytes
from atoll.support.wording import slug

PLANS = "clusters.json"
"""The file of a recipe that is not trained: the clustering of each of its runs."""

FORMAT = 1
FILES = ("environment.json", "metrics.jsonl", "summary.json", "config.toml")
"""What is kept of a run's folder; the last one marks it as a run, and is written last."""

_COMMIT = re.compile(r"(?:.+-g)?[0-9a-f]{7,40}")
_MOST_BYTES = 2**26
_WRONG = InputError, zlib.error, ValueError, LookupError, TypeError  # what reading a file of another form raises


def kept_file(place: Path, recipe: str, scale: str, settings: Settings) -> Path:
    """Return the file that keeps a run."""
    return place / recipe / scale / (slug(f"{settings.panel} {settings.label or settings.name}") + ".json.gz")


def keep(file: Path, folder: Path, settings: Settings) -> str:
    """Keep a finished run of a folder; return why it cannot be kept, or an empty text."""
    texts = {name: read_bytes(folder / name, folder).decode() for name in FILES}
    commit = parse_json(texts["environment.json"].encode()).get("git")
    return _pack(file, folder, commit, digest_anywhere(settings), texts)


def keep_plans(file: Path, folder: Path) -> str:
    """Keep a folder's clusterings, made just now; return why they cannot be kept, or an empty text."""
    return _pack(file, folder, describe_environment(0)["git"], "", {PLANS: read_bytes(folder / PLANS, folder).decode()})


def _pack(file: Path, folder: Path, commit: str | None, digested: str, texts: Mapping[str, str]) -> str:
    if not _COMMIT.fullmatch(commit or ""):
        return f"{folder} is not kept as evidence: it ran at no commit ({commit or 'no repository'})"
    content = {"format": FORMAT, "commit": commit, "digest": digested, "files": texts}
    make_folder(file.parent)
    write_atomically(file, gzip.compress(json.dumps(content).encode(), mtime=0))
    return ""


def unpack(file: Path, folder: Path, settings: Settings) -> None:
    """Put a kept run into a folder, which is then a finished run's, with the defaults of settings newer than it."""
    content = _read(file, FILES)
    files = {name: content["files"][name].encode() for name in FILES}
    with refusing(f"{file} cannot be read as a kept run", *_WRONG, hint=f"; {_REMOVE}"):
        ran, ran_at = validate(parse_toml(files["config.toml"])), parse_json(files["environment.json"])["git"]
        rows = [parse_json(line) for line in unsealed(files["metrics.jsonl"])]
        if rows[-1] != parse_json(files["summary.json"])["final"]:
            raise ValueError("its rows do not end as its summary says")
        _require_all(rows, ran.run.evaluate_every)
        if ran_at != content["commit"]:
            raise ValueError(f"its commit is {content['commit']}, but it ran at {ran_at}")
    if not content["digest"] == digest_anywhere(ran) == digest_anywhere(settings):
        raise InputError(f"{file}: its run had other settings than the recipe has now; {_REMOVE}")
    _put(folder, content["files"] | {"config.toml": as_toml(ran)}, FILES)


def _require_all(rows: Sequence[Mapping[str, Any]], every: int) -> None:
    """Reject rows between which one is missing; every event of a recipe's schedule completes as many rounds."""
    if rows[0]["event"]:
        raise ValueError("the row before training is missing")
    for one, other in pairwise(rows):
        if other["event"] > one["event"] + 1 and other["round"] // every > one["round"] // every + 1:
            raise ValueError(f"a row between rounds {one['round']} and {other['round']} is missing")


def unpack_plans(file: Path, folder: Path, held: int = -1) -> None:
    """Put kept clusterings into a folder if there are more than it `held`; those of other settings are made again."""
    files = _read(file, (PLANS,))["files"]
    with refusing(f"{file} cannot be read as kept clusterings", *_WRONG, hint=f"; {_REMOVE}"):
        number = len(parse_json(files[PLANS].encode())["plans"])
    if number > held:
        _put(folder, files, (PLANS,))


def _put(folder: Path, texts: Mapping[str, str], names: Sequence[str]) -> None:
    make_folder(folder)
    for name in names:
        write_atomically(folder / name, texts[name].encode(), flush=False)  # thousands of copies, easily made again


_REMOVE = "remove the file to have it run again"


def _read(file: Path, names: Sequence[str]) -> dict[str, Any]:
    with refusing(f"{file} cannot be read as a kept run", *_WRONG, hint=f"; {_REMOVE}"):
        unpacker = zlib.decompressobj(wbits=31)
        text = unpacker.decompress(read_bytes(file, file.parent), _MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut short or too long")
        content = parse_json(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"it must hold a table with format = {FORMAT}")
        files = content["files"]
        if not {"commit", "digest"} <= content.keys() or not all(isinstance(files[name], str) for name in names):
            raise ValueError(f"it must hold a commit, a digest, and the texts {', '.join(names)}")
    if not _COMMIT.fullmatch(str(content["commit"])):
        raise InputError(f"{file}: its run's commit is {content['commit']!r}, which is none; {_REMOVE}")
    return content


def digest_anywhere(settings: Settings) -> str:
    """Return the digest of a run's settings, wherever it trains."""
    return digest(settings.but("run", device="cpu"))


def as_ran(settings: Settings, folder: RunFolder) -> Settings:
    """Return settings with the device on which the folder's run trained."""
    return settings.but("run", device=flatten(folder.settings_table()).get("run.device", settings.run.device))


def seeds_in(folder: Path, ending: str = ".json.gz") -> int:
    """Return how many seeds the runs of a folder have at most, by names that end so; one without seed counts as one."""
    found = (re.search(rf"seed-(\d{{1,4}}){ending}$", each.name) for each in folder.glob(f"*{ending}"))
    return max((int(each[1]) + 1 if each else 1 for each in found), default=0)
