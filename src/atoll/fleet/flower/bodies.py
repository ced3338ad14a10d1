"""Bodies of HTTP requests and answers in ASGI: with time limits, in pieces."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

BODY_SECONDS, BYTES_A_SECOND = 20.0, 64 * 1024
"""Time limit for a body or an answer: this plus its length at this rate."""
PIECE = 256 * 1024

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def length_of(headers: dict[bytes, bytes]) -> int | None:
    """Return a body's declared length; None without one, as in chunked transfer."""
    if b"transfer-encoding" in headers:
        return None
    told = headers.get(b"content-length", b"0")
    return int(told) if told.isdigit() else None


async def read(receive: Receive, length: int) -> bytes | None:
    """Return a body; None if the sender is gone or too slow."""
    parts, left = list[bytes](), length
    try:
        async with asyncio.timeout(BODY_SECONDS + length / BYTES_A_SECOND):
            while True:
                message = await receive()
                parts.append(message.get("body", b""))
                left -= len(parts[-1])
                if message["type"] != "http.request" or left < 0:
                    return None
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        return None


def replaying(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that replays a body, then passes on the end of the connection."""
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay


def before_last(send: Send, do: Callable[[], None]) -> Send:
    """Return a sender that does something before the last piece of an answer."""

    async def send_piece(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            do()
        await send(message)

    return send_piece


def in_pieces(send: Send) -> Send:
    """Return a sender that sends a long answer at its reader's pace, with a time limit, so that it does not pile up."""

    async def send_pieces(message: Message) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        if message["type"] != "http.response.body" or len(body) <= PIECE:
            await send(message)
            return
        async with asyncio.timeout(BODY_SECONDS + len(body) / BYTES_A_SECOND):
            for begin in range(0, len(body), PIECE):
                is_last = begin + PIECE >= len(body)
                piece = body[begin : begin + PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": more or not is_last})

    return send_pieces


async def answer(send: Send, status: int) -> None:
    """Send an empty answer with this status, and end the connection."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})
