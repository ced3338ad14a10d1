"""Starting, supervising and ending Flower's superlink."""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Self, TypeVar

from atoll.fleet.agreed.waiting import passed, waiting
from atoll.fleet.flower.calls import list_nodes, read_keys, tell_guard
from atoll.fleet.flower.guard import OPEN, OVERHEAD
from atoll.fleet.flower.link import UNREADABLE
from atoll.fleet.flower.refusals import MARK
from atoll.fleet.flower.wire import BROKEN, environment, insist, status_of
from atoll.fleet.folder.certificates import require_flower, require_valid
from atoll.fleet.folder.configuration import FleetConfiguration
from atoll.support.errors import AtollError, InputError, RunError, reason_of, refusing
from atoll.support.files import make_folder, write_atomically

_Result = TypeVar("_Result")

START_SECONDS = 60.0
# If a superlink dies more often than this in a minute, restarting will not help.
_RESTARTS = 8
_ROOM = 1 << 16  # smallest free space for its database, in bytes
_MOST_LOG_BYTES = 1 << 20  # of its log that are read at once


class Superlink:
    """Flower's superlink as a child process, restarted when it dies; it runs inside this context.

    Its database is in the fleet's folder, so registered nodes and pending messages survive a restart.
    """

    def __init__(self, configuration: FleetConfiguration, tell: Callable[[str], None] = lambda _: None) -> None:
        """Use this configuration; nothing is started. `tell` receives a sentence when it dies or rejects calls."""
        self.configuration = configuration
        self._tell = tell
        self._log = configuration.state / "superlink.log"
        self._read = self._log.stat().st_size if self._log.exists() else 0
        self._child: subprocess.Popen[bytes] | None = None
        self._is_open = False
        self._is_over = threading.Event()
        self._fault: RunError | None = None
        self._watcher = threading.Thread(target=self._watch, name="superlink", daemon=True)

    def __enter__(self) -> Self:
        """Start it and wait until it answers."""
        require_flower()
        read_keys(self.configuration)
        certificate, key = self.configuration.folder / "server.pem", self.configuration.folder / "server.key"
        require_valid(self.configuration.folder / "ca.pem")
        require_valid(certificate)
        require_pair = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain
        with contextlib.suppress(OSError):  # of a renewal that was killed before its last step
            require_pair(certificate, f"{key}.new", password="")
            os.replace(f"{key}.new", key)
        with refusing(f"{key}: must be the key of server.pem, without a password"):
            require_pair(certificate, key, password="")
        if not self.configuration.secret:
            raise InputError(f"{self.configuration.folder / 'secret'}: is empty; fill it, as with openssl rand -hex 32")
        require_free(self.configuration.listen, self.configuration.port)
        make_folder(self.configuration.state, 0o700)
        began = time.monotonic()
        self._tell(f"starting Flower's superlink on {self.configuration.listen}:{self.configuration.port}")
        self._start()
        self._watcher.start()
        try:
            with waiting(self._tell, lambda: f"the superlink is starting: {passed(began)} of {START_SECONDS:g} s"):
                insist(lambda: self.ask(lambda: list_nodes(self.configuration)), began + START_SECONDS, pause=0.2)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, Exception) and not isinstance(error, AtollError):
                raise self._fault or self.fault_of(error) from error
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        if self._child is not None:
            end_child(self._child)
        if self._watcher.is_alive():
            self._watcher.join(timeout=10)

    @property
    def pid(self) -> int:
        """The current process; it changes with a restart."""
        assert self._child is not None
        return self._child.pid

    def open(self) -> None:
        """Admit nodes, now and after a restart; call it when their keys are registered."""
        self._is_open = True
        insist(lambda: tell_guard(self.configuration, OPEN), time.monotonic() + START_SECONDS)

    def require_up(self) -> None:
        """Check that it is kept running."""
        if self._fault is not None:
            raise self._fault

    def ask(self, call: Callable[[], _Result]) -> _Result:
        """Return a call's result; if it fails for good, such as on a full disk, raise why."""
        try:
            self.require_up()
            return call()
        except Exception as error:
            self.bear(error)
            raise

    def bear(self, error: Exception) -> None:
        """Check that a call's failure may be temporary."""
        self.require_up()
        if status_of(error) == BROKEN:
            self._require_room()

    def fault_of(self, error: Exception) -> RunError:
        """Return the error for a call that failed permanently."""
        status = status_of(error)
        what = f"does not answer ({error})" if status is None else f"answers with the HTTP status {status}"
        return RunError(f"Flower's superlink {what}; its last words are in {self._log}")

    def _require_room(self) -> None:
        probe = self.configuration.state / "room"
        try:
            write_atomically(probe, bytes(_ROOM))
        finally:
            probe.unlink(missing_ok=True)

    def _start(self) -> None:
        with open(self._log, "ab") as log:
            configuration = self.configuration
            most = configuration.max_mib * 2**20 + OVERHEAD
            words = ["-m", "atoll.fleet.flower.link", str(configuration.folder), configuration.listen]
            words += [str(configuration.port), str(most), str(len(configuration.nodes))]
            words += ["--open"] if self._is_open else []
            self._child = start_child(words, log, environment(configuration.state))

    def _pass_on(self) -> None:
        """Report what it rejected since the last check; the rest of its log is for debugging."""
        with contextlib.suppress(OSError), open(self._log, "rb") as log:
            log.seek(self._read)
            *whole, rest = log.read(_MOST_LOG_BYTES).split(b"\n")
            self._read += sum(len(line) + 1 for line in whole)
            if not whole and len(rest) == _MOST_LOG_BYTES:  # more than any line that is passed on
                self._read += len(rest)
            for line in whole:
                if line.startswith(MARK.encode()):
                    self._tell(f"superlink: {line.decode(errors='replace')}")

    def _watch(self) -> None:
        starts = list[float]()
        while not self._is_over.wait(0.2):
            self._pass_on()
            if self._child is None or (status := self._child.poll()) is None:
                continue
            if status == UNREADABLE:
                self._fault = RunError(
                    f"{self.configuration.state / 'flower.db'}: is damaged, or a newer Flower's; delete it: it holds "
                    "only messages on their way, and keys that are registered again from fleet.toml"
                )
                return
            starts = [*(start for start in starts if time.monotonic() - start < 60), time.monotonic()]
            if len(starts) > _RESTARTS:
                self._give_up(f"ended {len(starts)} times in a minute")
                return
            self._tell(f"Flower's superlink ended (status {status}) and is started again; its last words: {self._log}")
            end_child(self._child)  # this closes our end of its standard input
            try:
                self._start()
            except OSError as error:
                self._give_up(f"cannot be started again ({reason_of(error)})")
                return
            if self._is_over.is_set():  # it ended in between
                end_child(self._child)

    def _give_up(self, why: str) -> None:
        """Let the next call fail, naming a full disk if that is the reason."""
        try:
            self._require_room()
            self._fault = RunError(f"Flower's superlink {why}; its last words are in {self._log}")
        except RunError as error:
            self._fault = error


def start_child(words: Sequence[str], log: IO[bytes] | int, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Python with these arguments in its own session, so that Ctrl-C only reaches this process.

    The child must end with its standard input, which we hold, so that it never outlives us.
    """
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, **variables},
    )


def end_child(child: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """End a child by closing its standard input, if necessary by force."""
    if child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()
    try:
        child.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def free_port() -> int:
    """Return a free port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free(host: str, port: int) -> None:
    """Check that a port can be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            raise InputError(
                f"port {port} on {host}: {error.strerror or error}; stop what uses it, or set another port in "
                "fleet.toml (and in the nodes' files), or another listen; atoll fleet renew makes a certificate for it"
            ) from error
