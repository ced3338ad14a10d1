"""Nodes that are forked from this process, which has imported all that they need: a hundred fit into memory."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.killing import fork


class ForkedNode:
    """A process of `atoll`, of which as much as of `subprocess.Popen` is here as a fleet of machines needs."""

    args: tuple[str, ...] = ()

    def __init__(self, words: Sequence[str], folder: Path, log: int) -> None:
        """Start it with these words of `atoll`; its output goes to a file."""
        import_all(folder)
        self.returncode: int | None = None
        self.pid = fork(lambda: _be(words, folder, log))

    def poll(self) -> int | None:
        """Return how it has ended, if it has."""
        return self._ended(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end."""
        return self._ended(0)

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


def import_all(home: Path) -> None:
    """Import what a node does, Flower with its files in `home`."""
    from atoll.fleet.flower.wire import prepare

    prepare(home)
    import flwr.supercore.inflatable.inflatable_utils
    import flwr.supernode.fleet_http_client  # noqa: F401

    import atoll.cli
    import atoll.fleet.flower.flower_node
    import atoll.fleet.node.handlers
    import atoll.fleet.node.node  # noqa: F401


def _be(words: Sequence[str], folder: Path, log: int) -> None:
    from atoll.cli import main as atoll

    os.setsid()
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.exit(atoll(list(words)))
