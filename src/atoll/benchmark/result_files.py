"""Result files: one per suite and method, with its trials and its runs' curves; anybody's can be put beside others.

A file is named SUITE/METHOD.json. An entry names the commit that it ran at and the digest of its settings: a campaign
does not count those that were made with others (`Campaign.results`).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from atoll.report.reading.runs import read_run
from atoll.reproduce.kept_runs import digest_anywhere
from atoll.settings.validation import Settings
from atoll.support.environment import describe_environment
from atoll.support.errors import InputError, refusing
from atoll.support.files import make_folder, write_atomically
from atoll.support.untrusted import read_json

FORMAT = 1
COSTS = ("client_updates", "virtual_time", "bytes")
SCORE = "client_score"
MEASURED = (SCORE, "client_score_std", "p10_client_score", "new_client_score", "ari")


@dataclass(frozen=True)
class Entry:
    """A trial or a run.

    Attributes:
        commit: of the code that ran it; empty: unknown.
        changes: what its method was tuned to, as ``section.key=value`` texts.
        columns: its rows, by column: costs so far, and what was measured; a run that failed has one, without a score.
    """

    digest: str
    commit: str
    seed: int
    changes: list[str]
    columns: dict[str, list[float | None]]

    @property
    def score(self) -> float | None:
        """Its last score; None if it failed."""
        return self.columns[SCORE][-1]

    def is_of(self, make: Callable[[], Settings]) -> bool:
        """Return whether it was made with these settings; they may no longer be valid."""
        with suppress(InputError):
            return digest_anywhere(make()) == self.digest
        return False


@dataclass
class ResultFile:
    """What is known of a method of this `Contestant.code` on a suite; or why it cannot take the suite, `left_out`."""

    suite: str
    method: str
    title: str
    left_out: str = ""
    trials: list[Entry] = field(default_factory=list)
    runs: list[Entry] = field(default_factory=list)
    code: str = ""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.method.replace(':', '.')}.json"

    @property
    def best(self) -> Entry | None:
        """The trial with the best score at its end; None if none came to an end."""
        known = [each for each in self.trials if each.score is not None]
        return max(known, key=lambda each: (each.score or 0.0, each.changes), default=None)

    @property
    def counted(self) -> list[Entry]:
        """The runs with what the best trial had."""
        return [each for each in self.runs if self.best and each.changes == self.best.changes]

    @property
    def why_missing(self) -> str:
        """Why the method is in no table; empty if it is."""
        failed = [str(each.seed) for each in self.counted if each.score is None]
        fault = f"its run failed with seed {', '.join(failed)}" if failed else ""
        return fault if self.counted else self.left_out or "none of its runs is finished yet"

    def has(self, settings: Settings) -> bool:
        """Return whether it holds the trial or run of these settings."""
        return digest_anywhere(settings) in {each.digest for each in (*self.trials, *self.runs)}

    def write(self, place: Path) -> None:
        """Write the file below a folder, its entries in a fixed order, one a line."""
        self.trials.sort(key=lambda each: each.changes)
        self.runs.sort(key=lambda each: (each.seed, each.digest))
        told = {name: getattr(self, name) for name in ("suite", "method", "title", "left_out")}
        told |= {"code": self.code} if self.code else {}
        lists = (
            f'"{name}": [\n' + ",\n".join(json.dumps(asdict(each)) for each in own) + "\n]"
            for name, own in (("trials", self.trials), ("runs", self.runs))
        )
        text = f"{json.dumps({'format': FORMAT, **told})[:-1]},\n{', '.join(lists)}}}\n"
        make_folder(place / self.suite)
        write_atomically(place / self.suite / self.name, text.encode())


def read_results(
    places: Sequence[Path], suite: str, sift: Callable[[ResultFile], ResultFile] = lambda file: file
) -> dict[str, ResultFile]:
    """Return what the folders know of each method; of two entries for the same, or two versions, the first folder's."""
    found: dict[str, ResultFile] = {}
    for own in (sift(_read(file)) for place in places for file in sorted((place / suite).glob("*.json"))):
        held = found.setdefault(own.method, ResultFile(suite, own.method, own.title, code=own.code))
        held.left_out = held.left_out or own.left_out * (own.code == held.code)
        for kept, more in ((held.trials, own.trials), (held.runs, own.runs)):
            known = [(each.seed, each.changes) for each in kept]
            kept += [each for each in more if own.code == held.code and (each.seed, each.changes) not in known]
    return found


def _read(file: Path) -> ResultFile:
    of_content = (ValueError, KeyError, TypeError, AttributeError)
    with refusing(f"{file} cannot be read as a result file", *of_content, hint="; remove it, or make it again"):
        held = read_json(file, file.parent)
        if held["format"] != FORMAT or held["suite"] != file.parent.name:
            raise ValueError(f"it must have format = {FORMAT}, and its folder's suite")
        trials, runs = ([_checked(Entry(**each)) for each in held[name]] for name in ("trials", "runs"))
        suite, method, title, why = (str(held[name]) for name in ("suite", "method", "title", "left_out"))
        return ResultFile(suite, method, title, why, trials, runs, str(held.get("code", "")))


def _checked(entry: Entry) -> Entry:
    rows = {len(values) for values in entry.columns.values()}
    numbers = [value for values in entry.columns.values() for value in values]
    are_numbers = all(value is None or isinstance(value, int | float) for value in numbers)
    if len(rows) != 1 or rows == {0} or not are_numbers or not {*COSTS, SCORE} <= entry.columns.keys():
        raise ValueError(f"an entry needs columns of numbers of one length: {', '.join((*COSTS, SCORE))}")
    return entry


def entry_of(made: Settings, changes: Sequence[str], folder: Path | None) -> Entry:
    """Return the entry of a finished run, whose settings were these before they were cut; None: it failed."""
    columns: dict[str, list[float | None]] = {**{name: [0.0] for name in COSTS}, SCORE: [None]}
    if folder is not None:
        run = read_run(folder)
        rows = {**run.rows, "bytes": run.bytes_sent}
        measured = [name for name in (*COSTS, *MEASURED) if name in rows and np.isfinite(rows[name]).any()]
        columns = {name: [float(f"{x:.6g}") if np.isfinite(x) else None for x in rows[name]] for name in measured}
    return Entry(digest_anywhere(made), str(describe_environment(0)["git"] or ""), made.seed, list(changes), columns)
