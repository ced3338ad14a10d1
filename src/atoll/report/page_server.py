"""A read-only server of a page that follows runs in progress."""

import hashlib
import ipaddress
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from atoll.report.page import Content, Scenes, make_content, policy, render
from atoll.report.reading.groups import overlay
from atoll.report.reading.runs import read_begun, run_folders
from atoll.support.errors import InputError, reason_of

REST = 10.0  # reading takes at most 1 part in 10 of the time, since the runs share the machine
WATCHED_FILES = ("config.toml", "metrics.jsonl", "summary.json", "clients.json", "schedule.npz")


@dataclass(frozen=True)
class Shown:
    """The page at one moment, and its digest, which changes with it."""

    content: Content
    body: bytes
    tag: str


class Watch:
    """The runs in some folders, read again when their files change; thread-safe."""

    def __init__(
        self, folders: Sequence[Path], targets: Sequence[float] | None = None, command: str = "", overlay: bool = False
    ) -> None:
        self.folders = list(folders)
        self.targets = targets
        self.command = command
        self.is_overlaid = overlay
        self._scenes = Scenes()
        self._lock = Lock()
        self._shown: Shown | None = None
        self._seen: object = None
        self._rests_until = 0.0

    def now(self) -> Shown:
        """Return the current page; one read a moment ago is used again."""
        with self._lock:
            begun = time.monotonic()
            if self._shown is None or begun >= self._rests_until:
                seen = [_fingerprint(folder) for folder in self.folders]
                if self._shown is None or seen != self._seen:
                    self._shown, self._seen = self._read(), seen
                now = time.monotonic()
                self._rests_until = now + min(REST * (now - begun), 60.0)
            return self._shown

    def _read(self) -> Shown:
        runs, faults = read_begun(self.folders)
        runs = overlay(runs) if self.is_overlaid else runs
        notices = [f"Left out: {fault}" for fault in faults]
        content = make_content(runs, self.targets, scenes=self._scenes, notices=notices, live=True)
        body = content.as_json()
        return Shown(content, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _fingerprint(folder: Path) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of the files the page depends on."""
    files = [folder / "experiment.json", *(place / name for place in run_folders(folder)[0] for name in WATCHED_FILES)]
    found = []
    for file in files:
        with suppress(OSError):
            found.append((str(file), file.stat().st_size, file.stat().st_mtime_ns))
    return found


def make_server(watch: Watch, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server that listens, and once run answers GET and HEAD of the page and its state.

    Port 0 takes any free one; it is in `server_port`.
    """

    class _Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore readers that have disconnected."""

    try:
        return _Server((host, port), partial(_Answers, watch, ("localhost", host.lower())))
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise InputError(f"--host {host}: is not an address of this machine") from error
        reason = reason_of(error).lower()
        raise InputError(
            f"--port {port}: cannot listen on {host} ({reason}); give another port, or 0 for any"
        ) from error


class _Answers(BaseHTTPRequestHandler):
    """Answers GET and HEAD of two addresses only; no path is ever a file's."""

    timeout = 30
    server_version = "atoll"
    sys_version = ""

    def __init__(self, watched: Watch, names: tuple[str, ...], *request: Any) -> None:
        """Answer one connection; the base class does so in its constructor."""
        self.watched = watched
        self.names = names
        super().__init__(*request)

    def do_GET(self) -> None:
        """Answer with the page or its state."""
        if not self._is_expected_host():
            self._send(HTTPStatus.FORBIDDEN, b"atoll watch: this name is not served; use 127.0.0.1, or --host NAME\n")
        elif self.path == "/":
            page = render(self.watched.now().content, self.watched.command)
            self._send(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")
        elif self.path == "/state":
            shown = self.watched.now()
            if self.headers.get("If-None-Match") == shown.tag:
                self._send(HTTPStatus.NOT_MODIFIED, tag=shown.tag)
            else:
                self._send(HTTPStatus.OK, shown.body, "application/json", shown.tag)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"atoll watch: the page is at /\n")

    do_HEAD = do_GET

    def _is_expected_host(self) -> bool:
        """Return whether the request names this host, since another site can point its own name at this address.

        Such a name is in the request's Host header; an address, or this machine's name, cannot be forged this way.
        """
        host = self.headers.get("Host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        try:
            ipaddress.ip_address(name.strip("[]"))
            return True
        except ValueError:
            return name in self.names

    def _send(
        self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain; charset=utf-8", tag: str = ""
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-cache",
            "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "ETag": tag,
        }
        for name, value in headers.items():
            if value and not (status == HTTPStatus.NOT_MODIFIED and name.startswith("Content-")):
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line every two seconds would be noise."""
