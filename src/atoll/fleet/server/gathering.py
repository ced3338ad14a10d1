"""Concurrent calls to a fleet, all finished by a deadline, whatever the transport does."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

from atoll.fleet.agreed.transport import Failure, Fleet
from atoll.fleet.agreed.waiting import listed, passed, waiting
from atoll.fleet.server.replies import Expected

GRACE_SECONDS = 5.0  # after the deadline, for the transport to report it


@dataclass(frozen=True, eq=False)
class Call:
    """One task to several nodes: `heads` are for each alone, the payload is for all."""

    number: int
    task: str
    heads: Mapping[str, bytes]
    payload: bytes
    asked: Mapping[str, Expected]


@dataclass(frozen=True, eq=False)
class Reply:
    """What arrived from a node, so many seconds after the call."""

    call: Call
    sender: str
    content: bytes | Failure
    seconds: float


def gather(
    fleet: Fleet, calls: Sequence[Call], timeout: float, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Reply]:
    """Make all calls at once; yield replies until every node has answered or the time is over.

    Unexpected replies, such as a second one, are yielded too. A missing reply is yielded as the failure ``late``. A
    transport that ignores its timeout is abandoned shortly after. `tell` is told now and then which nodes are missing.
    """
    began = time.monotonic()
    came: Queue[tuple[Call, str, bytes | Failure] | Exception | None] = Queue()

    def carry(call: Call) -> None:
        try:
            for sender, content in fleet.call(call.heads, call.task, call.payload, timeout):
                came.put((call, sender, content))
        except Exception as error:  # raised again in the caller's thread
            came.put(error)
        finally:
            came.put(None)

    for call in calls:
        Thread(target=carry, args=(call,), daemon=True, name=f"call-{call.number}").start()
    missing = {(id(call), name): call for call in calls for name in call.asked}

    def who() -> str:
        names = {name for _, name in list(missing)}
        return f"waiting for {listed(names)}: {passed(began)} of {timeout:g} s" if names else ""

    going = len(calls)
    with waiting(tell, who):
        while going:
            left = began + timeout + GRACE_SECONDS - time.monotonic()
            try:
                item = came.get(timeout=max(left, 0.0))
            except Empty:
                break
            if isinstance(item, Exception):
                raise item
            if item is None:
                going -= 1
                continue
            call, sender, content = item
            missing.pop((id(call), sender), None)
            yield Reply(call, sender, content, time.monotonic() - began)
    for (_, name), call in missing.items():
        yield Reply(call, name, Failure("late"), time.monotonic() - began)
