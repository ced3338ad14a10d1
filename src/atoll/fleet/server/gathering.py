"""Several calls to a fleet at once, all over by a deadline, whatever the transport does."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

from atoll.fleet.agreed.transport import Failure, Fleet
from atoll.fleet.agreed.waiting import listed, passed, waiting
from atoll.fleet.server.replies import Expected

GRACE_SECONDS = 5.0  # beyond the deadline, for a transport to say that it has passed


@dataclass(frozen=True, eq=False)
class Call:
    """One task to several nodes.

    Attributes:
        number: what the caller knows it by.
        task: the handler's name.
        heads: what each node alone is sent.
        payload: what all of them are sent.
        asked: what each node's reply is held against.
    """

    number: int
    task: str
    heads: Mapping[str, bytes]
    payload: bytes
    asked: Mapping[str, Expected]


@dataclass(frozen=True, eq=False)
class Reply:
    """What came of a node.

    Attributes:
        call: to which.
        sender: the node's name, as the transport knows it.
        content: bytes, or why there are none.
        seconds: since the call.
    """

    call: Call
    sender: str
    content: bytes | Failure
    seconds: float


def gather(
    fleet: Fleet, calls: Sequence[Call], timeout: float, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Reply]:
    """Make all calls at once; yield what comes, until every node that was asked has replied or it is too late.

    A reply that nobody waits for, a second one for example, is yielded too. What is missing in the end is a failure,
    ``late``. A transport that does not keep its timeout is left to itself, shortly after. `tell` is given now and then
    who is waited for.

    Raises:
        Exception: whatever the transport raised.
    """
    began = time.monotonic()
    came: Queue[tuple[Call, str, bytes | Failure] | Exception | None] = Queue()

    def run_events(call: Call) -> None:
        try:
            for sender, content in fleet.call(call.heads, call.task, call.payload, timeout):
                came.put((call, sender, content))
        except Exception as error:  # raised again where it can be seen
            came.put(error)
        finally:
            came.put(None)

    for call in calls:
        Thread(target=run_events, args=(call,), daemon=True, name=f"call-{call.number}").start()
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
