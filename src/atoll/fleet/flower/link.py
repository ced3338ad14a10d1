"""Flower's superlink as a process of its own; a script that imports nothing of Atoll, and so no PyTorch.

It is Flower's own server with a guard in front: nodes reach the eight calls they need and nothing else, and those once
their keys are registered; every other call needs the fleet's secret; and no body is longer than a reply may be. It ends
when its standard input does, so that nothing stays behind when the process that started it is killed.
"""

import argparse
import hmac
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

HEADER = "x-atoll-secret"
OPEN = "/atoll/open"
"""With the secret: let nodes in. Before, they are told to try again later, rather than that they are unknown."""
# What a reply takes besides its bytes: names, identifiers, lengths.
OVERHEAD = 64 * 1024

_FLEET = "/v1/fleet/"
_CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "pull-object",
    "push-object", "confirm-message-received",
)  # fmt: skip
# The rest of what is sent is small: keys, identifiers, and this fleet's empty app.
_LARGE = ("/v1/fleet/push-object", "/v1/runtime/push-object")

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


def guarded(app: _App, secret: str, max_bytes: int, is_open: bool = True) -> _App:
    """Return an ASGI application that refuses, before reading it, what is neither a node's call nor has the secret."""
    nodes_calls = {_FLEET + call for call in _CALLS}

    async def guard(scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        nonlocal is_open
        if scope["type"] != "http":
            return
        path, headers = scope["path"], dict(scope["headers"])
        has_secret = hmac.compare_digest(headers.get(HEADER.encode(), b""), secret.encode())
        if path not in nodes_calls and not has_secret:
            await _answer(send, 404)
            return
        if path == OPEN:
            is_open = True
            await _answer(send, 200)
            return
        if path in nodes_calls and not is_open:
            await _answer(send, 503)
            return
        limit = max_bytes if path in _LARGE else OVERHEAD
        if int(headers.get(b"content-length", b"0")) > limit:
            await _answer(send, 413)
            return
        await app(scope, _limited(receive, limit), send)

    return guard


def _limited(receive: _Receive, limit: int) -> _Receive:
    """Return what passes a body on up to a limit, and then reports the sender gone."""
    left = limit

    async def receive_limited() -> _Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return receive_limited


async def _answer(send: _Send, status: int) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def _app_of(folder: Path, host: str, port: int) -> _App:
    """Return Flower's application with keys required, its database in the fleet's folder, starting no process."""
    import flwr.superlink.cli.flower_superlink  # noqa: F401  (the package's own name for it is a function)
    from flwr.superlink.main import create_app

    sys.argv = [
        "flower-superlink", "--isolation", "process", "--enable-supernode-auth",
        "--database", str(folder / "state" / "flower.db"), "--ssl-certfile", str(folder / "server.pem"),
        "--ssl-keyfile", str(folder / "server.key"), "--ssl-ca-certfile", str(folder / "ca.pem"),
        "--host", host, "--port", str(port),
    ]  # fmt: skip
    module = sys.modules["flwr.superlink.cli.flower_superlink"]
    return create_app(module._parse_superlink_lifespan_config(), module.SuperLinkLifespan)


def main() -> None:
    """Serve until standard input ends or a signal comes."""
    parser = argparse.ArgumentParser(description="Flower's superlink for one fleet; started by atoll fleet server.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("max_bytes", type=int)
    parser.add_argument("--open", action="store_true", help="let nodes in from the start")
    given = parser.parse_args()
    threading.Thread(target=_end_with_input, daemon=True).start()
    import uvicorn

    app = _app_of(given.folder, given.host, given.port)
    logging.getLogger("flwr").setLevel(logging.WARNING)  # it would write a line a message
    uvicorn.run(
        guarded(app, (given.folder / "secret").read_text().strip(), given.max_bytes, given.open),
        host=given.host,
        port=given.port,
        ssl_certfile=given.folder / "server.pem",
        ssl_keyfile=str(given.folder / "server.key"),
        log_level="warning",
        access_log=False,
        server_header=False,
    )


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
