"""A fleet's folder as server and nodes read it; ``atoll fleet init`` writes it (`atoll.fleet.folder.init`).

::

    fleet/
      fleet.toml  ca.pem  server.pem  server.key  secret      stay on the server
      ca.key                                                  signs new certificates; better kept off-line
      state/                                                  Flower's database and log
      nodes/node-0/  node.toml  node.key  ca.pem  peers.toml  goes to the machine of node 0
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from atoll.fleet.agreed.terms import ALLOWABLE
from atoll.fleet.node.noise_added import Hidden
from atoll.fleet.node.work_count import WorkBudget
from atoll.support.errors import InputError
from atoll.support.limits import LARGEST
from atoll.support.untrusted import MOST_BYTES_OF_TOML, parse_toml, read_bytes
from atoll.support.wording import show

FILE, PEERS = "fleet.toml", "peers.toml"
_FAULTS = {"missing": "is missing", "extra_forbidden": "is unknown"}

_Port = Annotated[int, Field(ge=1, le=65535)]
_Mib = Annotated[int, Field(ge=1, le=1024)]
_Most = Annotated[int, Field(ge=0, le=LARGEST)]
_Clients = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]


class FleetTable(BaseModel):
    """A table of a fleet's files."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Kind = TypeVar("_Kind", bound=FleetTable)


class Peer(FleetTable):
    """A node's name and public key: whoever has the private key is the node."""

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    public_key: str


class RegisteredNode(Peer):
    """A node whose key the server accepts; the key determines its name and clients, not what the node says.

    `samples` are those of each client, as agreed with its owner; None: as reported, within bounds.
    """

    clients: _Clients
    samples: tuple[Annotated[int, Field(ge=1, le=LARGEST)], ...] | None = None

    @model_validator(mode="after")
    def _one_for_each(self) -> Self:
        if self.samples is not None and len(self.samples) != len(self.clients):
            raise ValueError(f"has samples = {list(self.samples)}, clients = {list(self.clients)}; give one for each")
        return self


class FleetConfiguration(FleetTable):
    """The server's configuration, ``fleet.toml``.

    Attributes:
        host: the name or address that nodes call.
        listen: the address to listen on, which the server's certificate names; 127.0.0.1 behind a proxy.
        max_mib: largest reply, MiB.
    """

    folder: Path
    host: str
    listen: str = "0.0.0.0"
    port: _Port = 9092
    max_mib: _Mib = 256
    nodes: tuple[RegisteredNode, ...]

    @property
    def local_host(self) -> str:
        """The server's address on this machine."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)

    @property
    def state(self) -> Path:
        """The folder of Flower's own files."""
        return self.folder / "state"

    @property
    def secret(self) -> str:
        """The secret for everything but the nodes' API."""
        return read_file(self.folder / "secret").decode().strip()


class NodeConfiguration(FleetTable):
    """A node's configuration, ``node.toml``.

    Attributes:
        name: the node's name, used only in messages.
        max_mib: largest reply that it sends, MiB.
        most_trainings: trainings of each client, over all runs with the same client work; None: unlimited.
        most_losses: reported losses of each client; None: those of three whole runs.
        most_epsilon: privacy budget of each client over all runs; None: ``privacy.epsilon`` of the owner's copy.
        delta: of that budget; None: ``privacy.delta`` of the owner's copy, or 1e-5 with `most_epsilon`.
        allow: settings that the server may choose, such as ``local.lr`` or ``method.*``; all others come from the
            owner's copy of the experiment.
    """

    folder: Path
    server: str
    name: str
    clients: _Clients
    max_mib: _Mib = 256
    most_trainings: _Most | None = None
    most_losses: _Most | None = None
    most_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    reports: Hidden | None = None
    allow: tuple[str, ...] = ()

    @field_validator("server")
    @classmethod
    def _is_address(cls, server: str) -> str:
        host, _, port = server.rpartition(":")
        if not re.fullmatch(r"[^/\s]+", host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise ValueError(f"= {server!r}: must be a name or address and a port, such as fleet.example.org:9092")
        return server

    @field_validator("allow")
    @classmethod
    def _can_be_allowed(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        if odd := [pattern for pattern in patterns if not re.fullmatch(ALLOWABLE, pattern)]:
            told = "must be seed, rounds, clustering.clusters, or a setting of model, travel, local or method that"
            raise ValueError(f"has {odd[0]!r}: {told} names no file, such as local.lr or method.*")
        return patterns

    @property
    def budget(self) -> WorkBudget:
        """Limits on its work for each client."""
        return WorkBudget(self.most_trainings, self.most_losses, self.most_epsilon, self.delta)

    @property
    def key(self) -> Path:
        """The file of its private key."""
        return self.folder / "node.key"

    @property
    def peers(self) -> Path:
        """The file of all nodes' public keys."""
        return self.folder / PEERS

    @property
    def authority(self) -> Path:
        """The file of the authority's certificate."""
        return self.folder / "ca.pem"


def read_fleet(folder: Path) -> FleetConfiguration:
    """Return the server's configuration."""
    path = folder if folder.name == FILE else folder / FILE
    configuration = read_table(FleetConfiguration, path, folder=path.parent.resolve())
    for key in ("name", "clients", "public_key"):
        values = [getattr(node, key) for node in configuration.nodes]
        values = [client for clients in values for client in clients] if key == "clients" else values
        values = [" ".join(value.split()[:2]) for value in values] if key == "public_key" else values
        if twice := [value for value in values if values.count(value) > 1]:
            value = f"{str(twice[0])[:60]}" + ("..." if key == "public_key" else "")
            raise InputError(f"{path}: nodes: {key} has {value} twice; each node needs its own")
    return configuration


def read_node(path: Path) -> NodeConfiguration:
    """Return a node's configuration."""
    path = path / "node.toml" if path.is_dir() else path
    return read_table(NodeConfiguration, path, folder=path.parent.resolve())


def read_table(kind: type[_Kind], path: Path, **more: object) -> _Kind:
    """Return a TOML file's table, with more fields than it has."""
    try:
        table: Mapping[str, Any] = parse_toml(read_file(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    try:
        return kind.model_validate({**table, **more})
    except ValidationError as error:
        first = error.errors()[0]
        name, told = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        told = _FAULTS.get(first["type"], re.sub(r"^\w+ should", lambda _: f"= {show(first['input'])}: must", told))
        raise InputError(f"{path}: {name} {told}") from error


def read_file(path: Path) -> bytes:
    """Return the content of one of the fleet's files."""
    try:
        return read_bytes(path, most=MOST_BYTES_OF_TOML)
    except OSError as error:
        hint = "; atoll fleet init makes it" if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{path}: {error.strerror or error}{hint}") from error
