"""A fleet of real processes on this machine, for trying one out."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from atoll.experiment.experiment import Experiment
from atoll.fleet.agreed.transport import Properties
from atoll.fleet.flower.flower_fleet import FlowerFleet
from atoll.fleet.flower.superlink import end_child, free_port, start_child
from atoll.fleet.flower.wire import environment
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.fleet.node.shards import write_shards
from atoll.support.errors import InputError, RunError, reason_of
from atoll.support.lock import LOCK, locked

_PREFIX = "atoll-fleet-"


@contextlib.contextmanager
def own_place() -> Iterator[Path]:
    """Yield an empty folder for a fleet; first delete folders, with their keys, left by killed processes."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{LOCK}"):
        with contextlib.suppress(InputError, RunError, OSError):  # in use, or owned by another user
            if os.getuid() == left.parent.lstat().st_uid:
                with locked(left.parent):
                    shutil.rmtree(left.parent, ignore_errors=True)
    try:
        made = tempfile.TemporaryDirectory(prefix=_PREFIX)
    except OSError as error:
        raise RunError(f"no temporary folder can be made: {reason_of(error)}; TMPDIR names another place") from error
    with made as place, locked(Path(place)):
        yield Path(place)


class LocalFleet(FlowerFleet):
    """A superlink and nodes as processes on this machine, with TLS and keys, running inside this context.

    A node that ends before it was ever online is an error; one that dies later is tolerated.
    """

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        nodes: int,
        words: Sequence[str],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Write the fleet's folder and the clients' data into an empty folder.

        Args:
            nodes: number of nodes, with about equally many clients.
            words: arguments of ``atoll fleet node`` that name the experiment.
        """
        clients = len(experiment.population)
        samples = tuple(experiment.population.sizes.tolist())
        plan = FleetPlan(nodes, "127.0.0.1", clients=clients, listen="127.0.0.1", port=free_port(), samples=samples)
        super().__init__(init_fleet(folder / "fleet", plan), tell)
        write_shards(experiment, folder / "data")
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self._folder, self._words = folder, words
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        """Start the superlink and the nodes; `nodes` shows when they are online."""
        super().__enter__()
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            self._held.callback(self._end_nodes)
            for node in self.configuration.nodes:
                self.start(node.name)
            failed.pop_all()
        return self

    def start(self, name: str) -> None:
        """Start or restart a node's process."""
        node = next(node for node in self.configuration.nodes if node.name == name)
        data = self._folder / "data"
        words = ["-m", "atoll", "fleet", "node", *self._words, "--attached"]
        words += ["--config", str(self.configuration.folder / "nodes" / name / "node.toml")]
        words += ["--data", str(data if len(node.clients) > 1 else data / f"client-{node.clients[0]}")]
        with open(self.log_of(name), "ab") as log:
            self.children[name] = start_child(words, log, environment(self.configuration.state))

    def log_of(self, name: str) -> Path:
        """Return the file with a node's output."""
        return self.configuration.state / f"{name}.log"

    def nodes(self) -> dict[str, Properties]:
        """Return the nodes that are online."""
        there = super().nodes()
        self._seen |= there.keys()
        for name, child in self.children.items():
            if name not in self._seen and child.poll() is not None:
                lines = self.log_of(name).read_text(errors="replace").strip().splitlines()
                raise RunError(f"{name} ended: {lines[-1].removeprefix('error: ') if lines else 'it said nothing'}")
        return there

    def _end_nodes(self) -> None:
        """End the nodes together; each signs off from the superlink."""
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        until = time.monotonic() + 5
        for child in self.children.values():
            end_child(child, max(until - time.monotonic(), 0.1))
