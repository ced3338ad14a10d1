"""What a GPU does in local steps, captured as CUDA graphs: telling it of small ones takes longer than doing them."""

import gc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from atoll.local.models import Model
from atoll.support.errors import RunError, line_of

MOST = 8  # kinds of stacks whose graphs are held, and of each graphs, with the memory that they take
_TRIED = 3  # the time that a batch comes at which a graph that nobody asked for is captured

Out = TypeVar("Out")
Batch = tuple[Tensor, ...]
Parameters = dict[str, nn.Parameter]


@dataclass(frozen=True, eq=False)
class _Held:
    """A stack's tensors, which stay where its graphs read them, and the graphs by the shapes of a batch."""

    model: Model
    graphs: dict[object, Callable[..., Any]] = field(default_factory=dict)


class Graphs:
    """The graphs of the stacks that were trained last: of all their steps, or of one, forward and backward.

    A graph is used only if it gives the bits of the steps that it was captured from. Those that nobody `asked` for are
    captured when a batch of a form comes for the third time, `MOST` in all; when one cannot be captured or gives other
    bits, a warning says so, and from then on there are none.
    """

    def __init__(self, asked: bool = True) -> None:
        self.asked = asked
        self._held: dict[object, _Held] = {}
        self._seen: dict[object, int] = {}
        self._left = MOST

    @torch.no_grad()
    def place(self, fresh: Parameters) -> Parameters:
        """Return these parameters where graphs of stacks of this form read them."""
        if not self.asked and _form_of(fresh) not in self._held:
            return fresh
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
        form, shapes = _form_of(model), tuple((each.shape, each.dtype) for each in batch)
        known = self._held[form].graphs if form in self._held else {}
        if not self.asked and shapes not in known:
            self._seen[form, shapes] = seen = self._seen.get((form, shapes), 0) + 1
            if seen == _TRIED and self._left:
                self._try(compute, model, batch, shapes)
            return compute(model, *batch)
        graphs = self._hold(model).graphs
        if shapes not in graphs:
            if len(graphs) >= MOST:
                del graphs[next(iter(graphs))]
            try:
                graphs[shapes] = _check(compute, model, batch)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, RunError) as error:
                why = str(_first(error)).strip().partition("\n")[0]
                told = f"run.cuda_graphs = true: the model's step cannot be captured ({why}); set it to false"
                raise RunError(told) from error
        result: Out = graphs[shapes](*model.values(), *batch)
        return result

    def let_go(self) -> bool:
        """Have no graphs from now on, if nobody asked for them; return whether some were held."""
        some = bool(self._held) and not self.asked
        if not self.asked:
            self._held, self._left = {}, 0
            gc.collect()  # PyTorch's callables are in cycles, and hold their memory until these are collected
        return some

    def _try(self, compute: Callable[..., Out], model: Mapping[str, Tensor], batch: Batch, shapes: object) -> None:
        self._left -= 1
        try:
            graph = _check(compute, model, batch)
            self._hold(model).graphs[shapes] = graph
        except Exception as error:  # whatever CUDA refuses to capture: the steps themselves have been taken twice
            why = str(error) if isinstance(error, RunError) else line_of(_first(error))
            told = f"run.cuda_graphs = 'auto': {why}; going on without graphs"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
            self.let_go()

    def _hold(self, fresh: Mapping[str, Tensor]) -> _Held:
        form = _form_of(fresh)
        held = self._held.pop(form, None) or _Held({name: each.detach() for name, each in fresh.items()})
        self._held[form] = held  # the latest stands last
        if len(self._held) > MOST:
            del self._held[next(iter(self._held))]
        return held


def _form_of(model: Mapping[str, Tensor]) -> object:
    return tuple((name, each.shape, each.dtype, each.requires_grad) for name, each in model.items())


def _bits(results: Any, model: Mapping[str, Tensor]) -> list[Tensor]:
    """Return all numbers of results, and gradients of those that have one."""
    tensors = tree_leaves(results)
    losses = [each.sum() for each in tensors if each.requires_grad]
    leaves = [each for each in model.values() if each.requires_grad]
    grads = torch.autograd.grad(losses, leaves, allow_unused=True) if losses else ()
    return [each.detach().clone() for each in (*tensors, *grads) if each is not None]


def rounded_size(clients: int, up: bool = True) -> int:
    """Return a size of stacks at most an eighth above, or below, that does not depend on the stacks before."""
    step = 1 << max(0, clients.bit_length() - 4)
    return (clients + up * (step - 1)) // step * step


def _check(compute: Callable[..., Out], model: Mapping[str, Tensor], batch: Batch) -> Callable[..., Out]:
    """Capture this, and return the graph if it gives the same bits."""
    graph = _capture(compute, model, batch)
    pairs = zip(_bits(graph(*model.values(), *batch), model), _bits(compute(model, *batch), model), strict=True)
    if not all(torch.allclose(one, other, 0, 0, True) for one, other in pairs):
        raise RunError("a graph of the model's steps gives other bits")
    return graph


def _capture(compute: Callable[..., Out], model: Mapping[str, Tensor], batch: Batch) -> Callable[..., Out]:
    names = list(model)

    def call(*tensors: Tensor) -> Out:
        return compute(dict(zip(names, tensors, strict=False)), *tensors[len(names) :])

    leaves = (nn.Parameter(each.detach(), each.requires_grad) for each in model.values())
    examples = (*leaves, *(torch.zeros_like(each) for each in batch))  # others than the first that it is replayed with
    stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    gc.collect()  # graphs let go of are in cycles, and one freed while another is captured would spoil that
    if stream:  # else a graph would use what cuBLAS asked for in the capture before, in memory of that one's graph
        torch._C._cuda_clearCublasWorkspaces()
    try:
        with warnings.catch_warnings(action="ignore"):  # of leaves first used on another stream, in PyTorch's warm-up
            captured: Any = torch.cuda.make_graphed_callables(call, examples)
    finally:
        if stream:  # which PyTorch, where it fails, leaves as it was in the capture
            torch.cuda.set_stream(stream)
            torch._C._cuda_clearCublasWorkspaces()
    graph: Callable[..., Out] = captured
    return graph


def _first(error: BaseException) -> BaseException:
    """Return what a capture failed of, where PyTorch, ending it, has raised another error."""
    return error.__context__ if error.__context__ and "previous error during capture" in str(error) else error
