"""Standardising inputs to mean 0 and deviation 1: by the pool's channels, by given numbers, or each by itself."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset, Standard
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

Standardise = Literal["none", "unit", "pool", "image", "given"]

_CHUNK = 1000  # samples whose moments are summed at a time

Moments = float | Sequence[float] | None


def standardise(data: Dataset, how: Standardise, mean: Moments = None, deviation: Moments = None) -> Dataset:
    """Return a data set whose inputs are standardised when a batch is gathered; its arrays stay unchanged.

    A channel is an entry of an input's first axis: a colour of an image, a column of a table.

    Args:
        data: the data set, whose `scale` brings inputs to a unit range, such as bytes to 0 to 1.
        how: "none": values as stored; "unit": multiplied by `scale`; "pool": then standardised by each channel's mean
            and deviation over the training samples; "image": by each input's own mean and deviation, the latter at
            least ``1 / sqrt(numbers)``; "given": by `mean` and `deviation`, which apply after `scale`.
        mean: for "given": one number, or one per channel.
        deviation: the same.
    """
    if how != "given" and (mean is not None or deviation is not None):
        named = "mean" if mean is not None else "deviation"
        raise InputError(f"data.{named}: is used only with data.standardise = 'given', not {how!r}")
    if how == "none":
        return replace(data, scale=1.0)
    if how == "unit":
        return data
    return replace(data, standard=_given(data, mean, deviation) if how == "given" else _measured(data, how))


@lru_cache(maxsize=1)
def _measured(data: Dataset, how: Standardise) -> Standard:
    """Return the moments of a data set's own inputs."""
    if how == "image":
        if int(np.prod(data.shape)) < 2:
            raise InputError(f"data.standardise = 'image': inputs of {data.name} are single numbers; use 'pool'")
        return Standard()
    means, deviations = moments(data.inputs if data.shape else data.inputs[:, None])
    if not deviations.all():
        channel = int(deviations.argmin())
        raise InputError(
            f"data.standardise = 'pool': channel {channel} of {data.name} is {means[channel]:g} everywhere and has no "
            "deviation to divide by; leave it out of the data, or use 'unit' or 'given'"
        )
    return Standard(tuple((means * data.scale).tolist()), tuple((deviations * data.scale).tolist()))


def moments(inputs: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Return each channel's mean and (population) standard deviation, [channels]; inputs [samples, channels, ...]."""
    count = inputs.size // inputs.shape[1]
    mean = np.sum([chunk.sum(axis=(0, 2)) for chunk in _chunks(inputs)], axis=0) / count
    squares = [np.square(chunk - mean[:, None]).sum(axis=(0, 2)) for chunk in _chunks(inputs)]
    deviation = np.sqrt(np.sum(squares, axis=0) / count)
    return mean, np.where(deviation > 1e-12 * np.abs(mean), deviation, 0)  # a constant's mean is rounded


def _chunks(inputs: npt.NDArray[Any]) -> Iterator[Floats]:
    """Yield the samples in chunks, [samples, channels, numbers]."""
    for low in range(0, len(inputs), _CHUNK):
        chunk = inputs[low : low + _CHUNK].astype(np.float64)
        yield chunk.reshape(*chunk.shape[:2], -1)


def _given(data: Dataset, mean: Moments, deviation: Moments) -> Standard:
    numbers = {"mean": mean, "deviation": deviation}
    per_channel = {name: _each_channel(data, name, value) for name, value in numbers.items()}
    if (least := min(per_channel["deviation"])) <= 0:
        raise InputError(f"data.deviation = {deviation}: must be positive, a channel has {least:g}")
    return Standard(per_channel["mean"], per_channel["deviation"])


def _each_channel(data: Dataset, name: str, value: Moments) -> tuple[float, ...]:
    if value is None:
        raise InputError(f"data.{name} is not set, but data.standardise = 'given' needs it: one, or one per channel")
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    channels = data.shape[0] if data.shape else 1
    if len(values) not in (1, channels):
        raise InputError(
            f"data.{name} = {value}: has {len(values)} numbers, but inputs of {data.name} have {channels} channels; "
            "give one number, or one per channel"
        )
    return values if len(values) == channels else values * channels
