"""A running fleet and its run as Prometheus metrics, at an address of their own."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.cli.fleet_roles import CERTIFICATES, last_row, status_rows
from atoll.fleet.folder.certificates import validity
from atoll.support.errors import InputError, reason_of
from atoll.support.extras import load_extra

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from atoll.fleet.folder.configuration import FleetConfiguration

# Columns of the last row of metrics that are shown.
_OF_A_ROW = ("event", "round", "virtual_time", "train_loss", "test_accuracy", "bytes_up", "bytes_down", "epsilon")


@contextmanager
def serving_metrics(address: str | None, fleet: "FleetConfiguration", folder: Path) -> Iterator[None]:
    """Serve the metrics of a fleet and of the run in a folder while this context lasts; None: do not.

    An address is ``[HOST:]PORT``; without a host only this machine can read them.
    """
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--metrics {address!r}: must be PORT or HOST:PORT, such as 127.0.0.1:9464")
    if int(port) == fleet.port:
        raise InputError(f"--metrics {address}: is the fleet's own port in fleet.toml; give another")
    prometheus = load_extra("prometheus_client", "prometheus", "--metrics")
    registry = prometheus.CollectorRegistry()
    registry.register(FleetCollector(fleet, folder))
    try:
        server, thread = prometheus.start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except OSError as error:
        raise InputError(f"--metrics {address}: {reason_of(error)}; give another address") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class FleetCollector:
    """Reads the state of a fleet, and of the run in a folder, whenever it is asked, as `atoll fleet status` does."""

    fleet: "FleetConfiguration"
    folder: Path

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        from atoll.fleet.folder.configuration import read_fleet

        try:
            rows, is_up = status_rows(read_fleet(self.fleet.folder), self.folder), True  # its keys may have changed
        except InputError:  # it is starting, or away
            rows, is_up = [], False
        yield GaugeMetricFamily("atoll_fleet_superlink_up", "Whether the superlink answers.", is_up)
        expiry = GaugeMetricFamily("atoll_fleet_certificate_expiry_seconds", "Unix time of the end.", labels=["role"])
        for role, file in CERTIFICATES.items():
            with suppress(InputError):  # it has expired: the superlink is not up either
                expiry.add_metric([role], validity(self.fleet.folder / file)[1].timestamp())
        online = GaugeMetricFamily("atoll_fleet_node_online", "Whether a node is present.", labels=["node"])
        late = GaugeMetricFamily("atoll_fleet_node_late", "Late answers in a row.", labels=["node"])
        refused = CounterMetricFamily(
            "atoll_fleet_results_refused", "Results that were refused or did not come.", labels=["node", "reason"]
        )
        for row in rows:
            online.add_metric([row["node"]], row["status"] == "online")
            late.add_metric([row["node"]], row["strikes"])
            for reason, count in row["refused"].items():
                refused.add_metric([row["node"], reason], count)
        yield from (expiry, online, late, refused)
        last = last_row(self.folder)
        for name in _OF_A_ROW:
            if isinstance(value := last.get(name), int | float):
                yield GaugeMetricFamily(f"atoll_run_{name}", f"{name} of the run's last row of metrics.", value)
