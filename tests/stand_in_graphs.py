"""A stand-in for CUDA graphs: it reads, like a graph, only what it has captured."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from tests.executors.test_synchronising import Asked

captured: list[int] = []


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what a GPU is told, with the tensors themselves, and carries it out again without asking Python."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.told: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in Asked.NEED_VALUES:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = function(*args, **(kwargs or {}))
        self.told.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for function, args, kwargs, result in self.told:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def stand_in(call: Callable[..., Any], examples: tuple[Tensor, ...]) -> Callable[..., Any]:
    """Compute on the tensors of the capture, into which others are copied, as `torch.cuda.make_graphed_callables`.

    What has no gradient is captured operation by operation; else the function is called again.
    """
    captured.append(len(examples))
    warnings.warn("The AccumulateGrad node's stream does not match the stream of the node", stacklevel=2)
    with Capture() as graph:
        results = call(*examples)
    whole = not any(isinstance(each, Tensor) and each.requires_grad for each in tree_leaves(results))

    def replay(*tensors: Tensor) -> Any:
        with torch.no_grad():
            for own, given in zip(examples, tensors, strict=True):
                assert own.shape == given.shape
                assert own is not given  # whose gradient would be added up on the stream of the capture
                if own.data_ptr() != given.data_ptr():
                    own.copy_(given)
            if whole:
                with _disable_current_modes():
                    graph.replay()
                return tree_map(torch.detach, results)
        return call(*(given if given.requires_grad else own for own, given in zip(examples, tensors, strict=True)))

    return replay
