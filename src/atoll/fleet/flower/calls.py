"""Calls to Flower's superlink on this machine: registering nodes, and the task that sends messages."""

import contextlib
import io
import ssl
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atoll.fleet.flower.guard import FORGET, HEADER
from atoll.fleet.flower.wire import is_transient, prepare, status_of
from atoll.fleet.folder.certificates import load_public_key
from atoll.fleet.folder.configuration import FILE, FleetConfiguration, RegisteredNode
from atoll.support.errors import AtollError, InputError, RunError, reading

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supercore.runtime import RuntimeHttpClient

# Flower needs an app to start a run; this one is empty, since Atoll itself runs on both sides.
_APP = """
[project]
name = "atoll"
version = "1.0.0"

[tool.flwr.app]
publisher = "atoll"

[tool.flwr.app.components]
serverapp = "atoll.fleet:none"
clientapp = "atoll.fleet:none"
"""


@dataclass(frozen=True)
class _Headers:
    """Adds headers to calls."""

    headers: Mapping[str, str]

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers.update(self.headers)
        return call_next(context)


def _address(configuration: FleetConfiguration) -> str:
    host = configuration.local_host
    return f"[{host}]:{configuration.port}" if ":" in host else f"{host}:{configuration.port}"


def _place(configuration: FleetConfiguration, token: str | None) -> dict[str, Any]:
    """Return a client's arguments: the superlink's address and the secret."""
    from flwr.supercore.constant import TASK_TOKEN_HEADER
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    headers = {HEADER: configuration.secret} | ({TASK_TOKEN_HEADER: token} if token else {})
    return {
        "server_address": _address(configuration),
        "insecure": False,
        "root_certificates": (configuration.folder / "ca.pem").read_bytes(),
        "interceptors": [RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"), _Headers(headers)],
    }


def control_client(configuration: FleetConfiguration) -> "ControlHttpClient":
    """Return a client of the API that registers nodes and starts runs."""
    prepare(configuration.state, configuration.local_host)
    from flwr.supercore.control.control_http_client import ControlHttpClient

    return ControlHttpClient.from_server_address(**_place(configuration, None))


def runtime_client(configuration: FleetConfiguration, token: str | None = None) -> "RuntimeHttpClient":
    """Return a client of the API that sends messages, for the task of this token."""
    prepare(configuration.state, configuration.local_host)
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(**_place(configuration, token))


def read_keys(configuration: FleetConfiguration) -> dict[bytes, str]:
    """Return the nodes' names by their public keys in ``fleet.toml``, as PEM, which Flower registers."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    form = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    with reading(str(configuration.folder / FILE)):
        return {load_public_key(node.public_key).public_bytes(*form): node.name for node in configuration.nodes}


def list_nodes(configuration: FleetConfiguration) -> "dict[str, NodeInfo]":
    """Return what Flower knows about each registered node, by its name in ``fleet.toml``."""
    from flwr.proto.control_pb2 import ListNodesRequest

    keys = read_keys(configuration)
    with control_client(configuration) as control:
        infos = control.ListNodes(ListNodesRequest()).nodes_info
    return {keys[info.public_key]: info for info in infos if info.public_key in keys and info.status != "unregistered"}


def register_nodes(configuration: FleetConfiguration) -> dict[int, str]:
    """Register exactly the keys in ``fleet.toml`` with Flower; return the nodes' names by Flower's numbers."""
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

    names = read_keys(configuration)
    with control_client(configuration) as control:
        there = {
            info.public_key: info.node_id
            for info in control.ListNodes(ListNodesRequest()).nodes_info
            if info.status != "unregistered"
        }
        for key in there.keys() - names.keys():
            control.UnregisterNode(UnregisterNodeRequest(node_id=there[key]))
        for key in names.keys() - there.keys():
            there[key] = control.RegisterNode(RegisterNodeRequest(public_key=key, name=names[key])).node_id
    return {there[key]: name for key, name in names.items()}


def forget(configuration: FleetConfiguration, messages: Sequence[str]) -> None:
    """Let the superlink delete messages that nobody waits for, and their replies."""
    tell_guard(configuration, FORGET, list(messages))


def tell_guard(configuration: FleetConfiguration, path: str, content: Any = None) -> None:
    """Call one of the guard's own paths, such as `guard.OPEN`, which lets nodes in."""
    prepare(configuration.state, configuration.local_host)
    import httpx

    context = ssl.create_default_context(cadata=(configuration.folder / "ca.pem").read_text())
    url = f"https://{_address(configuration)}{path}"
    httpx.post(url, json=content, headers={HEADER: configuration.secret}, verify=context).raise_for_status()


def begin_task(configuration: FleetConfiguration) -> tuple[int, str]:
    """Start a Flower run and take its only task; return the run's number and the task's token.

    Flower would start a process for the task; here the calling process carries it out.
    """
    from flwr.common.constant import Status
    from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
    from flwr.supercore.constant import TaskType

    app = io.BytesIO()  # empty, always with the same bytes
    with zipfile.ZipFile(app, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
    with control_client(configuration) as control, runtime_client(configuration) as runtime:
        for run_id, run in control.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != Status.FINISHED:  # left behind by a killed server
                with contextlib.suppress(Exception):
                    control.StopRun(StopRunRequest(run_id=run_id))
        run_id = control.StartRun(StartRunRequest(fab=Fab(content=app.getvalue()))).run_id
        taken = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    if not run_id or not taken.token or taken.task.run_id != run_id:
        raise RunError("Flower's superlink started no run; its last words are in state/superlink.log")
    with runtime_client(configuration, taken.token) as runtime:
        runtime.PullTaskInput(PullTaskInputRequest())  # this starts the task
    return run_id, taken.token


def is_task_lost(error: Exception) -> bool:
    """Return whether Flower has abandoned the task, after a minute without a heartbeat."""
    return status_of(error) in (401, 403)


def status_of_nodes(configuration: FleetConfiguration) -> list[dict[str, Any]]:
    """Return each node's name, clients, status (online, offline, registered, unknown), its last change, and last sign.

    Times are UTC. Nodes give a sign of life every 20 s; one that is offline was last seen when it changed.
    """
    try:
        rows = list_nodes(configuration)
    except Exception as error:
        if isinstance(error, AtollError):
            raise
        told = "nothing answers" if is_transient(error) else f"not this fleet's server answers ({type(error).__name__})"
        raise InputError(
            f"{configuration.folder}: {told} on port {configuration.port}; is atoll fleet server running?"
        ) from error
    return [_row_of(node, rows.get(node.name)) for node in configuration.nodes]


def _row_of(node: RegisteredNode, info: "NodeInfo | None") -> dict[str, Any]:
    from flwr.common.constant import HEARTBEAT_PATIENCE

    status = "unknown" if info is None else info.status
    since = seen = None
    if info is not None:
        since = {"online": info.last_activated_at, "offline": info.last_deactivated_at}.get(status, info.registered_at)
        seen = since if status == "offline" else None
        if status == "online":
            beat = info.online_until - HEARTBEAT_PATIENCE * info.heartbeat_interval
            seen = datetime.fromtimestamp(beat, UTC).isoformat(timespec="seconds")
    row = {"node": node.name, "clients": list(node.clients), "status": status}
    return row | {"since": since or None, "last_seen": seen or None}
