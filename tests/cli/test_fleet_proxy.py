"""The nginx configuration of the fleet page, in front of a real superlink on loopback: what it lets through."""

import contextlib
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from atoll.fleet.flower import presence
from atoll.fleet.flower.calls import runtime_client
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.certificates import read_private_key
from atoll.fleet.folder.configuration import read_node
from atoll.fleet.folder.init import FleetPlan, init_fleet
from tests.cli.fleets import wait_until
from tests.cli.pages import ROOT, blocks

httpx = pytest.importorskip("httpx")
pytest.importorskip("flwr")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of what Flower imports
]


@dataclass(frozen=True)
class Behind:
    """A superlink and the proxy in front of it."""

    fleet: FlowerFleet
    port: int

    def post(self, call: str, content: Any = b"", **headers: str) -> Any:
        """Post bytes to a path of the proxy."""
        context = ssl.create_default_context(cafile=str(self.fleet.configuration.folder / "ca.pem"))
        with httpx.Client(verify=context, trust_env=False) as client:
            url = f"https://127.0.0.1:{self.port}{call}"
            return client.post(url, content=content, headers={"content-type": "application/protobuf"} | headers)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """nginx as the page configures it, with paths and ports of our own."""
    before, place, port = dict(os.environ), tmp_path_factory.mktemp("proxy"), free_port()
    plan = FleetPlan(1, "127.0.0.1", listen="127.0.0.1", port=free_port())
    with FlowerFleet(init_fleet(place / "fleet", plan)) as fleet:
        (page,) = blocks(ROOT / "docs" / "fleet.md", "nginx")
        ours = {"/etc/atoll/fleet": str(place / "fleet"), "127.0.0.1:9092": f"127.0.0.1:{plan.port}"}
        ours |= {"listen 443 ssl": f"listen 127.0.0.1:{port} ssl", "fleet.example.org": "127.0.0.1"}
        text = page.text
        for old, new in ours.items():
            assert old in text
            text = text.replace(old, new)
        user = "user root;" if os.getuid() == 0 else ""  # whose temporary folder it is
        head = f"{user} daemon off; pid {place}/pid; error_log {place}/error.log; events {{}}\n"
        paths = "".join(
            f"{kind}_temp_path {place}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (place / "nginx.conf").write_text(head + f"http {{ access_log off; {paths}\n{text}\n}}\n")
        child = subprocess.Popen(["nginx", "-c", str(place / "nginx.conf"), "-p", str(place)])
        found = Behind(fleet, port)
        try:
            wait_until(lambda: _answers(found), 20, lambda: (place / "error.log").read_text())
            yield found
        finally:
            child.terminate()
            child.wait()
    os.environ.clear()
    os.environ.update(before)


def _answers(behind: Behind) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return bool(behind.post("/").status_code)
    return False


def test_a_node_joins_through_it(behind: Behind) -> None:
    place = behind.fleet.configuration.folder / "nodes" / "node-0"
    path = place / "node.toml"
    path.write_text(path.read_text().replace(str(behind.fleet.configuration.port), str(behind.port)))
    node = read_node(place)
    key = read_private_key(node.key)
    (place / "state").mkdir()
    with (
        presence.client_of(node, key, node.authority.read_bytes()) as client,
        presence.linked(node, client, key, place / "state" / "node-id", lambda sentence: None),
    ):
        assert {name: known["client"] for name, known in behind.fleet.nodes().items()} == {"node-0": 0}


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/health", "/v1/control/list-nodes", "/v1/runtime/acquire-task", "/v1/fleet/get-fab"]
)
def test_nothing_else_is_there_even_with_the_secret(behind: Behind, path: str) -> None:
    secret = behind.fleet.configuration.secret
    assert behind.post(path, **{"x-atoll-secret": secret}).status_code == 404


def test_the_secret_opens_the_superlink_itself(behind: Behind) -> None:
    """Or the test before would pass for want of a right secret."""
    with runtime_client(behind.fleet.configuration):
        assert behind.fleet.nodes() == {}


def test_bodies_are_limited(behind: Behind) -> None:
    from flwr.proto.message_pb2 import PushObjectRequest

    assert behind.post("/v1/fleet/pull-messages", bytes(2**17)).status_code == 413
    long = {"content-length": str(400 * 2**20)}
    with contextlib.suppress(httpx.TransportError):  # the sender may be cut off before it hears why
        parts = (bytes(2**20) for _ in range(400))
        assert behind.post("/v1/fleet/push-object", parts, **long).status_code == 413
    whole = PushObjectRequest(object_content=bytes(2**20)).SerializeToString()
    assert behind.post("/v1/fleet/push-object", whole).status_code == 401  # Flower's answer: it was let through


def test_requests_are_limited(behind: Behind) -> None:
    context = ssl.create_default_context(cafile=str(behind.fleet.configuration.folder / "ca.pem"))
    url = f"https://127.0.0.1:{behind.port}/v1/fleet/pull-messages"
    with httpx.Client(verify=context, trust_env=False) as client:
        codes = {client.post(url, content=b"").status_code for _ in range(400)}
    assert 503 in codes  # which nodes take for a server that is away: they ask again later
