"""Parts of a stack computed at once by one GPU, which one model's layers may be too small to fill."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atoll.executors.stacked.tensors import Stack, forward

Streams = Sequence[torch.cuda.Stream]


def make_streams(device: torch.device, again: Sequence[torch.device]) -> Streams:
    """Return as many streams as a GPU is named, if it is named `again`; else none."""
    make = torch.cuda.Stream
    several = again.count(device) + 1 if device in again else 0
    return [make(device) for _ in range(several)]  # type: ignore[no-untyped-call]


def forward_in(streams: Streams, module: nn.Module, stack: Stack, inputs: Tensor, independent: bool) -> Tensor:
    """Return what `forward` returns, of equal parts of the stack, each in a stream of its own.

    They begin after what the GPU has been told so far, and what it is told next waits for them; so do their gradients,
    which PyTorch computes in the same streams.
    """
    if not streams:
        return forward(module, stack, inputs, independent)
    common = torch.cuda.current_stream(inputs.device)
    names, tensors = stack.keys(), (each.tensor_split(len(streams)) for each in (*stack.values(), inputs))
    parts = [(own, part) for own, part in zip(streams, zip(*tensors, strict=True), strict=True) if len(part[-1])]
    for own, _ in parts:
        own.wait_stream(common)
    outputs = []
    for own, (*models, part) in parts:
        with torch.cuda.stream(own):
            outputs.append(forward(module, dict(zip(names, models, strict=True)), part, independent))
    for own, _ in parts:
        common.wait_stream(own)
    return torch.cat(outputs)
