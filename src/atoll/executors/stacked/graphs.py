"""What a GPU does in local steps, captured as CUDA graphs: telling it of small ones takes longer than doing them."""

import gc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from atoll.local.models import Model
from atoll.support.errors import RunError

MOST = 8  # kinds of stacks whose graphs are held, and of each graphs, with the memory that they take

Out = TypeVar("Out")
Batch = tuple[Tensor, ...]
Parameters = dict[str, nn.Parameter]


@dataclass(frozen=True, eq=False)
class _Held:
    """A stack's tensors, which stay where its graphs read them, and the graphs by the shapes of a batch."""

    model: Model
    graphs: dict[object, Callable[..., Any]] = field(default_factory=dict)


class Graphs:
    """The graphs of the stacks that were trained last: of all their steps, or of one, forward and backward."""

    def __init__(self) -> None:
        self._held: dict[object, _Held] = {}

    @torch.no_grad()
    def place(self, fresh: Parameters) -> Parameters:
        """Return these parameters where graphs of stacks of this form read them."""
        held = self._hold(fresh)
        for name, tensor in held.model.items():
            tensor.copy_(fresh[name])
        # New leaves on the same memory: a leaf's gradients are added up on the stream that first used it, a capture's.
        return {name: nn.Parameter(held.model[name], each.requires_grad) for name, each in fresh.items()}

    def run(self, compute: Callable[..., Out], model: Mapping[str, Tensor], batch: Batch) -> Out:
        """Return ``compute(model, *batch)`` by a graph, captured when such a batch comes for the first time.

        `compute` uses these tensors alone, the same way each time, and changes none. Parameters are where `place` has
        put them. A result that has no gradient lies where the next one will be put.
        """
        graphs = self._hold(model).graphs
        shapes = tuple((each.shape, each.dtype) for each in batch)
        if shapes not in graphs:
            if len(graphs) >= MOST:
                del graphs[next(iter(graphs))]
            graphs[shapes] = _capture(compute, model, batch)
        result: Out = graphs[shapes](*model.values(), *batch)
        return result

    def _hold(self, fresh: Mapping[str, Tensor]) -> _Held:
        form = tuple((name, each.shape, each.dtype, each.requires_grad) for name, each in fresh.items())
        held = self._held.pop(form, None) or _Held({name: each.detach() for name, each in fresh.items()})
        self._held[form] = held  # the latest stands last
        if len(self._held) > MOST:
            del self._held[next(iter(self._held))]
        return held


def rounded_size(clients: int, up: bool = True) -> int:
    """Return a size of stacks at most an eighth above, or below, that does not depend on the stacks before."""
    step = 1 << max(0, clients.bit_length() - 4)
    return (clients + up * (step - 1)) // step * step


def _capture(compute: Callable[..., Out], model: Mapping[str, Tensor], batch: Batch) -> Callable[..., Out]:
    names = list(model)

    def call(*tensors: Tensor) -> Out:
        return compute(dict(zip(names, tensors, strict=False)), *tensors[len(names) :])

    leaves = (nn.Parameter(each.detach(), each.requires_grad) for each in model.values())
    examples = (*leaves, *(each.clone() for each in batch))
    gc.collect()  # graphs let go of are in cycles, and one freed while another is captured would spoil that
    try:
        with warnings.catch_warnings(action="ignore"):  # of leaves first used on another stream, in PyTorch's warm-up
            captured: Any = torch.cuda.make_graphed_callables(call, examples)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0]
        raise RunError(
            f"run.cuda_graphs = true: the model's step cannot be captured ({why}); set it to false"
        ) from error
    graph: Callable[..., Out] = captured
    return graph
