"""A network by name: clients, their devices, and links with rates and latencies in both directions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.network.network import Power
from atoll.network.network_files import ClientTable
from atoll.network.network_records import Record, read_document, require_fields, tables
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.wording import show

SERVER, ALL = "server", "*"
_WAYS = ("up_mbps", "up_seconds", "up_ms", "down_mbps", "down_seconds", "down_ms")
_PRICES = ("up_price", "down_price")
WATTS = ("compute_watts", "send_watts", "receive_watts")
LINK_FIELDS = ("from", "to", *_WAYS, *_PRICES)
CLIENT_FIELDS = ("client", "device", "samples", "seconds_per_sample", *WATTS)
DEVICE_FIELDS = ("seconds_per_sample", *WATTS, *_WAYS)
_KEYS = ("server", "clients", "devices", "links")


@dataclass(frozen=True)
class Way:
    """One direction of a link.

    Attributes:
        latency: seconds until data begins to arrive.
        carries: seconds for a whole model to pass.
        price: of sending a whole model.
    """

    latency: float
    carries: float
    price: float = 0.0

    @property
    def seconds(self) -> float:
        """Of a whole model, with the latency."""
        return self.latency + self.carries

    def through(self, pipe: "Way") -> "Way":
        """Return this way if it also leads through a pipe, at the slower one's rate and with both latencies."""
        return Way(self.latency + pipe.latency, max(self.carries, pipe.carries), self.price + pipe.price)


FREE = Way(0.0, 0.0)


@dataclass(frozen=True)
class Link:
    """A link between two nodes.

    Attributes:
        where: the row of the file, for errors.
        lower: a client, an aggregator, or a node that passes models on; `ALL`: all that send to the upper one share it.
        upper: an aggregator, a node that passes models on, or the server.
        up: from the lower to the upper.
        down: the reverse; None where the file does not say, and downloads are free.
    """

    where: str
    lower: str
    upper: str
    up: Way
    down: Way | None

    @property
    def back(self) -> Way:
        """The direction `down`, `FREE` where it is not given."""
        return self.down or FREE


@dataclass(frozen=True, eq=False)
class LinksFile:
    """The content of a network's file.

    Attributes:
        server: the server's name.
        rows: the links, as they are written.
        table: the clients, if the file has them.
        kinds: the fields of each device, by its name.
        devices: the fields of each client's device, by client.
    """

    path: Path
    server: str
    rows: list[Record]
    table: ClientTable | None
    kinds: Mapping[str, Mapping[str, Any]]
    devices: Mapping[str, Mapping[str, Any]]

    @property
    def has_prices(self) -> bool:
        """Whether the links have prices."""
        return any(name in row.fields for row in self.rows for name in _PRICES)

    def with_clients(self, records: Sequence[Record]) -> "LinksFile":
        """Return it with clients: its own, or those of a file beside it."""
        if self.table is not None:
            raise InputError(f"{self.path} has 'clients' too; give one of them")
        return replace(self, table=read_clients(records, self.kinds), devices=_devices_of(records, self.kinds))

    def links(self, model_bytes: int) -> list[Link]:
        """Return the links for models of this size."""
        rows = [replace(row, fields=_with_device(row, self.devices)) for row in self.rows]
        is_down = any(name.startswith("down_") for row in rows for name in row.fields)
        return [_link(row, model_bytes, is_down) for row in rows]


def read_links(path: str | Path) -> LinksFile:
    """Read a network's file: links as CSV; links, clients, devices and the server's name as TOML or JSON."""
    path = Path(path)
    document = {"links": str(path.name)} if path.suffix.lower() == ".csv" else read_document(path)
    if unknown := [key for key in document if key not in _KEYS]:
        raise InputError(f"{path}: unknown key {unknown[0]!r}; allowed are {', '.join(_KEYS)}")
    rows = tables(path, "links", document.get("links"))
    require_fields(rows, LINK_FIELDS)
    kinds: Any = document.get("devices", {})
    if not isinstance(kinds, dict) or not all(isinstance(fields, dict) for fields in kinds.values()):
        raise InputError(f"{path}: 'devices' must be a table of tables, such as [devices.phone]")
    require_fields([Record(f"{path}: device {name!r}", fields) for name, fields in kinds.items()], DEVICE_FIELDS)
    server = Record(str(path), {"server": document.get("server", SERVER)}).text("server")
    file = LinksFile(path, server, rows, None, kinds, {})
    return file.with_clients(tables(path, "clients", document["clients"])) if "clients" in document else file


def read_clients(records: Sequence[Record], devices: Mapping[str, Mapping[str, Any]]) -> ClientTable:
    """Return the clients of these rows, each completed by its device; sorted if their names are 0 to N - 1."""
    require_fields(list(records), CLIENT_FIELDS)
    rows = _completed(records, devices)
    columns = {name: _column(rows, name) for name in CLIENT_FIELDS[2:]}
    samples = columns["samples"]
    if samples is not None and (broken := (samples != np.floor(samples)) | (samples >= 2**53)).any():
        raise InputError(f"{rows[int(broken.argmax())].where}: 'samples' must be a whole number")
    watts, zeros = [columns[name] for name in WATTS], np.zeros(len(rows))
    return ClientTable(
        clients=len(rows),
        clients_xy=None,
        watts=None,
        seconds_per_sample=columns["seconds_per_sample"],
        samples=None if samples is None else samples.astype(np.int64),
        names=tuple(row.text("client") for row in rows),
        power=None if all(w is None for w in watts) else Power(*(zeros if w is None else w for w in watts)),
    )


def _completed(records: Sequence[Record], devices: Mapping[str, Mapping[str, Any]]) -> list[Record]:
    """Return clients' rows with the fields of their devices; by number where their names are 0 to N - 1."""
    own = _devices_of(records, devices)
    names = [record.text("client") for record in records]
    if len(own) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{records[0].where.rpartition(':')[0]}: client {twice!r} is given twice")
    rows = [replace(record, fields={**own[name], **record.fields}) for record, name in zip(records, names, strict=True)]
    is_numbered = own.keys() == {str(number) for number in range(len(rows))}
    return sorted(rows, key=lambda row: int(row.text("client"))) if is_numbered else rows


def _devices_of(records: Sequence[Record], devices: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the fields of each client's device, by client; none for a client without a device."""
    found: dict[str, Mapping[str, Any]] = {}
    for record in records:
        device = None if record.fields.get("device") is None else record.text("device")
        if device is not None and device not in devices:
            known = ", ".join(map(repr, devices)) or "none"
            raise InputError(f"{record.where}: 'device' is {show(device)}; the file's devices are {known}")
        found[record.text("client")] = {} if device is None else devices[device]
    return found


def _with_device(row: Record, devices: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a link's fields, with those that the row lacks taken from the client's device."""
    device = devices.get(str(row.fields.get("from")), {})
    missing = [
        name
        for way in ("up", "down")
        for name in _WAYS
        if name.startswith(way) and not any(f"{way}_{unit}" in row.fields for unit in ("mbps", "seconds"))
    ]
    return {**{name: device[name] for name in missing if name in device}, **row.fields}


def _link(row: Record, model_bytes: int, is_down: bool) -> Link:
    lower, upper = row.text("from"), row.text("to")
    if lower == upper:
        raise InputError(f"{row.where}: joins {lower!r} with itself")
    down = _way(row, "down", model_bytes) if is_down else None
    return Link(row.where, lower, upper, _way(row, "up", model_bytes), down)


def _way(row: Record, way: str, model_bytes: int) -> Way:
    rate, seconds = row.number(f"{way}_mbps", above=True), row.number(f"{way}_seconds")
    latency = (row.number(f"{way}_ms") or 0.0) / 1000
    if (rate is None) == (seconds is None):
        told = "neither" if rate is None else "both"
        raise InputError(f"{row.where}: has {told} of '{way}_mbps' and '{way}_seconds'; it must have one")
    price = (row.number(f"{way}_price") or 0.0) * model_bytes / 1e9
    return Way(latency, 8 * model_bytes / (1e6 * rate) if rate is not None else seconds or 0.0, price)


def _column(rows: Sequence[Record], name: str) -> Floats | None:
    """Return a column that all rows have, or None if no row has it."""
    values = [row.number(name, above=name not in WATTS) for row in rows]
    lacking = [row for row, value in zip(rows, values, strict=True) if value is None]
    if len(lacking) == len(rows):
        return None
    if lacking:
        raise InputError(f"{lacking[0].where}: has no {name!r}, which other clients have")
    return np.array(values, float)
