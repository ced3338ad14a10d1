"""PyTorch data sets as Atoll's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from atoll.data.dataset import Dataset
from atoll.data.files.join import Part, join, make_part
from atoll.support.errors import InputError
from atoll.support.requiring import checked

_PAIR = "a pair of input and target"


class MapStyle(Protocol):
    """A map-style data set, such as a `torch.utils.data.Dataset`: a length, and samples by index."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""


@checked("{}", train=Any, test=Any)
def from_torch(
    train: MapStyle | list[MapStyle] | tuple[MapStyle, ...],
    test: MapStyle | None = None,
    *,
    name: str = "torch",
    inputs: str | None = None,
    targets: str | None = None,
    classes: int | None = None,
    scale: float | None = None,
    test_every: int = 5,
) -> Dataset:
    """Read map-style PyTorch data sets into memory, each sample once.

    A sample is a pair (input, target), or a mapping with the keys `inputs` and `targets`. An input is a tensor, an
    array, a number or a PIL image, whose pixels stay bytes, with their channels first. A function that returns the
    result can be an experiment's data set: ``data.dataset = "module:function"``.

    Args:
        train: one data set, or a list with one per client, for ``data.partition = "natural"``.
        test: the test set; None: every `test_every`-th sample (of each client) is held out.
        name: the data set's name.
        inputs: the key of the input, if samples are mappings.
        targets: the key of the target, if samples are mappings.
        classes: number of classes; None: one more than the largest label; real targets have none.
        scale: factor applied to input values; None: 1/255 for bytes, else 1.
        test_every: see `test`.

    Raises:
        InputError: if samples have another form or differ in shape, or a label is out of range.

    >>> pairs = torch.utils.data.TensorDataset(torch.randn(10, 4), torch.arange(10) % 2)
    >>> data = from_torch(pairs)
    >>> data.shape, data.classes, len(data), len(data.test_targets)
    ((4,), 2, 8, 2)
    """
    is_list = isinstance(train, list | tuple)
    sets: Sequence[MapStyle] = train if isinstance(train, list | tuple) else [train]
    keys = (inputs, targets)
    joined = join(
        name=name,
        clients=[_read(each, f"client {k} of {name}" if is_list else name, keys) for k, each in enumerate(sets)],
        common_test=None if test is None else _read(test, f"the test set of {name}", keys),
        classes=classes,
        scale=scale,
        test_every=test_every,
    )
    return joined if is_list else replace(joined, owners=None, test_owners=None)


def _read(samples: MapStyle, source: str, keys: tuple[str | None, str | None]) -> Part:
    """Return the samples of one data set."""
    if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        raise InputError(f"{source}: must be a map-style data set, with a length and samples by index")
    pairs = [_split(samples[index], index, source, keys) for index in range(len(samples))]
    if not pairs:
        raise InputError(f"{source}: holds no samples")
    first = pairs[0][0].shape
    for index, (found, _) in enumerate(pairs):
        if found.shape != first:
            raise InputError(f"{source}: sample {index} has the shape {list(found.shape)}, sample 0 {list(first)}")
    return make_part(source, np.stack([found for found, _ in pairs]), np.stack([target for _, target in pairs]))


def _split(
    sample: Any, index: int, source: str, keys: tuple[str | None, str | None]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return a sample's input and target as arrays."""
    if isinstance(sample, Mapping):
        if None in keys or any(key not in sample for key in keys):
            told = f"{source}: sample {index} is a mapping with the keys {', '.join(map(str, sample))};"
            raise InputError(f"{told} the arguments inputs and targets must name two of them")
        pair = [sample[key] for key in keys]
    elif isinstance(sample, Sequence) and len(sample) == 2:
        pair = list(sample)
    else:
        raise InputError(f"{source}: sample {index} must be {_PAIR}, or a mapping, not {type(sample).__name__!r}")
    return _as_array(pair[0]), _as_array(pair[1])


def _as_array(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, torch.Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    array = np.asarray(value)
    is_picture = hasattr(value, "getbands") and array.ndim == 3  # PIL keeps channels last
    return np.moveaxis(array, 2, 0) if is_picture else array
