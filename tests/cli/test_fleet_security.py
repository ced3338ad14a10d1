"""Who a fleet's server lets in, and what it reads of them: a real superlink, called as strangers would call it."""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

from atoll.fleet.agreed.transport import Failure
from atoll.fleet.flower import flower_node as flower_node
from atoll.fleet.flower import presence
from atoll.fleet.flower.calls import forget, status_of_nodes
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.superlink import Superlink, free_port
from atoll.fleet.flower.wire import insist
from atoll.fleet.folder.certificates import make_authority, make_key_pair, read_private_key
from atoll.fleet.folder.configuration import FleetConfiguration, NodeConfiguration, read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.support.errors import InputError, RunError
from tests.cli.fleets import wait_until

httpx = pytest.importorskip("httpx")
pytest.importorskip("flwr")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what Flower imports


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerFleet]:
    """A superlink that accepts the keys of two nodes, neither of which runs."""
    before = dict(os.environ)
    plan = FleetPlan(2, "127.0.0.1", listen="127.0.0.1", port=free_port(), max_mib=1)
    with FlowerFleet(init_fleet(tmp_path_factory.mktemp("fleet") / "fleet", plan)) as found:
        yield found
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def node(running: FlowerFleet, tmp_path: Path) -> NodeConfiguration:
    """A copy of the folder of node 0."""
    place = tmp_path / "node"
    shutil.copytree(running.configuration.folder / "nodes" / "node-0", place)
    return read_node(place)


def be(node: NodeConfiguration) -> None:
    """Be a node; what is refused does not come so far as to answer anything."""

    def answer(task: str, payload: bytes) -> bytes:
        raise AssertionError("it was let in")

    flower_node.serve(node, answer, lambda sentence: None)


def post(configuration: FleetConfiguration, call: str, content: Any = b"", **headers: str) -> Any:
    """Post bytes to a path of the server over TLS."""
    import ssl

    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

    context = ssl.create_default_context(cafile=str(configuration.folder / "ca.pem"))
    kind = {"content-type": PROTOBUF_MEDIA_TYPE}
    url = f"https://127.0.0.1:{configuration.port}{call}"
    with httpx.Client(verify=context, trust_env=False) as client:
        return client.post(url, content=content, headers=kind | headers)


def test_an_unregistered_key_is_refused(node: NodeConfiguration) -> None:
    node.key.write_bytes(make_key_pair("stranger")[0])
    with pytest.raises(RunError, match=r"refuses node-0; its key is not registered there$"):
        be(node)


@pytest.mark.parametrize("call", ["activate-node", "pull-messages", "push-messages", "push-object", "pull-object"])
def test_no_key_is_refused(running: FlowerFleet, call: str) -> None:
    assert post(running.configuration, f"/v1/fleet/{call}").status_code == 401


@pytest.mark.more
def test_a_key_opens_no_other_nodes_messages(running: FlowerFleet, node: NodeConfiguration) -> None:
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node

    other = next(number for number, name in running._names.items() if name == "node-1")
    key, authority = read_private_key(node.key), node.authority.read_bytes()
    with presence.client_of(node, key, authority) as client, pytest.raises(httpx.HTTPStatusError) as raised:
        client.PullMessages(PullMessagesRequest(node=Node(node_id=other)))
    assert raised.value.response.status_code == 401


def test_a_server_of_a_foreign_authority_is_refused(node: NodeConfiguration) -> None:
    node.authority.write_bytes(make_authority(10).certificate)
    with pytest.raises(RunError, match=r"is not the server that .* vouches for"):
        be(node)


def test_plaintext_is_refused(running: FlowerFleet) -> None:
    url = f"http://127.0.0.1:{running.configuration.port}/v1/fleet/activate-node"
    with pytest.raises(httpx.TransportError), httpx.Client(trust_env=False) as client:
        client.post(url, content=b"")


@pytest.mark.more
def test_a_second_machine_with_the_same_key_is_refused(
    running: FlowerFleet, node: NodeConfiguration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_GONE_SECONDS", 1.0)
    with linked(node):
        assert list(running.nodes()) == ["node-0"]
        assert {name: known["client"] for name, known in running.nodes().items()} == {"node-0": 0}
        there = {row["node"]: row["status"] for row in status_of_nodes(running.configuration)}
        assert there == {"node-0": "online", "node-1": "registered"}
        shutil.copytree(running.configuration.folder / "nodes" / "node-0", tmp_path / "copy")
        with pytest.raises(RunError, match=r"refuses node-0; another machine is this node already$"):
            be(read_node(tmp_path / "copy"))
        assert list(running.nodes()) == ["node-0"]
    assert running.nodes() == {}


def test_a_node_whose_goodbye_was_not_heard_comes_back_at_once(running: FlowerFleet, node: NodeConfiguration) -> None:
    note, told = node.folder / "state" / "node-id", list[str]()
    with linked(node) as client:
        client.DeactivateNode = failing
    assert note.exists()
    assert list(running.nodes()) == ["node-0"]  # it counts as there
    with linked(node, told.append):
        assert [sentence.split(": ")[1][:9] for sentence in told] == ["calling 1", "connected"]
    assert not note.exists()
    assert running.nodes() == {}


def failing(*_: object) -> None:
    """Be a call that does not come through."""
    raise httpx.ConnectError("the network is away")


def test_a_node_that_counts_as_there_waits_until_it_does_not(running: FlowerFleet, node: NodeConfiguration) -> None:
    """As one that was killed on another machine, or has lost its state: it says so once, and is then let in."""
    told, first = list[str](), contextlib.ExitStack()
    first.enter_context(linked(node))
    (node.folder / "state" / "node-id").unlink()

    def tell(sentence: str) -> None:
        told.append(sentence)
        if "counts it as there" in sentence:
            first.close()

    with linked(node, tell):
        assert list(running.nodes()) == ["node-0"]
    assert [sentence.split(": ")[1][:9] for sentence in told] == ["calling 1", "the serve", "connected"]


def test_a_second_process_with_the_same_key_is_refused(node: NodeConfiguration) -> None:
    state = node.folder / "state"
    state.mkdir()
    with flower_node._only_one(node, state), pytest.raises(InputError, match="another process on this machine"):
        be(node)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/register-node", "/v1/control/start-run", "/v1/control/list-nodes", "/v1/runtime/acquire-task",
        "/v1/runtime/pull-messages", "/v1/fleet/register-node", "/v1/fleet/get-fab", "/v1/fleet/get-run", "/docs", "/",
        "/v1/fleet/../control/list-nodes", "//v1/control/list-nodes", "/V1/CONTROL/list-nodes",
    ],
)  # fmt: skip
def test_only_the_secret_opens_what_is_not_a_nodes(running: FlowerFleet, path: str) -> None:
    assert post(running.configuration, path).status_code == 404
    assert post(running.configuration, path, **{"x-atoll-secret": "0" * 64}).status_code == 404


@pytest.mark.parametrize("length", [{"content-length": str(400 * 2**20)}, {}], ids=["with its length", "in chunks"])
def test_what_is_longer_than_allowed_is_not_kept(running: FlowerFleet, length: dict[str, str]) -> None:
    """400 MB where 1 MiB is allowed; the server's memory stays what it was, and it goes on."""
    before = _most_memory(running.superlink.pid)
    with contextlib.suppress(httpx.TransportError):  # the sender may be cut off before it hears why
        parts = (bytes(2**20) for _ in range(400))
        assert post(running.configuration, "/v1/fleet/push-object", parts, **length).status_code >= 400
    assert running.nodes() == {}
    assert _most_memory(running.superlink.pid) - before < 32 * 2**20


def test_a_length_that_is_too_long_is_refused_at_once(running: FlowerFleet, node: NodeConfiguration) -> None:
    for call, status in (("push-object", 409), ("push-messages", 413), ("send-node-heartbeat", 413)):
        told = post(running.configuration, f"/v1/fleet/{call}", bytes(2**16 + 1), **signed(node))
        assert told.status_code == status


def signed(node: NodeConfiguration) -> dict[str, str]:
    """Return the headers by which a node shows its key, as Flower's own node makes them."""
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key, request = read_private_key(node.key), httpx.Request("POST", "https://here")
    context: Any = type("Context", (), {"request": request})
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda _: httpx.Response(200))
    return {name: value for name, value in request.headers.items() if name.startswith("flwr")}


@pytest.mark.slow
def test_a_hundred_strangers_with_250_mib_each_take_no_memory(tmp_path: Path) -> None:
    """Each sends as fast and for as long as it is let; half of them with headers that look like a key's."""
    import base64
    import socket
    import ssl
    from concurrent.futures import ThreadPoolExecutor

    plan = FleetPlan(2, "127.0.0.1", listen="127.0.0.1", port=free_port())
    configuration = init_fleet(tmp_path / "fleet", plan)
    context = ssl.create_default_context(cafile=str(configuration.folder / "ca.pem"))
    forged = base64.b64encode(bytes(150)).decode()
    shown = f"flwr-public-key: {forged}\r\nflwr-signature: {forged}\r\nflwr-timestamp: 2026-01-01T00:00:00\r\n"
    length = 250 * 2**20

    def send(number: int) -> int:
        head = "POST /v1/fleet/push-object HTTP/1.1\r\nhost: here\r\ncontent-type: application/protobuf\r\n"
        head += (shown if number % 2 else "") + f"content-length: {length}\r\n\r\n"
        sent = 0
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", configuration.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as caller,
        ):
            caller.sendall(head.encode())
            while sent < length:
                caller.sendall(bytes(2**18))
                sent += 2**18
        return sent

    with Superlink(configuration) as superlink, ThreadPoolExecutor(100) as pool:
        superlink.open()
        assert post(configuration, "/v1/fleet/activate-node").status_code == 401
        before = _most_memory(superlink.pid)
        sent = list(pool.map(send, range(100)))
        more = (_most_memory(superlink.pid) - before) / 2**20
        print(f"{more:.1f} MB more memory, of {sum(sent) / 2**20:.0f} MiB that 100 strangers sent")
        assert more < 50
        assert max(sent) < length  # each was cut
        assert post(configuration, "/v1/fleet/activate-node").status_code == 401


FORGED: tuple[dict[str, str], ...] = (
    {"src_node_id": "other", "dst_node_id": "other"},
    {"src_node_id": "server", "dst_node_id": "other"},
    {"src_node_id": "server", "dst_node_id": "other", "reply_to_message_id": ""},
    {"src_node_id": "other"},
    {"reply_to_message_id": "0" * 64},
    {"reply_to_message_id": ""},
)


@pytest.mark.more
def test_a_node_can_task_no_other(running: FlowerFleet, node: NodeConfiguration) -> None:
    """Whatever it says of itself, of the other and of the server, and though both are there and a message waits."""
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.node_pb2 import Node

    from atoll.fleet.flower.wire import make_reply, make_task, pack

    other = read_node(running.configuration.folder / "nodes" / "node-1")
    numbers = {name: number for number, name in running._names.items()} | {"server": SUPERLINK_NODE_ID}
    numbers["other"] = numbers["node-1"]
    with (
        linked(node),
        linked(other),
        presence.client_of(node, read_private_key(node.key), authority(node)) as client,
        asked_of(running, "node-0") as asked,
    ):
        for changes in FORGED:
            forged = make_task(asked.metadata.run_id, numbers["other"], "train", b"evil", 60.0, 1000)
            message = forged if changes.get("reply_to_message_id") == "" else make_reply(asked, b"evil", 0.1)
            for name, value in changes.items():
                message.metadata.__dict__[f"_{name}"] = numbers.get(value, value)
            packed = pack(message)
            request = PushMessagesRequest(
                node=Node(node_id=numbers["node-0"]), messages_list=[packed.message], message_object_trees=[packed.tree]
            )
            with pytest.raises(httpx.HTTPStatusError) as raised:
                client.PushMessages(request)
            assert raised.value.response.status_code in (400, 403), changes
        with presence.client_of(other, read_private_key(other.key), authority(other)) as theirs:
            assert flower_node._receive(presence.PresenceLink(theirs, numbers["other"])) is None


@dataclass
class Hostile:
    """A node that is asked to train, whose reply may have 1000 bytes, and that answers as it likes."""

    link: Any
    asked: Any

    def push(self, content: dict[str, bytes]) -> None:
        """Send a reply of these records, however long."""
        from flwr.app import ConfigRecord, RecordDict
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.node_pb2 import Node

        from atoll.fleet.flower.wire import make_reply, pack

        message, node = make_reply(self.asked, b"", 0.1), Node(node_id=self.link.node_id)
        message.content = RecordDict({name: ConfigRecord({"": value}) for name, value in content.items()})
        packed = pack(message)
        told: dict[str, Any] = {"messages_list": [packed.message], "message_object_trees": [packed.tree]}
        answer = self.link.client.PushMessages(PushMessagesRequest(node=node, **told))
        for name in answer.objects_to_push:
            told = {"run_id": self.asked.metadata.run_id, "session_id": answer.session_id, "object_id": name}
            self.link.client.PushObject(PushObjectRequest(node=node, object_content=packed.parts[name], **told))


@contextlib.contextmanager
def hostile(running: FlowerFleet, node: NodeConfiguration, came: list[Any]) -> Iterator[Hostile]:
    """Be node 0, which was just asked for something; `came` gets what the call comes to within some seconds."""
    running.allow(1000)
    number = next(number for number, name in running._names.items() if name == "node-0")
    caller = threading.Thread(target=lambda: came.extend(running.call({"node-0": b"head"}, "train", b"start", 20)))
    with linked(node), presence.client_of(node, read_private_key(node.key), authority(node)) as client:
        caller.start()
        link, asked = presence.PresenceLink(client, number), None
        while asked is None:
            assert caller.is_alive(), came
            asked = flower_node._receive(link)
        yield Hostile(link, asked)
        caller.join()


def stored(running: FlowerFleet) -> dict[str, int]:
    """Return how many rows Flower's database has of messages and of their parts."""
    import sqlite3

    tables = ("message_ins", "message_res", "objects")
    with contextlib.closing(sqlite3.connect(running.configuration.state / "flower.db")) as database:
        return {table: database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables}


@pytest.mark.more
def test_a_reply_is_no_longer_than_was_asked_nor_of_more_records(running: FlowerFleet, node: NodeConfiguration) -> None:
    """What is too much is not stored, and the server hears nothing of it; of the call nothing stays."""
    came: list[Any] = []
    with hostile(running, node, came) as other:
        for content, status in (({"atoll.reply": b"good", "more": b"1"}, 400), ({"atoll.reply": bytes(2**17)}, 413)):
            with pytest.raises(httpx.HTTPStatusError) as raised:
                other.push(content)
            assert raised.value.response.status_code == status
    assert came == [("node-0", Failure("late"))]
    wait_until(lambda: set(stored(running).values()) == {0}, 5, lambda: str(stored(running)))
    with hostile(running, node, came) as other:
        other.push({"atoll.reply": b"good"})
    assert came[1:] == [("node-0", b"good")]
    wait_until(lambda: set(stored(running).values()) == {0}, 5, lambda: str(stored(running)))


def test_the_database_is_its_owners_alone(running: FlowerFleet) -> None:
    for path in running.configuration.state.glob("flower.db*"):
        assert not path.stat().st_mode & 0o077, path


def test_a_call_without_time_is_late(running: FlowerFleet, node: NodeConfiguration) -> None:
    with linked(node):
        assert list(running.call({"node-0": b""}, "train", b"", 0.0)) == [("node-0", Failure("late"))]


def test_a_node_brings_nothing_of_anothers(running: FlowerFleet, node: NodeConfiguration) -> None:
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.proto.node_pb2 import Node

    number = next(number for number, name in running._names.items() if name == "node-0")
    other = read_node(running.configuration.folder / "nodes" / "node-1")
    with (
        linked(node),
        linked(other),
        presence.client_of(node, read_private_key(node.key), authority(node)) as client,
        asked_of(running, "node-1") as theirs,
    ):
        told = {"node": Node(node_id=number), "run_id": theirs.metadata.run_id}
        with pytest.raises(httpx.HTTPStatusError) as raised:
            client.PushObject(PushObjectRequest(object_id=theirs.metadata.message_id, object_content=b"1", **told))
        assert raised.value.response.status_code in (403, 409)


@contextlib.contextmanager
def asked_of(running: FlowerFleet, name: str) -> Iterator[Any]:
    """Send a node a task that waits there, without its parts; yield its message, as the node would read it."""
    from atoll.fleet.flower.wire import make_task, pack

    kept: list[Any] = []

    def push(task: Any) -> Any:
        number = next(number for number, known in running._names.items() if known == name)
        kept.append(make_task(task.run_id, number, "train", b"work", 60.0, 1000))
        packed = pack(kept[0])
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest

        sent = PushAppMessagesRequest(messages_list=[packed.message], message_object_trees=[packed.tree])
        return task.client.PushMessages(sent)

    assert running.nodes().keys() >= {name}
    assert running._with_task(push, time.monotonic() + 30).message_ids[0]
    yield kept[0]
    forget(running.configuration, [kept[0].metadata.message_id])  # else the node waits for its parts


def authority(node: NodeConfiguration) -> bytes:
    """Return the certificate that a node trusts."""
    return node.authority.read_bytes()


def _most_memory(process: int) -> int:
    """Return the most memory that a process ever had, bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def test_a_long_reply_fails_as_too_large(running: FlowerFleet, node: NodeConfiguration) -> None:
    assert _reply(node, bytes(2**20)) == bytes(2**20)
    assert _reply(node, bytes(2**20 + 1)) == 1001


def test_what_a_handler_raises_stays_on_its_node(node: NodeConfiguration) -> None:
    told: list[str] = []

    def answer(task: str, payload: bytes) -> bytes:
        raise ValueError("a patient's name")

    from atoll.fleet.flower.wire import make_task

    message = make_task(1, 2, "train", b"", 60.0, 2**20)
    assert flower_node._reply_to(message, answer, node, told.append) == 2
    assert "a patient's name" in told[0]


def _reply(node: NodeConfiguration, content: bytes) -> bytes | int:
    from atoll.fleet.flower.wire import make_task

    message = make_task(1, 2, "train", b"", 60.0, 2**20)
    return flower_node._reply_to(message, lambda task, payload: content, node, lambda sentence: None)


@contextlib.contextmanager
def linked(node: NodeConfiguration, tell: Callable[[str], None] = lambda sentence: None) -> Iterator[Any]:
    """Be there as a node; yield what it calls with."""
    key, state = read_private_key(node.key), node.folder / "state"
    state.mkdir(exist_ok=True)
    with (
        presence.client_of(node, key, node.authority.read_bytes()) as client,
        presence.linked(node, client, key, state / "node-id", tell),
    ):
        yield client


@pytest.mark.parametrize("apart", [-3600.0, 0.0, 3600.0])
def test_a_reply_keeps_to_the_clock_of_who_asked(apart: float) -> None:
    from atoll.fleet.flower.wire import make_reply, make_task

    asked = make_task(1, 2, "train", b"", 60.0, 2**20)
    asked.metadata.created_at += apart
    reply = make_reply(asked, b"", 10.0)
    assert reply.metadata.created_at == asked.metadata.created_at + 10
    assert reply.metadata.created_at + reply.metadata.ttl == asked.metadata.created_at + 60


@pytest.mark.more
def test_a_message_is_given_again_until_it_is_answered(running: FlowerFleet, node: NodeConfiguration) -> None:
    """Or one cut connection, or a node that is killed and started again, would cost the event its whole deadline."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.node_pb2 import Node

    with linked(node) as client:
        (number,) = (number for number, name in running._names.items() if name == "node-0")
        caller = threading.Thread(target=lambda: list(running.call({"node-0": b""}, "echo", b"x", 20)))
        caller.start()
        pull = PullMessagesRequest(node=Node(node_id=number))
        wait_until(lambda: bool(client.PullMessages(pull).messages_list), 5)  # as if that had never come
        link, asked = presence.PresenceLink(client, number), None
        while asked is None:  # all its parts must be there, too
            assert caller.is_alive()
            asked = flower_node._receive(link)
        again = flower_node._receive(link)
        assert again is not None
        assert again.metadata.message_id == asked.metadata.message_id
        flower_node._send(link, asked, b"y", time.monotonic())
        assert flower_node._receive(link) is None
        caller.join()


@pytest.mark.parametrize("apart", [-170, -140, 0, 140, 170, -3600, 3600])
def test_a_nodes_clock_may_be_off_either_way(
    running: FlowerFleet, node: NodeConfiguration, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=apart)

    monkeypatch.setattr(presence, "datetime", Clock)
    if abs(apart) <= 150:
        with linked(node):
            assert list(running.nodes()) == ["node-0"]
    else:
        with (
            pytest.raises(RunError, match=f"this machine's clock is {abs(apart) / 60:.0f} minutes from its; set it$"),
            linked(node),
        ):
            pass


def test_a_connection_that_is_cut_is_no_fault_of_the_servers() -> None:
    """While a proxy is up and the server is not, a node goes on calling."""
    import ssl

    from atoll.fleet.flower.wire import is_transient, tls_fault

    cut, foreign = httpx.ConnectError("cut"), httpx.ConnectError("foreign")
    cut.__cause__ = ssl.SSLEOFError(8, "UNEXPECTED_EOF_WHILE_READING")
    foreign.__cause__ = ssl.SSLCertVerificationError(1, "unable to get local issuer certificate")
    foreign.__cause__.verify_message = "unable to get local issuer certificate"
    assert (tls_fault(cut), is_transient(cut)) == (None, True)
    assert (tls_fault(foreign), is_transient(foreign)) == ("unable to get local issuer certificate", False)


def test_a_node_that_is_known_outlives_bytes_that_are_garbled(node: NodeConfiguration) -> None:
    """A bit of a record's head makes it look like no TLS: a node that ended of it could be ended by any network."""
    import ssl

    class Enough(Exception):
        pass

    class Garbled:
        calls = 0

        def PullMessages(self, _: object) -> None:
            self.calls += 1
            if self.calls > 2:
                raise Enough
            fault = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
            fault.reason = "WRONG_VERSION_NUMBER"
            raise httpx.ReadError("garbled") from fault

    link: Any = presence.PresenceLink(Garbled(), 1)  # type: ignore[arg-type]
    with pytest.raises(Enough):
        flower_node._answer_all(node, link, lambda task, payload: b"", lambda sentence: None)


def test_nodes_ask_more_rarely_after_a_while_and_never_all_at_once() -> None:
    quick, idle = ([flower_node._pause(seconds) for _ in range(50)] for seconds in (0, 60))
    assert 0.15 < min(quick) < max(quick) < 0.25 < 0.75 < min(idle) < max(idle) < 1.25
    assert len(set(quick)) == 50


@pytest.mark.more
def test_a_server_without_tls_is_refused(node: NodeConfiguration) -> None:
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as caller:
                caller.recv(1000)
                caller.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(RunError, match="or speaks no TLS"):
            be(node.model_copy(update={"server": f"127.0.0.1:{port}"}))


@pytest.mark.more
def test_a_node_that_calls_before_the_keys_are_registered_is_told_to_wait(tmp_path: Path) -> None:
    """It is told 503, which nodes take for a server that is away, and not that it is unknown; a restart lets it in."""
    plan = FleetPlan(1, "127.0.0.1", listen="127.0.0.1", port=free_port())
    configuration = init_fleet(tmp_path / "fleet", plan)
    with Superlink(configuration) as superlink:
        assert post(configuration, "/v1/fleet/activate-node").status_code == 503
        superlink.open()
        assert post(configuration, "/v1/fleet/activate-node").status_code == 401
        before = superlink.pid
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: superlink.pid != before, 10)
        insist(lambda: post(configuration, "/v1/fleet/activate-node"), time.monotonic() + 30)
        assert post(configuration, "/v1/fleet/activate-node").status_code == 401


@pytest.mark.more
def test_a_running_server_knows_of_a_key_that_is_taken_back_or_given(tmp_path: Path) -> None:
    """The old key is refused at once, the new one is the same node, and one that was taken back is none."""
    from typer.testing import CliRunner

    from atoll.cli.fleet_commands import fleet_app

    plan = FleetPlan(2, "127.0.0.1", listen="127.0.0.1", port=free_port())
    place = tmp_path / "fleet"
    with FlowerFleet(init_fleet(place, plan)) as fleet:
        shutil.copytree(place / "nodes" / "node-0", tmp_path / "old")
        for word in ("rotate", "revoke"):
            with linked(read_node(place / "nodes" / "node-0")):
                assert list(fleet.nodes()) == ["node-0"]
                told = CliRunner().invoke(fleet_app, [word, "node-0", "--config", str(place)])
                assert (told.exit_code, "the running server has been told" in told.output) == (0, True), told.output
                assert fleet.nodes() == {}
            with pytest.raises(RunError, match="its key is not registered there"):
                be(read_node(tmp_path / "old"))
            if word == "revoke":
                with pytest.raises(RunError, match="its key is not registered there"):
                    be(read_node(place / "nodes" / "node-0"))


@pytest.mark.slow
def test_the_database_is_small_again_at_the_next_start(tmp_path: Path) -> None:
    plan = FleetPlan(1, "127.0.0.1", listen="127.0.0.1", port=free_port())
    configuration = init_fleet(tmp_path / "fleet", plan)
    database = configuration.state / "flower.db"
    with FlowerFleet(configuration) as fleet, linked(read_node(configuration.folder / "nodes" / "node-0")):
        assert list(fleet.call({"node-0": b""}, "train", bytes(8 * 2**20), 15)) == [("node-0", Failure("late"))]
        grown = sum(path.stat().st_size for path in configuration.state.glob("flower.db*"))
        assert grown > 8 * 2**20
    with Superlink(configuration):
        assert sum(path.stat().st_size for path in configuration.state.glob("flower.db*")) < 2 * 2**20
    assert database.stat().st_size < 2 * 2**20
