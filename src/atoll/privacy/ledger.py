"""The ledger: every release of a run is recorded, and flushed to disk, before it happens."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atoll.privacy.accounting import epsilon_of
from atoll.privacy.mechanism import Cost, Mechanism
from atoll.privacy.privacy_plan import finite
from atoll.schedules.events import Event
from atoll.support.arrays import Ids
from atoll.support.errors import RunError, refusing
from atoll.support.files import append_line, line_as_bytes, to_json, whole_lines, write_atomically
from atoll.support.untrusted import parse_json, read_json

LEDGER, SEAL = "ledger.jsonl", "ledger.json"
FORMAT = 1


@dataclass(frozen=True)
class Account:
    """What a ledger accounts for.

    Attributes:
        run: checksum of everything that affects the run's bits.
        cost: of one release.
        most_releases: planned maximum number of releases per client within the budget; None: there is no budget.
        is_fleet: whether noise comes from the system's entropy, so that a repeated release is a new one.
    """

    run: str
    clients: int
    mechanism: Mechanism
    cost: Cost
    most_releases: int | None = None
    is_fleet: bool = False

    @property
    def noise_from(self) -> str:
        """The source of the noise."""
        return "system" if self.is_fleet else "seed"

    @property
    def head(self) -> dict[str, Any]:
        """The ledger's first line."""
        return {"format": FORMAT, "run": self.run, "clients": self.clients, "noise_from": self.noise_from} | asdict(
            self.mechanism
        )

    def covers(self, releases: int) -> bool:
        """Whether the budget covers this number of releases of one client."""
        most, wanted = self.most_releases, self.mechanism
        if most is None or releases <= most:
            return True
        return epsilon_of(self.cost, releases, wanted.delta) <= (wanted.epsilon or 0.0)


class RunLedger:
    """A run's releases, in `LEDGER`: one line per event, each with a checksum of all lines before it.

    `SEAL` holds the number of lines and the last checksum, so that a truncated ledger is detected unless both files
    were altered. In simulation a repeated release, as after a crash, is bit-identical and reveals nothing new, so it is
    recorded once. On a fleet its noise is new, and it is charged each time.

    Attributes:
        releases: number of releases that each client has been charged for, [clients].
    """

    def __init__(self, folder: Path, account: Account) -> None:
        """Begin without releases; `begin_ledger` and `open_ledger` make a ledger with its files."""
        self.releases: Ids = np.zeros(account.clients, np.int64)
        self._folder = folder
        self._account = account
        self._entries: list[dict[str, Any]] = []
        self._charged: dict[int, dict[str, Any]] = {}
        self._chain = _digest("", account.head)

    def note(self, event: Event) -> None:
        """Charge the event's clients for its releases, before these happen."""
        entry = {"event": event.index, "releases": event.intra_rounds, "clients": event.cohort.tolist()}
        if (before := self._charged.get(event.index)) is not None and not self._account.is_fleet:
            if before != entry:
                raise RunError(f"{self._folder / LEDGER}: event {event.index} is already recorded with other clients")
            return
        after = self._add(self.releases.copy(), entry)
        if not self._account.covers(int(after.max(initial=0))):
            raise RunError(
                f"event {event.index}: would exceed privacy.epsilon = {self._account.mechanism.epsilon}, so it "
                "does not take place; earlier results are kept"
            )
        chain = _digest(self._chain, entry)
        append_line(self._folder / LEDGER, entry | {"chain": chain})
        self._take(entry, chain)
        self._seal()

    @property
    def epsilon(self) -> float:
        """The epsilon that the worst client has spent."""
        return epsilon_of(self._account.cost, int(self.releases.max(initial=0)), self._account.mechanism.delta)

    def summary(self) -> dict[str, Any]:
        """Return its entries in ``summary.json``; an infinite epsilon becomes None."""
        wanted = self._account.mechanism
        return {
            **{name: getattr(wanted, name) for name in ("trust", "adjacency", "clip", "noise", "delta")},
            "budget": wanted.epsilon,
            "epsilon": finite(self.epsilon),
            "worst_client": int(self.releases.argmax()),
            "worst_client_releases": int(self.releases.max(initial=0)),
            "noise_from": self._account.noise_from,
            "is_private": self._account.is_fleet and self._account.cost.is_private,
        }

    def replay(self, lines: list[bytes]) -> None:
        """Read the lines of a file, its head first."""
        head, *entries = (_as_dict(parse_json(line)) for line in lines)
        if head != json.loads(json.dumps(self._account.head)):
            raise ValueError("it is another run's")
        for number, entry in enumerate(entries, 2):
            chain = entry.pop("chain", None)
            if chain != _digest(self._chain, entry):
                raise ValueError(f"line {number} does not match the lines before it")
            self._take(entry, chain)

    def require_whole(self, events_done: int) -> None:
        """Reject a ledger from which something is missing, by its seal and the completed events."""
        seal = _as_dict(read_json(self._folder / SEAL, self._folder))
        lines = len(self._entries)
        if seal.get("lines") not in (lines, lines - 1):
            raise ValueError(f"it has {lines} of {seal.get('lines')} releases")
        if seal["lines"] == lines and seal.get("chain") != self._chain:
            raise ValueError("its seal belongs to another ledger")
        if missing := sorted(set(range(events_done)) - self._charged.keys()):
            raise ValueError(f"event {missing[0]}, which is completed, is missing")

    def write(self) -> None:
        """Rewrite the file, without a line cut off by a crash."""
        write_atomically(self._folder / LEDGER, b"".join(map(line_as_bytes, [self._account.head, *self._entries])))
        self._seal()

    def _take(self, entry: dict[str, Any], chain: str) -> None:
        self._add(self.releases, entry)
        self._entries.append(entry | {"chain": chain})
        self._charged[entry["event"]], self._chain = entry, chain

    def _add(self, counts: Ids, entry: Mapping[str, Any]) -> Ids:
        np.add.at(counts, np.array(entry["clients"], np.int64), entry["releases"])
        return counts

    def _seal(self) -> None:
        write_atomically(self._folder / SEAL, to_json({"lines": len(self._entries), "chain": self._chain}))


def begin_ledger(folder: Path, account: Account) -> RunLedger:
    """Write a ledger without releases, and return it."""
    ledger = RunLedger(folder, account)
    ledger.write()
    return ledger


def open_ledger(folder: Path, account: Account, events_done: int) -> RunLedger:
    """Return the ledger of a run that resumes after this number of events."""
    path, ledger = folder / LEDGER, RunLedger(folder, account)
    hint = "; without its ledger a private run cannot continue, since what it has spent is unknown"
    with refusing(f"--resume: {path} is not this run's whole ledger", ValueError, LookupError, TypeError, hint=hint):
        ledger.replay(whole_lines(path, folder))
        ledger.require_whole(events_done)
    ledger.write()
    return ledger


def _digest(before: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256((before + json.dumps(entry, sort_keys=True)).encode()).hexdigest()


def _as_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not a table")
    return value
