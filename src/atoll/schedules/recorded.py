"""What actually happened in a run, as lines of JSON from which its schedule can be rebuilt.

The first line, the head, has what all events have in common. Each other line has all fields of an `Event`, how many
rounds are complete after it, and how many results were left out, by reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from atoll.schedules.events import Event, Merge, Mix, Schedule
from atoll.schedules.packed import pack
from atoll.support.errors import InputError
from atoll.support.limits import StrictRecord
from atoll.support.untrusted import parse_json

FORMAT = 2

SINGLE = ("round", "seconds", "intra_rounds", "models_down", "models_up", "absent", "dropped", "late", "regroups")
"""Fields of an event with one value each."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(allow_inf_nan=False)]


class _Head(StrictRecord):
    format: int
    clusters: Annotated[int, Field(ge=1, lt=2**63)]
    has_server: bool
    rounds: Count = 0  # in schedule.npz alone


class _Mix(StrictRecord):
    server: Share
    published: list[tuple[Count, Share]]
    updates: list[tuple[Count, Share]] = Field(default_factory=list)

    def read(self) -> Mix:
        return Mix(self.server, tuple(self.published), tuple(self.updates))


class WrittenMerge(StrictRecord):
    """How an event merges models, as it is written."""

    server: _Mix | None
    starts: list[tuple[Count, _Mix]]

    def read(self, read: Callable[[_Mix], Mix] = _Mix.read) -> Merge:
        """Return the merge; `read` may give equal mixes as one object."""
        server = None if self.server is None else read(self.server)
        return server, tuple((cluster, read(mix)) for cluster, mix in self.starts)


class _Line(WrittenMerge):
    event: Count
    round: Count
    rounds_done: Count
    seconds: Seconds
    active: list[Count]
    began: list[Seconds]
    cohort: list[Count]
    clusters: list[Count] | None
    weights: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    intra_rounds: Annotated[int, Field(ge=1, lt=2**63)]
    staleness: list[Count]
    models_down: Count
    models_up: Count
    absent: Count
    dropped: Count
    late: Count
    regroups: bool = False
    answered: list[list[Annotated[int, Field(ge=0, le=1)]]] | None
    drawn_as: tuple[Count, Count] | None
    refused: dict[str, Count]


def head_of(schedule: Schedule) -> dict[str, Any]:
    """Return the first line: what all events have in common."""
    return {"format": FORMAT, "clusters": int(schedule.clusters), "has_server": schedule.has_server}


def line_of(event: Event, rounds_done: int, refused: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return an event as its line, with the rounds done after it, and how many results it left out, by reason."""
    line = {"event": _plain(event.index), "round": _plain(event.round), "rounds_done": _plain(rounds_done)}
    line |= {field.name: _plain(getattr(event, field.name)) for field in fields(Event)[2:]}
    if not event.regroups:
        del line["regroups"]
    return line | {"refused": dict(refused or {})}


def _plain(value: Any) -> Any:
    """Return a field of an event as JSON has it."""
    if isinstance(value, np.ndarray):
        return (value.astype(int) if value.dtype == bool else value).tolist()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return mix_of(value) if isinstance(value, Mix) else value


def lines_of(schedule: Schedule) -> Iterator[dict[str, Any]]:
    """Yield a whole schedule's lines, the head first."""
    yield head_of(schedule)
    for event in schedule.events:
        yield line_of(event, schedule.rounds_done(event.index + 1))


def write_merge(event: Event) -> dict[str, Any]:
    """Return how an event merges models, as `WrittenMerge` reads it."""
    return {"server": _plain(event.server), "starts": _plain(event.starts)}


def mix_of(mix: Mix) -> dict[str, Any]:
    """Return a mix as it is written, with updates only if there are any."""
    written = {"server": _plain(mix.server), "published": _plain(mix.published)}
    return written | {"updates": _plain(mix.updates)} if mix.updates else written


def read_lines(lines: Iterable[bytes], where: str) -> Schedule:
    """Return the schedule of these lines."""
    head: _Head | None = None
    shared: dict[str, Mix] = {}
    events: list[Event] = []
    rounds = 0
    for number, text in enumerate(lines, 1):
        try:
            if head is None:
                head = read_head(text)
                continue
            line = _Line.model_validate_json(text)
            event = _event_of(line, shared)
            if fault := why_wrong(event, events[-1] if events else None, head.clusters):
                raise ValueError(fault)
            events.append(event)
            rounds = line.rounds_done
        except ValidationError as error:
            first = first_fault(error)
            raise InputError(f"{where}: line {number} is not an event of a run ({first})") from error
        except (ValueError, InputError) as error:  # Mix refuses weights that do not sum to one
            raise InputError(f"{where}: line {number} is damaged ({error})") from error
    if head is None or not events:
        raise InputError(f"{where}: holds no event")
    return Schedule(pack(events), head.clusters, rounds, head.has_server)


def read_head(text: bytes) -> _Head:
    """Return the head of a written schedule."""
    said = None
    with suppress(ValueError):
        said = parse_json(text)
    if isinstance(said, dict) and isinstance(said.get("format"), int) and said["format"] != FORMAT:
        raise ValueError(f"its format is {said['format']}, but this version of Atoll reads {FORMAT}")
    return _Head.model_validate_json(text)


def first_fault(error: ValidationError) -> str:
    """Return the first fault and its location, in a few words."""
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc'])) or 'its text'}: {fault['msg'].lower()}"


def why_wrong(event: Event, before: Event | None, clusters: int) -> str:
    """Return what is wrong with an event, given the one before it, if any; empty if nothing is."""
    index = 0 if before is None else before.index + 1
    if event.index != index:
        return f"it is event {event.index}, but event {index} must follow"
    if before is not None and event.seconds < before.seconds:
        return "it ends before the previous event"
    if before is not None and event.round < before.round:
        return f"it is of round {event.round}, after one of round {before.round}"
    if len({len(event.active), len(event.began), len(event.staleness)}) > 1:
        return "active, began and staleness have different lengths"
    if event.clusters is not None and len(event.clusters) != len(event.cohort):
        return "clusters must hold one cluster for each client of the cohort"
    own = event.cohort if event.clusters is None else event.cohort * clusters + event.clusters
    if len(event.cohort) != len(event.weights) or len(np.unique(own)) < len(event.cohort):
        return "cohort must hold different clients in each cluster, and weights one number for each"
    if event.answered is not None and event.answered.shape != (event.intra_rounds, len(event.cohort)):
        return "answered does not match intra_rounds and cohort"
    named = {*event.active, *(cluster for cluster, _ in event.starts)}
    mixes = [mix for _, mix in (*event.starts, (0, event.server)) if mix]
    named |= {cluster for mix in mixes for cluster, _ in mix.published + mix.updates}
    if named and max(named) >= clusters:
        return f"it names cluster {max(named)}, but there are {clusters}"
    if not set(np.unique(event.clusters if event.clusters is not None else []).tolist()) <= set(event.active):
        return "a client's cluster is not active"
    return ""


def _event_of(line: _Line, shared: dict[str, Mix]) -> Event:
    """Return a line's event; equal mixes become one object, since a schedule may have a million events."""
    server, starts = line.read(lambda mix: shared.get(k := mix.model_dump_json()) or shared.setdefault(k, mix.read()))
    return Event(
        **{name: getattr(line, name) for name in (*SINGLE, "drawn_as")},
        index=line.event,
        active=tuple(line.active),
        began=tuple(line.began),
        cohort=np.array(line.cohort, np.int64),
        clusters=None if line.clusters is None else np.array(line.clusters, np.int64),
        weights=np.array(line.weights, np.float64),
        server=server,
        starts=starts,
        staleness=tuple(line.staleness),
        answered=None if line.answered is None else np.array(line.answered, bool).reshape(len(line.answered), -1),
    )


def require_sound(schedule: Schedule, clients: int, told: str) -> None:
    """Reject a schedule that cannot be carried out as it is told; `told` says whose it is."""
    if not len(schedule):
        raise InputError(f"{told}: its schedule has no events")
    last: Event | None = None
    for place, event in enumerate(schedule.events):
        if why := _why_unsound(event, schedule, clients):
            raise InputError(f"{told}: event {place} of its schedule {why}")
        if fault := why_wrong(event, last, schedule.clusters):
            raise InputError(f"{told}: event {place} of its schedule is wrong ({fault})")
        last = event


def _why_unsound(event: Event, schedule: Schedule, clients: int) -> str:
    cohort, weights, clusters = event.cohort, event.weights, event.clusters
    if not all(isinstance(getattr(event, name), np.ndarray) for name in ("cohort", "weights")):
        return "has a cohort or weights that are no NumPy arrays; atoll.make_event makes them from lists"
    if not 0 <= event.round < schedule.rounds:
        return f"is of round {event.round}; rounds are numbered from 0 to {schedule.rounds - 1}"
    if outside := sorted(set(cohort.tolist()).difference(range(clients))):
        return f"trains client {outside[0]}, but clients are numbered from 0 to {clients - 1}"
    own = np.zeros(len(cohort), np.int64) if clusters is None else clusters
    if len(weights) != len(cohort) or len(own) != len(cohort):
        return f"has {len(cohort)} clients in its cohort, {len(weights)} weights, and clusters of {len(own)} clients"
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        return f"has the weights {weights[:5].tolist()}; they must be finite numbers above 0"
    if outside := sorted(set(own.tolist()).difference(range(schedule.clusters))):
        return f"trains cluster {outside[0]}, but clusters are numbered from 0 to {schedule.clusters - 1}"
    if not schedule.has_server and any(mix and mix.server for mix in (event.server, *dict(event.starts).values())):
        return "takes the server's model, but the schedule has no server (Schedule.has_server)"
    if not all(0 <= began <= event.seconds < np.inf for began in event.began):
        return f"begins at {list(event.began)} s and ends at {event.seconds:g} s; it must begin at 0 or later, then end"
    return ""
