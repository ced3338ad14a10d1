"""A fleet on Flower: tasks are messages through its superlink, sent and received here instead of by its strategies."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Self, TypeVar

from atoll.fleet.agreed.messages import MOST_HEADER_BYTES
from atoll.fleet.agreed.transport import Failure, Properties
from atoll.fleet.flower.calls import begin_task, forget, is_task_lost, list_nodes, register_nodes, runtime_client
from atoll.fleet.flower.guard import OVERHEAD
from atoll.fleet.flower.receiving import PendingCall, PendingTask, lose, receive
from atoll.fleet.flower.superlink import Superlink
from atoll.fleet.flower.wire import beating, insist, is_transient, make_task, pack
from atoll.fleet.folder.configuration import FleetConfiguration, RegisteredNode, read_fleet
from atoll.fleet.folder.init import Renewal
from atoll.support.errors import RunError

POLL_SECONDS = 0.2
_BEAT_SECONDS, _RENEWAL_SECONDS = 10.0, 3600.0
# How long a call waits for a superlink that is away.
_PATIENCE = 60.0
# How often a task is sent to a node whose answer is lost with a superlink; the node works on it once.
_MOST_ASKED = 8
# Tasks with short replies; every other reply may be as large as a client's result.
_NUMBERS = ("describe", "losses", "sum-keys", "sum-shares", "sum-survivors", "sum-unmask")
_MOST_NUMBERS = MOST_HEADER_BYTES + OVERHEAD

_Result = TypeVar("_Result")


class FlowerFleet:
    """The nodes of a fleet's folder, reached through a superlink that runs inside this context.

    A node's name and clients follow from its key in ``fleet.toml``, whatever it reports. A superlink that dies is
    restarted, with pending messages in its database. If it is away so long that Flower abandons our task, the next call
    starts a new one.
    """

    def __init__(self, configuration: FleetConfiguration, tell: Callable[[str], None] = lambda _: None) -> None:
        """Use this fleet; nothing is started. `tell` receives messages for the operator."""
        self.configuration = configuration
        self.superlink, self._tell = Superlink(configuration, tell), tell
        self._most = configuration.max_mib * 2**20
        self._properties = {node.name: _properties_of(node) for node in configuration.nodes}
        self._names = dict[int, str]()
        self._lock = threading.Lock()
        self._task: PendingTask | None = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the superlink and register the nodes' keys."""
        renewal = Renewal(self.configuration.folder, self._tell)
        with contextlib.ExitStack() as held:
            renewal()
            held.enter_context(self.superlink)
            until = time.monotonic() + _PATIENCE  # it may die immediately, and is restarted
            with self._told():
                self._names = self._insist(lambda: register_nodes(self.configuration), until)
                self.superlink.open()
            held.callback(self._end_task)
            held.enter_context(beating(self._beat, _BEAT_SECONDS))
            held.enter_context(beating(renewal, _RENEWAL_SECONDS))
            self._held = held.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the task and the superlink; the nodes keep trying to reach it."""
        self._held.close()

    def allow(self, most: int) -> None:
        """Accept no larger replies from now on; nodes cannot send more to the superlink."""
        self._most = min(most, self.configuration.max_mib * 2**20)

    def nodes(self) -> dict[str, Properties]:
        """Return the nodes that are present, with their clients (comma-separated under ``clients`` for several)."""
        with self._told():
            return {name: self._properties[name] for name in self._online(time.monotonic() + _PATIENCE)}

    def call(
        self, heads: Mapping[str, bytes], task: str, payload: bytes, timeout: float
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send a task to nodes; yield one reply or failure per node as they arrive, the last within `timeout` seconds.

        A node that dies fails as ``gone`` once Flower notices, within 90 s, or as ``late`` if the timeout is earlier.
        """
        until = time.monotonic() + timeout
        if len(payload) + max(map(len, heads.values()), default=0) > self.configuration.max_mib * 2**20:
            raise RunError(f"a task takes more bytes than max_mib = {self.configuration.max_mib} in fleet.toml allows")
        sent, pending, awaited, asked = dict[str, str](), list[PendingCall](), set(heads), Counter[str]()
        try:
            there = self._online(until)
            lost = {name: head for name, head in heads.items() if name in there}
            while awaited and time.monotonic() < until:
                if lost or not pending:
                    asking = partial(self._push, heads=lost, name_of_task=task, payload=payload, until=until, sent=sent)
                    pending.append(self._with_task(asking, until))
                    if gone := awaited.difference(*(each.names.values() for each in pending)):
                        awaited -= gone
                        yield from ((name, Failure("gone")) for name in heads if name in gone)
                    asked.update(lost.keys())
                    lost.clear()
                for name, outcome in chain.from_iterable(map(self._pull, pending)):
                    if outcome == Failure("late") and asked[name] < _MOST_ASKED:
                        lost[name] = heads[name]
                    else:
                        awaited.discard(name)
                        yield name, outcome
                if awaited:
                    time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
        except Exception as error:
            self.superlink.require_up()
            if not _may_pass(error) and time.monotonic() < until:  # otherwise Flower no longer accepts it
                with self._told():
                    raise
        finally:
            with contextlib.suppress(Exception):  # leftovers are deleted when the run ends
                forget(self.configuration, list(sent))
        yield from ((name, Failure("late")) for name in heads if name in awaited)

    def _online(self, until: float) -> list[str]:
        from flwr.proto.runtime_pb2 import GetNodesRequest

        reply = self._with_task(lambda task: task.client.GetNodes(GetNodesRequest()), until)
        if any(info.node_id not in self._names for info in reply.nodes):
            self._insist(self._learn_keys, until)
        return sorted(self._names[info.node_id] for info in reply.nodes if info.node_id in self._names)

    def _learn_keys(self) -> None:
        """Reload keys that changed in ``fleet.toml`` (`atoll fleet rotate`), whoever registered them.

        A node keeps its clients, since the run is planned with them.
        """
        known = read_fleet(self.configuration.folder)
        numbers = {info.node_id: name for name, info in list_nodes(known).items()}
        self._names = {number: name for number, name in numbers.items() if name in self._properties}

    def _with_task(self, call: Callable[[PendingTask], _Result], until: float) -> _Result:
        """Return the result of a call with the task, restarted if Flower has abandoned it."""

        def attempt() -> _Result:
            with self._lock:
                if self._task is None:
                    run_id, token = begin_task(self.configuration)
                    self._task = PendingTask(run_id, runtime_client(self.configuration, token))
                task = self._task
            try:
                return call(task)
            except Exception as error:
                if is_task_lost(error):
                    self._drop(task)
                raise

        return self._insist(attempt, until)

    def _insist(self, call: Callable[[], _Result], until: float) -> _Result:
        """Retry as `wire.insist` does, as long as it may succeed."""
        return insist(lambda: self.superlink.ask(call), until, again=_may_pass)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn a call's permanent failure into one sentence."""
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            raise self.superlink.fault_of(error) from error

    def _drop(self, task: PendingTask) -> None:
        with self._lock:
            if self._task is task:
                self._task = None

    def _push(
        self,
        task: PendingTask,
        heads: Mapping[str, bytes],
        name_of_task: str,
        payload: bytes,
        until: float,
        sent: dict[str, str],
    ) -> PendingCall:
        """Send a task to present nodes; the payload is sent to the superlink once.

        `sent` are the nodes of the call's messages; the superlink forgets those that are sent again, so that no node
        waits for the rest of one that a dying superlink never got.
        """
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.node_pb2 import Node
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest

        most = min(self._most, _MOST_NUMBERS) if name_of_task in _NUMBERS else self._most
        superlink, numbers = self.superlink.pid, {name: number for number, name in self._names.items()}
        heads = {name: head for name, head in heads.items() if name in numbers}  # a node may just have been revoked
        if not heads:
            return PendingCall(task, {}, most, superlink)
        if stale := [identifier for identifier, name in sent.items() if name in heads]:
            forget(self.configuration, stale)
        seconds = max(until - time.monotonic(), 0.1)
        packed = [
            pack(make_task(task.run_id, numbers[name], name_of_task, payload, seconds, most, head))
            for name, head in heads.items()
        ]
        sent.update(zip((each.message.metadata.message_id for each in packed), heads, strict=True))
        request = PushAppMessagesRequest(
            messages_list=[each.message for each in packed], message_object_trees=[each.tree for each in packed]
        )
        answer = task.client.PushMessages(request)
        parts = {identifier: part for each in packed for identifier, part in each.parts.items()}
        for identifier in answer.objects_to_push:
            task.client.PushObject(
                PushObjectRequest(
                    node=Node(node_id=SUPERLINK_NODE_ID), run_id=task.run_id, session_id=answer.session_id,
                    object_id=identifier, object_content=parts[identifier],
                )
            )  # fmt: skip
        accepted = {identifier: name for identifier, name in zip(answer.message_ids, heads, strict=True) if identifier}
        return PendingCall(task, accepted, most, superlink)

    def _pull(self, asked: PendingCall) -> Iterator[tuple[str, bytes | Failure]]:
        """Yield available replies; none while the superlink is away, failures if our task or replies are lost.

        A superlink that was started again takes no more parts of replies that were announced to the one before.
        """
        superlink = self.superlink.pid
        try:
            yield from receive(asked)
            if asked.superlink != superlink:
                asked.superlink = superlink
                yield from lose(asked, asked.arriving)
        except Exception as error:
            self.superlink.bear(error)
            if is_task_lost(error):
                self._drop(asked.task)
                yield from lose(asked, asked.names)
            elif not is_transient(error):
                with self._told():
                    raise

    def _beat(self) -> None:
        """Send Flower a heartbeat; without one it abandons the task after a minute."""
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        if (task := self._task) is not None:
            task.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def _end_task(self) -> None:
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        if (task := self._task) is not None:
            with contextlib.suppress(Exception):  # leftovers are stopped when the next one starts
                task.client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))
            task.client.close()
            self._task = None


def _may_pass(error: Exception) -> bool:
    """Return whether a call may succeed later; a busy superlink may abandon a task even while it starts."""
    return is_transient(error) or is_task_lost(error)


def _properties_of(node: RegisteredNode) -> Properties:
    told = {"public_key": node.public_key}
    told |= {} if node.samples is None else {"samples": ",".join(map(str, node.samples))}
    first, *others = node.clients
    return {"clients": ",".join(map(str, node.clients)), **told} if others else {"client": first, **told}
