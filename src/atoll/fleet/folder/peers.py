"""The public keys by which nodes recognise each other; an owner must not get them from the server alone.

::

    nodes/node-0/peers.toml        [[nodes]] name, public_key: of all nodes of the fleet
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from atoll.fleet.agreed.transport import Properties
from atoll.fleet.folder.certificates import load_public_key, read_private_key
from atoll.fleet.folder.configuration import FleetTable, Peer, read_table
from atoll.secure.participant import Identity
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


class _Peers(FleetTable):
    nodes: tuple[Peer, ...]


def peers_as_toml(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return ``peers.toml`` for the nodes in ``fleet.toml``."""
    return tomli_w.dumps({"nodes": [{key: row[key] for key in ("name", "public_key")} for row in rows]}).encode()


def read_identity(name: str, key: Path, peers: Path) -> Identity | None:
    """Return a node's identity; None without ``peers.toml``."""
    if not peers.exists():
        return None
    nodes = read_table(_Peers, peers).nodes
    known = {peer.name: load_public_key(peer.public_key) for peer in nodes}
    if len(known) < len(nodes):
        raise InputError(f"{peers}: nodes: a name twice; each node has its own")
    private = read_private_key(key)
    own = private.public_key()
    if name not in known or known[name].public_numbers() != own.public_numbers():
        what = "another public key" if name in known else "no public key"
        raise InputError(f"{peers}: has {what} of {name!r}; it must be that of {key.name}")
    if len({each.public_numbers() for each in known.values()}) < len(known):
        raise InputError(f"{peers}: nodes: a key twice; each node has its own")
    return Identity(name, private, known)


def public_keys(nodes: Mapping[str, Properties]) -> "dict[str, EllipticCurvePublicKey]":
    """Return the public keys by which a fleet's transport knows its nodes."""
    if without := sorted(name for name, known in nodes.items() if "public_key" not in known):
        raise InputError(f"secure.sums = true: the public key of node {without[0]!r} is not known")
    return {name: load_public_key(str(known["public_key"])) for name, known in nodes.items()}
