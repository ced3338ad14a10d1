"""Who is asked: a node that never answers costs everybody the deadline, so it is left alone for a while.

A client that was late so many times in a row is not asked the next 4 times that it would be, after one more late answer
the next 8, and so on up to 64; good results halve that again. It goes by how often a client would be asked, not by the
clock, and is noted event by event, so that a resumed run asks whom it would have asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.files import append_line, line_as_bytes, whole_lines, write_atomically

FIRST_PAUSE, MOST_DOUBLINGS = 4, 4

_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Standing:
    """How a client has answered.

    Attributes:
        strikes: late answers in a row.
        pause: how many times it is not asked, from now on.
        doublings: of the next pause.
    """

    strikes: int = 0
    pause: int = 0
    doublings: int = 0


class Noted(BaseModel):
    """A line of ``strikes.jsonl``: the standing of each client that has one, after an event."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    event: _Count
    clients: dict[_Count, tuple[_Count, _Count, _Count]]


class Attendance:
    """Says who is asked, by how they answered; safe to use from several threads."""

    def __init__(self, strikes: int | None = None, tell: Callable[[str], None] = lambda _: None) -> None:
        """Put aside whoever is late so many times in a row, and say so; None: nobody ever."""
        self.strikes = strikes
        self._tell = tell
        self._standings: dict[int, Standing] = {}
        self._noted: dict[int, Standing] = {}
        self._path: Path | None = None
        self._lock = Lock()

    def begin(self, path: Path, events_done: int) -> None:
        """Go on from how clients stood after so many events, and note there how they stand after later ones.

        Raises:
            InputError: the file is damaged.
            RunError: it cannot be written.
        """
        self._path = path
        try:
            lines = [
                Noted.model_validate_json(line) for line in (whole_lines(path, path.parent) if path.exists() else ())
            ]
        except (OSError, ValueError) as error:
            raise InputError(f"--resume: {path} is damaged; add --overwrite to start again") from error
        kept = [line for line in lines if line.event < events_done]
        if lines:
            write_atomically(path, b"".join(line_as_bytes(line.model_dump()) for line in kept))
        self._standings = {k: Standing(*row) for k, row in kept[-1].clients.items()} if kept else {}
        self._noted = dict(self._standings)

    def note(self, event: int) -> None:
        """Note how clients stand after an event, if that has changed.

        Raises:
            RunError: the file cannot be written.
        """
        with self._lock:
            now = dict(self._standings)
        if self._path is not None and now != self._noted:
            rows = {k: (each.strikes, each.pause, each.doublings) for k, each in now.items()}
            append_line(self._path, Noted(event=event, clients=rows).model_dump())
            self._noted = now

    def take_turn(self, groups: Sequence[Ids]) -> list[set[int]]:
        """Return those of each group that are not asked this time; nobody, if it were all of all groups."""
        with self._lock:
            aside = {client for client, standing in self._standings.items() if standing.pause}
            spared = [aside.intersection(group.tolist()) for group in groups]
            if sum(map(len, spared)) == sum(map(len, groups)):
                return [set() for _ in groups]
            for client in set().union(*spared):
                self._change(client, pause=self._standings[client].pause - 1)
            return spared

    def take(self, late: Mapping[int, str], answered: set[int], good: set[int]) -> None:
        """Count how clients answered a call.

        Where nobody answered nobody is blamed: it is this side, or the network, that is away.

        Args:
            late: those who did not answer in time, with their nodes.
            answered: those who did, whatever they sent.
            good: those whose result counts.
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
                f"again: it is not asked the next {self._standings[client].pause} times"
            )

    def let_back(self, clients: set[int]) -> None:
        """Ask these again, which have shown that they are there."""
        with self._lock:
            for client in clients & self._standings.keys():
                self._change(client, pause=0)

    def of(self, client: int) -> Standing:
        """Return how a client stands."""
        return self._standings.get(client, Standing())

    def _strike(self, client: int) -> bool:
        """Count a late answer; return whether the client is now put aside."""
        before = self.of(client)
        self._change(client, strikes=before.strikes + 1)
        if before.strikes + 1 < (self.strikes or 0):
            return False
        pause = FIRST_PAUSE << before.doublings
        # One more late answer puts it aside again.
        self._change(client, strikes=before.strikes, pause=pause, doublings=min(before.doublings + 1, MOST_DOUBLINGS))
        return True

    def _change(self, client: int, **changes: int) -> None:
        standing = replace(self.of(client), **changes)
        if standing == Standing():
            self._standings.pop(client, None)
        else:
            self._standings[client] = standing


def read_strikes(path: Path) -> dict[int, Standing]:
    """Return how clients stand in a run: those that have been late, by its ``strikes.jsonl``.

    Raises:
        InputError: the file is damaged.
    """
    try:
        lines = _read(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read, or is damaged") from error
    return {client: Standing(*row) for client, row in lines[-1].clients.items()} if lines else {}


def _read(path: Path) -> list[Noted]:
    return [Noted.model_validate_json(line) for line in whole_lines(path, path.parent)] if path.exists() else []
