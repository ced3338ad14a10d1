"""The Ray cluster that a run trains on: its own on this machine, or one that the user has started.

This code never searches for clusters, and ends only its own.
"""

import importlib
import importlib.util
import logging
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.support.errors import InputError, RunError, line_of
from atoll.support.extras import pip_install
from atoll.support.process import own_signals

_LONGEST_FOLDER = 40  # characters; Ray puts sockets in it, whose full path may have 107
_CONNECT_SECONDS = 4.0
_HEALTH_SECONDS = 6.0  # from when Ray is imported, which takes long on a busy machine
_HEALTH_CHECK = (
    "import faulthandler, sys, ray; "
    f"faulthandler.dump_traceback_later({_HEALTH_SECONDS:g}, exit=True); ray._raylet.GcsClient(address=sys.argv[1])"
)
_LOOK_SECONDS = 2.0
_GONE_SECONDS = 10.0  # without an answer; Ray ends the process after 60
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


@dataclass(eq=False)
class Cluster:
    """A cluster that this process is connected to.

    Attributes:
        address: host:port of its head.
        workers: number of processes that train on it.
        folder: temporary files of the run's own cluster; None for the user's.
        gpus: each worker's share of a GPU; 0: none.
    """

    ray: Any
    address: str
    workers: int
    folder: Path | None
    gpus: float = 0.0
    _next_look: float = 0.0
    _silent_since: float | None = None

    def put(self, content: Any) -> Any:
        """Put an object into the object store; return a reference."""
        try:
            return self.ray.put(content)
        except Exception as error:  # raised when a user's objects are pickled
            raise RunError(
                f"run.executor = 'ray': the workers' data cannot be put into the object store ({line_of(error)})"
            ) from error

    def require_alive(self) -> None:
        """Check every few seconds that the head answers; workers can continue without it, but not for long."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        if is_listening(self.address, seconds=1.0):
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = time.monotonic()
        elif time.monotonic() - self._silent_since > _GONE_SECONDS:
            raise RunError(
                f"run.executor = 'ray': the cluster's head {self.address} no longer answers; go on with --resume "
                "when there is a cluster again"
            )

    def close(self) -> None:
        """Leave the cluster; end it and remove its files if it is the run's own."""
        with own_signals():  # which Ray replaces
            self.ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def connect(address: str | None, workers: int | None, on_gpus: bool = False) -> Cluster:
    """Connect to the cluster at this address, or start one on this machine.

    Args:
        address: host:port, as `ray start --head` prints it; this machine must be one of the cluster's.
        workers: number of processes that train; by default the number of the cluster's cores, or GPUs. Required if
            the run starts its own cluster.
        on_gpus: whether workers have a GPU each, or, if they are more, equal shares of one.
    """
    if address is not None:
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InputError(f"run.address = {address!r}: must be host:port, as `ray start --head` prints it")
    if importlib.util.find_spec("ray") is None:
        raise InputError(f"run.executor = 'ray': needs ray; run {pip_install('ray')}, or use 'cores'")
    _set_up(own=address is None)
    ray = _import_ray(own=address is None)
    if ray.is_initialized():
        raise InputError(
            "run.executor = 'ray': this process is already connected to a Ray cluster; leave it with ray.shutdown()"
        )
    if address is not None:
        return _join(ray, address, workers, on_gpus)
    assert workers is not None
    return _start(ray, workers, on_gpus)


def is_listening(address: str, seconds: float) -> bool:
    """Return whether host:port accepts connections within this time."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
            return True
    except OSError:
        return False


def _start(ray: Any, workers: int, on_gpus: bool) -> Cluster:
    usual = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="atoll-", dir=usual if len(usual) <= _LONGEST_FOLDER else "/tmp"))
    cluster = Cluster(ray, "", workers, folder)
    try:
        with own_signals():
            # 127.0.0.1 keeps other machines out; see `_import_ray`.
            own = {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            started = ray.init("local", **own, **_QUIET, _temp_dir=str(cluster.folder))
        cluster.gpus = _share(workers, math.floor(ray.cluster_resources().get("GPU", 0))) if on_gpus else 0.0
    except BaseException as error:  # including the user's interrupt
        cluster.close()
        if isinstance(error, Exception):
            raise RunError(f"run.executor = 'ray': Ray cannot be started on this machine ({line_of(error)})") from error
        raise
    cluster.address = started.address_info["gcs_address"]
    return cluster


def _share(workers: int, gpus: int) -> float:
    """Return the share of a GPU that each of so many workers has."""
    if not gpus:
        raise ValueError("Ray finds no GPU, but run.device = 'cuda'")
    return 1 / math.ceil(workers / gpus)


def _join(ray: Any, address: str, workers: int | None, on_gpus: bool) -> Cluster:
    _require_answer(address)
    try:
        with own_signals():
            joined = ray.init(address, **_QUIET)
        found = math.floor(ray.cluster_resources().get("GPU" if on_gpus else "CPU", 0))
    except Exception as error:  # Ray raises many kinds
        with suppress(Exception):
            ray.shutdown()
        raise InputError(
            f"run.address = {address!r}: cannot connect ({line_of(error)}); this machine must belong to the cluster: "
            "see docs/performance.md"
        ) from error
    if not found and (on_gpus or not workers):
        ray.shutdown()
        raise InputError(f"run.address = {address!r}: the cluster has no {'GPUs' if on_gpus else 'cores'} for workers")
    workers = workers or found
    return Cluster(ray, joined.address_info["gcs_address"], workers, None, _share(workers, found) if on_gpus else 0.0)


def _require_answer(address: str) -> None:
    """Ask a cluster for its number in another process, since Ray itself may wait for minutes."""
    if not is_listening(address, _CONNECT_SECONDS):
        raise InputError(f"run.address = {address!r}: does not answer; start the cluster with `ray start --head`")
    command = [sys.executable, "-W", "ignore", "-c", _HEALTH_CHECK, address]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Timeout (" in asked.stderr:  # faulthandler's word
        raise InputError(f"run.address = {address!r}: no answer of a Ray cluster's within {_HEALTH_SECONDS:g} s")
    if asked.returncode:
        lines = [line for line in (asked.stderr or asked.stdout).splitlines() if line.strip()]
        raise InputError(
            f"run.address = {address!r}: is not a Ray cluster that admits this process "
            f"({lines[-1].strip() if lines else 'no reason was given'}); "
            "the cluster's token must be in ~/.ray/auth_token or in RAY_AUTH_TOKEN"
        )


def _set_up(own: bool) -> None:
    """Set Ray's environment variables, most of which it reads when it is imported.

    They stay set, since Ray's threads read them again when they end.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # otherwise it warns of the new default
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if own:
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's 15, workers hardly start on a busy machine
        os.environ["RAY_AUTH_MODE"] = "token"
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _import_ray(own: bool) -> Any:
    ray = importlib.import_module("ray")
    # Unless clusters of several machines are disabled, Ray replaces 127.0.0.1 by an address that others can reach.
    vars(importlib.import_module("ray._private.ray_constants"))["ENABLE_RAY_CLUSTER"] = not own
    return ray
