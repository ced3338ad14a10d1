"""Streams of a GPU that several stacks are trained on at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from atoll.local.trainer import Trainer


def streams_of(trainers: Sequence[Trainer]) -> dict[Trainer, torch.cuda.Stream]:
    """Return a stream for each of the trainers that shares a GPU with another."""
    devices = [own.batches.inputs.device for own in trainers]
    shared = {own: each for own, each in zip(trainers, devices, strict=True) if devices.count(each) > 1}
    make = torch.cuda.Stream
    return {own: make(each) for own, each in shared.items() if each.type == "cuda"}  # type: ignore[no-untyped-call]


@contextmanager
def within(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Have work done in this stream, after what its device has been told so far and before what it is told next."""
    if stream is None:
        yield
        return
    common = torch.cuda.current_stream(stream.device)
    stream.wait_stream(common)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        common.wait_stream(stream)
