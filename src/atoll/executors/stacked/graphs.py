"""What a GPU does in a step, captured once as a CUDA graph: telling it to small models takes longer than doing it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from atoll.local.models import Model
from atoll.support.errors import RunError

MOST = 8  # kinds of stacks whose graphs are held, with the memory that they take

Batch = tuple[Tensor, ...]
Parameters = dict[str, nn.Parameter]
Measure = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class _Held:
    """A stack's parameters, which stay where its graphs read them, and the graphs by the shapes of a batch."""

    model: Model
    graphs: dict[object, Callable[..., Tensor]] = field(default_factory=dict)


class Graphs:
    """The graphs of the stacks that were trained last, forward and backward; the optimiser is told as ever."""

    def __init__(self) -> None:
        self._held: dict[object, _Held] = {}

    @torch.no_grad()
    def place(self, fresh: Parameters) -> Parameters:
        """Return these parameters where graphs of stacks of this form read them."""
        form = _form(fresh)
        held = self._held.pop(form, None) or _Held({name: each.detach() for name, each in fresh.items()})
        self._held[form] = held  # the latest stands last
        if len(self._held) > MOST:
            del self._held[next(iter(self._held))]
        for name, tensor in held.model.items():
            tensor.copy_(fresh[name])
        # New leaves on the same memory: a leaf's gradients are added up on the stream that first used it, a capture's.
        return {name: nn.Parameter(held.model[name], each.requires_grad) for name, each in fresh.items()}

    def run(self, measure: Measure, parameters: Parameters, batch: Batch) -> Tensor:
        """Return ``measure(parameters, *batch)`` by a graph, captured when such a batch comes for the first time.

        `measure` uses the parameters, as `place` has returned them, and the batch alone, the same way each time.
        """
        graphs = self._held[_form(parameters)].graphs
        shapes = tuple((each.shape, each.dtype) for each in batch)
        if shapes not in graphs:
            graphs[shapes] = _capture(measure, parameters, batch)
        return graphs[shapes](*parameters.values(), *batch)


def _form(parameters: Parameters) -> object:
    return tuple((name, each.shape, each.dtype, each.requires_grad) for name, each in parameters.items())


def _capture(measure: Measure, parameters: Parameters, batch: Batch) -> Callable[..., Tensor]:
    names = list(parameters)

    def call(*tensors: Tensor) -> Tensor:
        return measure(dict(zip(names, tensors, strict=False)), *tensors[len(names) :])

    leaves = (nn.Parameter(each.detach(), each.requires_grad) for each in parameters.values())
    examples = (*leaves, *(each.clone() for each in batch))
    try:
        captured: Any = torch.cuda.make_graphed_callables(call, examples)
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0]
        raise RunError(
            f"run.cuda_graphs = true: the model's step cannot be captured ({why}); set it to false"
        ) from error
    graph: Callable[..., Tensor] = captured
    return graph
