"""The ledger: every release of a run is written down, and flushed to disk, before it happens."""

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
from atoll.support.errors import InputError, RunError
from atoll.support.files import append_line, line_as_bytes, to_json, whole_lines, write_atomically
from atoll.support.untrusted import parse_json, read_json

LEDGER, SEAL = "ledger.jsonl", "ledger.json"
FORMAT = 1


@dataclass(frozen=True)
class Account:
    """What a ledger is kept of.

    Attributes:
        run: checksum of all that the run's bits depend on.
        clients: how many there are.
        mechanism: what is hidden, and how.
        cost: of one release.
        most_releases: that any client may take part in within the budget, as far as was planned; None: there is no
            budget.
        is_fleet: whether noise comes from the system's entropy, so that a release that is made again is another one.
    """

    run: str
    clients: int
    mechanism: Mechanism
    cost: Cost
    most_releases: int | None = None
    is_fleet: bool = False

    @property
    def noise_from(self) -> str:
        """Where noise comes from, in a word."""
        return "system" if self.is_fleet else "seed"

    @property
    def head(self) -> dict[str, Any]:
        """The ledger's first line."""
        return {"format": FORMAT, "run": self.run, "clients": self.clients, "noise_from": self.noise_from} | asdict(
            self.mechanism
        )

    def covers(self, releases: int) -> bool:
        """Whether the budget covers so many releases of one client."""
        most, wanted = self.most_releases, self.mechanism
        if most is None or releases <= most:
            return True
        return self.is_fleet and epsilon_of(self.cost, releases, wanted.delta) <= (wanted.epsilon or 0.0)


class RunLedger:
    """A run's releases, in `LEDGER`: a line an event, each with a checksum of all before it.

    `SEAL` says how many lines there are and the last checksum, so that a ledger that was shortened is found out, unless
    somebody shortened both. A release of a simulation that is made again, as after a crash, is the same to the bit and
    tells nothing new: it is written down once. On a fleet it has noise of its own, and is charged each time.

    Attributes:
        releases: how many releases each client has been charged for, [clients].
    """

    def __init__(self, folder: Path, account: Account) -> None:
        """Begin with no release; `begin_ledger` and `open_ledger` make one with its files."""
        self.releases: Ids = np.zeros(account.clients, np.int64)
        self._folder = folder
        self._account = account
        self._entries: list[dict[str, Any]] = []
        self._charged: dict[int, dict[str, Any]] = {}
        self._chain = _digest("", account.head)

    def note(self, event: Event) -> None:
        """Charge the event's clients for its releases, before these happen.

        Raises:
            RunError: that would exceed the budget, it contradicts what was written before, or it cannot be written.
        """
        entry = {"event": event.index, "releases": event.intra_rounds, "clients": event.cohort.tolist()}
        if (before := self._charged.get(event.index)) is not None and not self._account.is_fleet:
            if before != entry:
                raise RunError(f"{self._folder / LEDGER}: event {event.index} is there with other clients; it must not")
            return
        after = self._add(self.releases.copy(), entry)
        if not self._account.covers(int(after.max(initial=0))):
            raise RunError(
                f"event {event.index}: would exceed privacy.epsilon = {self._account.mechanism.epsilon}, so it "
                "does not take place; what was done before is kept"
            )
        chain = _digest(self._chain, entry)
        append_line(self._folder / LEDGER, entry | {"chain": chain})
        self._take(entry, chain)
        self._seal()

    @property
    def epsilon(self) -> float:
        """What the worst client has spent."""
        return epsilon_of(self._account.cost, int(self.releases.max(initial=0)), self._account.mechanism.delta)

    def summary(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of it; an epsilon that is not finite is None."""
        wanted = self._account.mechanism
        return {
            "trust": wanted.trust,
            "adjacency": wanted.adjacency,
            "clip": wanted.clip,
            "noise": wanted.noise,
            "delta": wanted.delta,
            "budget": wanted.epsilon,
            "epsilon": finite(self.epsilon),
            "worst_client": int(self.releases.argmax()),
            "worst_client_releases": int(self.releases.max(initial=0)),
            "noise_from": self._account.noise_from,
            "is_private": self._account.is_fleet and self._account.cost.is_private,
        }

    def replay(self, lines: list[bytes]) -> None:
        """Take what a file holds, its head first.

        Raises:
            ValueError: it is not as it was written, or another run's.
        """
        head, *entries = (_as_dict(parse_json(line)) for line in lines)
        if head != json.loads(json.dumps(self._account.head)):
            raise ValueError("it is of another run")
        for number, entry in enumerate(entries, 2):
            chain = entry.pop("chain", None)
            if chain != _digest(self._chain, entry):
                raise ValueError(f"line {number} does not follow from those before it")
            self._take(entry, chain)

    def require_whole(self, events_done: int) -> None:
        """Refuse a ledger from which something is missing, by its seal and by the events that are over.

        Raises:
            ValueError: says what.
        """
        seal = _as_dict(read_json(self._folder / SEAL, self._folder))
        lines = len(self._entries)
        if seal.get("lines") not in (lines, lines - 1):
            raise ValueError(f"it has {lines} releases, of {seal.get('lines')} that were made")
        if seal["lines"] == lines and seal.get("chain") != self._chain:
            raise ValueError("its seal is another one's")
        if missing := sorted(set(range(events_done)) - self._charged.keys()):
            raise ValueError(f"event {missing[0]}, which is over, is missing")

    def write(self) -> None:
        """Write all of it anew, without a line that a crash has torn."""
        entries, chain = [], _digest("", self._account.head)
        for entry in self._entries:
            chain = _digest(chain, entry)
            entries.append(entry | {"chain": chain})
        write_atomically(self._folder / LEDGER, b"".join(map(line_as_bytes, [self._account.head, *entries])))
        self._seal()

    def _take(self, entry: dict[str, Any], chain: str) -> None:
        self._add(self.releases, entry)
        self._entries.append(entry)
        self._charged[entry["event"]], self._chain = entry, chain

    def _add(self, counts: Ids, entry: Mapping[str, Any]) -> Ids:
        np.add.at(counts, np.array(entry["clients"], np.int64), entry["releases"])
        return counts

    def _seal(self) -> None:
        write_atomically(self._folder / SEAL, to_json({"lines": len(self._entries), "chain": self._chain}))


def begin_ledger(folder: Path, account: Account) -> RunLedger:
    """Write a ledger without releases; return it.

    Raises:
        RunError: it cannot be written.
    """
    ledger = RunLedger(folder, account)
    ledger.write()
    return ledger


def open_ledger(folder: Path, account: Account, events_done: int) -> RunLedger:
    """Return the ledger of a run that goes on after so many events.

    Raises:
        InputError: it is gone, shortened, changed, or of another run.
    """
    path, ledger = folder / LEDGER, RunLedger(folder, account)
    try:
        ledger.replay(whole_lines(path, folder))
        ledger.require_whole(events_done)
    except OSError as error:
        raise InputError(
            f"--resume: {error.filename or path} cannot be read ({error.strerror or error}); without its ledger nobody "
            "knows what a private run has spent, so it cannot go on"
        ) from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"--resume: {path} is not this run's whole ledger ({error}), so it cannot go on") from error
    ledger.write()
    return ledger


def _digest(before: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256((before + json.dumps(entry, sort_keys=True)).encode()).hexdigest()


def _as_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no table")
    return value
