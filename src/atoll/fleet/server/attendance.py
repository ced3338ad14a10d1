"""Who is asked: a node that never answers makes everyone wait for the deadline, so it is skipped for a while.

After a number of late answers in a row, a client is skipped the next 4 times, after one more late answer the next 8
times, and so on up to 64; each good result halves the number of doublings. Pauses count requests, not seconds, and are
recorded event by event, so that a resumed run asks the same clients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Literal

from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.files import append_line, line_as_bytes, whole_lines, write_atomically
from atoll.support.limits import Count, StrictRecord

FIRST_PAUSE, MOST_DOUBLINGS = 4, 4


@dataclass(frozen=True)
class Standing:
    """A client's record: late answers in a row, times that it is still skipped, doublings of its next pause."""

    strikes: int = 0
    pause: int = 0
    doublings: int = 0


class Noted(StrictRecord):
    """A line of ``strikes.jsonl``: clients' standings after an event."""

    event: Count
    clients: dict[Count, tuple[Count, Count, Count]]


class Attendance:
    """Decides who is asked, from earlier answers; thread-safe."""

    def __init__(self, strikes: int | Literal["off"] = "off", tell: Callable[[str], None] = lambda _: None) -> None:
        """Set aside clients after this many consecutive late answers, and report it; off: never."""
        self.strikes = None if strikes == "off" else strikes
        self._tell = tell
        self._standings: dict[int, Standing] = {}
        self._noted: dict[int, Standing] = {}
        self._path: Path | None = None
        self._lock = Lock()

    def begin(self, path: Path, events_done: int) -> None:
        """Restore the standings after this many events, and record later ones in the same file."""
        self._path = path
        try:
            lines = _read(path)
        except (OSError, ValueError) as error:
            raise InputError(f"--resume: {path} is damaged; add --overwrite to start again") from error
        kept = [line for line in lines if line.event < events_done]
        if path.exists():
            write_atomically(path, b"".join(line_as_bytes(line.model_dump()) for line in kept))
        self._noted = {k: Standing(*row) for k, row in kept[-1].clients.items()} if kept else {}
        self._standings = {} if self.strikes is None else dict(self._noted)

    def note(self, event: int) -> None:
        """Record the standings after an event, if they changed."""
        with self._lock:
            now = dict(self._standings)
        if self._path is not None and now != self._noted:
            rows = {k: (each.strikes, each.pause, each.doublings) for k, each in now.items()}
            append_line(self._path, Noted(event=event, clients=rows).model_dump())
            self._noted = now

    def take_turn(self, groups: Sequence[Ids]) -> list[set[int]]:
        """Return the clients of each group that are skipped this time; none, if that would be everyone."""
        with self._lock:
            aside = {client for client, standing in self._standings.items() if standing.pause}
            spared = [aside.intersection(group.tolist()) for group in groups]
            if sum(map(len, spared)) == sum(map(len, groups)):
                return [set() for _ in groups]
            for client in set().union(*spared):
                self._change(client, pause=self._standings[client].pause - 1)
            return spared

    def take(self, late: Mapping[int, str], answered: set[int], good: set[int]) -> None:
        """Record who was late in a call, at which node, who answered anything, and whose results count.

        If nobody answered, nobody is blamed: the fault is on this side or in the network.
        """
        if self.strikes is None:
            return
        with self._lock:
            for client in answered & self._standings.keys():
                doublings = self._standings[client].doublings
                self._change(client, strikes=0, pause=0, doublings=doublings // 2 if client in good else doublings)
            put_aside = [client for client in late if self._strike(client)] if answered else []
        for client in put_aside:
            self._tell(
                f"node {late[client]!r} (client {client}) did not answer in time, {self.strikes} times in a row or "
                f"again: it is not asked the next {self.of(client).pause} times"
            )

    def let_back(self, clients: set[int]) -> None:
        """Stop skipping these clients, which have shown that they are there."""
        with self._lock:
            for client in clients & self._standings.keys():
                self._change(client, pause=0)

    def of(self, client: int) -> Standing:
        """Return a client's standing."""
        return self._standings.get(client, Standing())

    def _strike(self, client: int) -> bool:
        """Count a late answer; return whether the client is now set aside."""
        before = self.of(client)
        self._change(client, strikes=before.strikes + 1)
        if before.strikes + 1 < (self.strikes or 0):
            return False
        pause = FIRST_PAUSE << before.doublings
        # One more late answer sets it aside again.
        self._change(client, strikes=before.strikes, pause=pause, doublings=min(before.doublings + 1, MOST_DOUBLINGS))
        return True

    def _change(self, client: int, **changes: int) -> None:
        standing = replace(self.of(client), **changes)
        if standing == Standing():
            self._standings.pop(client, None)
        else:
            self._standings[client] = standing


def read_strikes(path: Path) -> dict[int, Standing]:
    """Return the standings of clients that have been late in a run, from its ``strikes.jsonl``."""
    try:
        lines = _read(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read, or is damaged") from error
    return {client: Standing(*row) for client, row in lines[-1].clients.items()} if lines else {}


def _read(path: Path) -> list[Noted]:
    return [Noted.model_validate_json(line) for line in whole_lines(path, path.parent)] if path.exists() else []
