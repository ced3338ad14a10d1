"""The precision of products in training: matrix products and convolutions, which take nearly all the time."""

import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Precision = Literal["float32", "tf32", "bfloat16"]

_PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(functional.linear, functional.bilinear, functional.scaled_dot_product_attention),
        *(functional.conv1d, functional.conv2d, functional.conv3d),
        *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
        *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.addmm, torch.baddbmm, torch.einsum),
        *(Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.addmm),
    }
)

_AS_IT_IS = nullcontext()
_here = threading.local()  # rounds: whether products of this thread are rounded to bfloat16


def products_in(precision: Precision) -> AbstractContextManager[object]:
    """Compute single-precision products in this precision; everything else, models included, is unaffected.

    Convolutions on a GPU use deterministic algorithms.

    - ``float32``: full precision, on a GPU too, where PyTorch's default would round convolutions to TF32.
    - ``tf32``: a GPU may round factors to 10 bits of mantissa.
    - ``bfloat16``: factors are rounded to 7 bits, forward and backward; results are float32 again. PyTorch's autocast
      would do the same but does not reach all layers of stacked models (`torch.vmap`). Products within PyTorch's
      attention and recurrent layers stay as they are.
    """
    is_exact = torch.get_float32_matmul_precision() == "highest" and not getattr(_here, "rounds", False)
    unset = precision == "float32" and is_exact and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return _AS_IT_IS if unset else _set_products(precision)


def why_card_lacks(precision: Precision, device: str) -> str:
    """Return why a GPU has no products of this precision; empty if it has, and for the processor."""
    if precision == "float32" or device == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0):
        return ""
    return f"{torch.cuda.get_device_name(device)} has no such products (compute capability 8.0 has them); use 'float32'"


def lacks_bfloat16() -> bool:
    """Return whether the processor is known to lack bfloat16 products, which it must then emulate."""
    is_known = platform.machine().lower() in ("x86_64", "amd64")  # PyTorch reports on no others
    return is_known and not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@contextmanager
def _set_products(precision: Precision) -> Iterator[None]:
    cudnn, products = torch.backends.cudnn, torch.get_float32_matmul_precision()
    convolutions = cudnn.allow_tf32, cudnn.deterministic
    rounds, _here.rounds = getattr(_here, "rounds", False), precision == "bfloat16"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    cudnn.allow_tf32, cudnn.deterministic = precision == "tf32", True
    try:
        with _InBfloat16() if precision == "bfloat16" else _AS_IT_IS:
            yield
    finally:
        _here.rounds = rounds
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32, cudnn.deterministic = convolutions


class _InBfloat16(TorchFunctionMode):
    """Rounds the arguments of products."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        first = getattr(next(iter((*args, *named.values())), None), "dtype", None)
        if function not in _PRODUCTS or not _here.rounds or "out" in named or first == torch.bfloat16:
            return function(*args, **named)  # the last: rounded already, as in `rounded.Rounded`
        result = function(*map(_rounded, args), **{name: _rounded(value) for name, value in named.items()})
        return result.float() if isinstance(result, Tensor) and result.dtype == torch.bfloat16 else result


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_rounded, value))
    return value.bfloat16() if isinstance(value, Tensor) and value.dtype == torch.float32 else value
