"""From settings to what is known of a network's clients: their names, samples, speeds and powers."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from atoll.network.links import LinksFile, read_links
from atoll.network.mobility import Trace
from atoll.network.network_files import ClientTable, read_network_clients
from atoll.network.network_records import read_records
from atoll.network.wireless import draw_watts
from atoll.settings.validation import Settings
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, reading
from atoll.support.seeds import generator

Read = TypeVar("Read", ClientTable, Trace)


@dataclass(frozen=True)
class NetworkClients:
    """The clients of a network, as its files, the settings and draws say; files are read once.

    Attributes:
        settings: the run's.
        clients: their number.
        are_placed: whether the clients' file must have positions; otherwise it may have transfer times in their place.
    """

    settings: Settings
    clients: int
    are_placed: bool = False

    @cached_property
    def links(self) -> LinksFile | None:
        """The network's file, with the clients named in it or in the file beside it."""
        wanted = self.settings.network
        if wanted.file is None:
            return None
        with reading("network.file"):
            file = read_links(wanted.file)
        if wanted.clients_file is not None:
            with reading("network.clients_file"):
                file = file.with_clients(read_records(Path(wanted.clients_file)))
        if file.table is not None:
            setting = "network.file" if wanted.clients_file is None else "network.clients_file"
            require_count(setting, wanted.clients_file or wanted.file, file.table, self.clients)
        return file

    @cached_property
    def table(self) -> ClientTable | None:
        """What a file says of the clients."""
        wanted = self.settings.network
        if self.links is not None:
            return self.links.table
        if wanted.clients_file is None:
            return None
        with reading("network.clients_file"):
            table = read_network_clients(wanted.clients_file, ())
            needs_places = wanted.trace_file is None and (self.are_placed or table.upload_seconds is None)
            if needs_places and table.clients_xy is None:
                read_network_clients(wanted.clients_file, ("x", "y"))  # says which column is missing
        return require_count("network.clients_file", wanted.clients_file, table, self.clients)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names from `network.file`, otherwise their numbers."""
        named = self.links and self.links.table
        return (named and named.names) or tuple(map(str, range(self.clients)))

    def samples(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return each client's sample count: from the file if given there, otherwise these, from the data."""
        return sizes if self.table is None or self.table.samples is None else self.table.samples

    @property
    def speeds(self) -> Floats:
        """Each client's training time per sample, zeta_i: from the file, drawn, or the same for all."""
        if self.table is not None and self.table.seconds_per_sample is not None:
            return self.table.seconds_per_sample
        wanted, seed = self.settings.network.seconds_per_sample, self.settings.seed
        if not isinstance(wanted, list):
            return np.full(self.clients, float(wanted))
        return generator(seed, "speeds").uniform(*_ascending("network.seconds_per_sample", wanted), self.clients)

    @property
    def uploads(self) -> Floats:
        """Each client's time to upload a model to the one server: from the file, or the same for all."""
        wanted = self.settings.network
        if wanted.clients_file is not None and self.table is not None and self.table.upload_seconds is not None:
            return self.table.upload_seconds
        return np.full(self.clients, float(wanted.upload_seconds))

    @property
    def watts(self) -> Floats:
        """Each client's transmission power: from the file, or drawn."""
        if self.table is not None and self.table.watts is not None:
            return self.table.watts
        low, high = _ascending("network.client_milliwatts", self.settings.network.client_milliwatts)
        return draw_watts(self.clients, generator(self.settings.seed, "powers"), low, high)


def require_count(setting: str, path: str, read: Read, clients: int) -> Read:
    """Reject a file of another number of clients."""
    if read.clients != clients:
        raise InputError(f"{setting} = {path!r}: has {read.clients} clients, but data.clients = {clients}")
    return read


def _ascending(name: str, ends: list[float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise InputError(f"{name} = {ends}: must be two numbers, the lower first")
    return ends[0], ends[1]
