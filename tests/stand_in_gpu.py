"""A stand-in for a GPU: tensors that say they are on cuda:0, compute on the CPU, and refuse what CUDA refuses."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.stand_in_graphs import stand_in

CUDA = torch.device("cuda:0")
BY_INDICES = ("index", "index_put", "index_put_", "_index_put_impl_")  # whose indices may be on the CPU
WITHOUT_NUMBERS = ("cat", "stack", "gather", "scatter", "index_select", "equal")  # which take no number from the CPU


class OnGpu(Tensor):
    """Keeps its numbers in a tensor on the CPU, which nothing else sees."""

    kept: Tensor

    @staticmethod
    def __new__(cls, kept: Tensor) -> "OnGpu":
        layout = {"strides": kept.stride(), "storage_offset": kept.storage_offset()}
        made: OnGpu = Tensor._make_wrapper_subclass(cls, kept.size(), dtype=kept.dtype, **layout)  # type: ignore
        made.kept = kept
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = function._schema.name.removeprefix("aten::")
        if name == "copy_":
            kept_of(args[0]).copy_(kept_of(args[1]))
            return args[0]
        given: dict[int, OnGpu] = {}
        on_cpu: list[Tensor] = []

        def kept(value: Any) -> Any:
            if isinstance(value, OnGpu):
                given[id(value.kept)] = value
            elif isinstance(value, Tensor):
                on_cpu.append(value)
            return kept_of(value)

        def given_or_made(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return given[id(value)] if id(value) in given else OnGpu(value)

        computed = through(kept, (tuple(args), dict(kwargs or {})))
        if on_cpu:
            require_one_device(name, args, on_cpu)
        return through(given_or_made, function(*computed[0], **computed[1]))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.kept.untyped_storage()

    def data_ptr(self) -> int:
        return self.kept.data_ptr()

    def tolist(self) -> Any:
        return self.kept.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")

    __array__ = numpy  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = copied = OnGpu(self.kept.clone())
            copied.__dict__ |= {name: value for name, value in self.__dict__.items() if name != "kept"}
            copied.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"OnGpu({self.kept!r})"


class Draws(torch.Generator):
    """A generator that knows the device it was made for."""

    device_type: str

    def __new__(cls, device: Any = "cpu") -> "Draws":
        made = super().__new__(cls)
        made.device_type = torch.device(device).type
        return made


class Stream:
    """Computes at once; `told` has what all streams but `COMMON` were told."""

    told: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, device: Any) -> None:
        self.device = torch.device(device)

    def wait_stream(self, other: "Stream") -> None:
        Stream.told.append(("begin after", id(self)) if other is COMMON else ("end before", id(other)))

    @contextmanager
    def used(self) -> Iterator[None]:
        Stream.told.append(("use", id(self)))
        yield


COMMON = Stream("cuda:0")


class Moving(TorchFunctionMode):
    """Sends tensors to the stand-in and back, and makes those on it that are made on "cuda"."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if function is Tensor.cpu:
            return moved(args[0], "cpu")
        if function is Tensor.to:
            if len(args) > 1 and isinstance(args[1], Tensor):
                args = (args[0], args[1].device, args[1].dtype, *args[2:])
            place, dtype, _, layout = torch._C._nn._parse_to(*args[1:], **named)
            tensor = args[0] if place is None else moved(args[0], place)
            return function(tensor, dtype=dtype or tensor.dtype, memory_format=layout or torch.preserve_format)
        device = named.get("device")
        if device is None or function is torch._C._nn._parse_to:
            return function(*args, **named)
        draws = named.get("generator")
        if isinstance(draws, Draws) and draws.device_type != torch.device(device).type:
            raise RuntimeError(f"Expected a '{device}' device type for generator but found '{draws.device_type}'")
        return moved(function(*args, **named | {"device": None}), device)


def kept_of(value: Any) -> Any:
    """Return what a tensor on the stand-in keeps on the CPU; any other value as it is."""
    return value.kept if isinstance(value, OnGpu) else value


def moved(tensor: Tensor, device: Any) -> Tensor:
    """Return the tensor if it is on the device, or else a copy there, through which no gradient flows."""
    if (torch.device(device).type == "cuda") == isinstance(tensor, OnGpu):
        return tensor
    copy: Tensor = kept_of(tensor).detach().clone()
    return copy if isinstance(tensor, OnGpu) else OnGpu(copy)


def through(change: Callable[[Any], Any], values: Any) -> Any:
    """Return what a function makes of each value in tuples, lists and mappings."""
    if isinstance(values, dict):
        return {name: through(change, each) for name, each in values.items()}
    if isinstance(values, tuple | list):
        return type(values)([through(change, each) for each in values])
    return change(values)


def require_one_device(name: str, args: Sequence[Any], on_cpu: Sequence[Tensor]) -> None:
    """Refuse tensors on the CPU beside those on the GPU, but for what CUDA takes: single numbers, and indices."""
    indices = {id(each) for each in args[1]} if name in BY_INDICES else ()
    is_for_first = name in BY_INDICES or name.endswith("_")
    for each in on_cpu:
        is_taken = id(each) in indices or not (each.dim() or name in WITHOUT_NUMBERS)
        if not is_taken or (is_for_first and each is args[0]):
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got cuda:0 and cpu")


@contextmanager
def stand_in_gpu() -> Iterator[None]:
    """Have the stand-in in this thread and in those that begin meanwhile, and no trace of it afterwards."""
    run = threading.Thread.run

    def run_with_it(thread: threading.Thread) -> None:
        with Moving():
            run(thread)

    with pytest.MonkeyPatch.context() as patched, Moving():
        patched.setattr(torch, "Generator", Draws)
        patched.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1 << 30))
        patched.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        patched.setattr(torch.cuda, "current_device", lambda: 0)
        patched.setattr(torch.cuda, "make_graphed_callables", stand_in)
        patched.setattr(torch.cuda, "Stream", Stream)
        patched.setattr(torch.cuda, "stream", Stream.used)
        patched.setattr(torch.cuda, "current_stream", lambda _: COMMON)
        patched.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
        patched.setattr(threading.Thread, "run", run_with_it)
        yield
