"""Feature skew: clients whose inputs differ, by noise, rotation or colour, whatever labels they hold.

Clients have levels, from 0 to ``levels - 1``. A rule is a function that changes the inputs of one level's clients. A
user's own is named as ``skew = "module:function"``; by parameter name it may ask for `inputs` [samples, *shape] as
stored, `level`, `levels`, `scale` (which brings inputs to a unit range) and `rng`; its other parameters are settings of
``[data]``.
"""

import colorsys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.data.dealing.ranges import Parts, within
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.limits import Number, PositiveFloat, Share

Inputs = npt.NDArray[Any]
_CHUNK = 2000  # samples rotated at a time, which bounds scratch memory


def none(inputs: Inputs) -> Inputs:
    """Leave inputs unchanged."""
    return inputs


def noise(
    inputs: Inputs, level: int, levels: int, scale: float, rng: np.random.Generator, variance: PositiveFloat = 0.1
) -> Inputs:
    """Add normal noise of variance ``variance * (level + 1) / levels`` to inputs in unit range (Li et al. 2022).

    A sample's noise is drawn once. Inputs become float32.

    Args:
        variance: of the last level's noise.
    """
    if inputs.dtype != np.uint8 and inputs.dtype.kind != "f":
        raise InputError(f"data.skew = 'noise': needs inputs that are pixels or real numbers, not {inputs.dtype}")
    drawn = rng.standard_normal(inputs.shape, np.float32)
    drawn *= np.float32(np.sqrt(variance * (level + 1) / levels) / scale)
    return np.asarray(np.add(inputs, drawn, out=drawn))


def rotation(inputs: Inputs, level: int, levels: int, angle: Number = 360.0) -> Inputs:
    """Rotate images by ``angle * level / levels`` degrees, counter-clockwise, about the centre; corners become 0.

    Values are interpolated bilinearly; quarter turns of square images are exact.

    Args:
        angle: degrees; 360 spreads the levels over the full circle.
    """
    if inputs.ndim != 4:
        raise InputError(f"data.skew = 'rotation': needs images, inputs have the shape {list(inputs.shape[1:])}")
    degrees = angle * level / levels % 360
    if degrees % 90 == 0 and inputs.shape[-1] == inputs.shape[-2]:
        return np.ascontiguousarray(np.rot90(inputs, int(degrees // 90), axes=(-2, -1)))
    turned = np.empty_like(inputs)
    corners = list(_corners(inputs.shape[-2], inputs.shape[-1], np.radians(degrees)))
    for low in range(0, len(inputs), _CHUNK):
        flat = inputs[low : low + _CHUNK].reshape(-1, inputs.shape[-2] * inputs.shape[-1])
        mixed = sum(flat[:, place] * weight for place, weight in corners)
        turned[low : low + _CHUNK] = _typed(mixed, inputs).reshape(turned[low : low + _CHUNK].shape)
    return turned


def colour(inputs: Inputs, level: int, levels: int, strength: Share = 0.8) -> Inputs:
    """Tint images with the hue ``level / levels`` of the colour circle: from red through green and blue.

    A channel that the hue lacks is multiplied by ``1 - strength``. Grey images get three channels.

    Args:
        strength: 0: no tint; 1: only the hue is left.
    """
    tint = 1 - strength * (1 - np.array(colorsys.hsv_to_rgb(level / levels, 1, 1), np.float32))
    return _typed(inputs * tint[:, None, None], inputs)


SKEWS: dict[str, Callable[..., Inputs]] = {"none": none, "noise": noise, "rotation": rotation, "colour": colour}


def with_colours(data: Dataset) -> Dataset:
    """Return images with three channels, which are equal for grey images."""
    if len(data.shape) != 3 or data.shape[0] not in (1, 3):
        told = "data.skew = 'colour':"
        raise InputError(f"{told} needs images of one or three channels, {data.name} has {list(data.shape)}")
    if data.shape[0] == 3:
        return data
    inputs, tests = (np.repeat(each, 3, axis=1) for each in (data.inputs, data.test_inputs))
    return replace(data, inputs=inputs, test_inputs=tests)


def level_of_rows(parts: Parts, level_of_parts: Ids, otherwise: Ids) -> Ids:
    """Return each sample's level, [samples]: that of the client holding it, or `otherwise` if no client does."""
    levels = otherwise.copy()
    for part, level in zip(parts, level_of_parts.tolist(), strict=True):
        levels[within(part, len(levels))] = level
    for part, level in zip(parts, level_of_parts.tolist(), strict=True):
        if (levels[part] != level).any():
            told = "data.skew: clients of different levels hold the same sample; use a data.partition with disjoint"
            raise InputError(f"{told} parts, such as 'iid' or 'dirichlet', or a lower data.samples")
    return levels


def changed(inputs: Inputs, level_of: Ids, change: Callable[[Inputs, int], Inputs]) -> Inputs:
    """Return all inputs, each level's changed by `change`."""
    order = np.argsort(level_of, kind="stable")
    result: Inputs | None = None
    for rows in np.split(order, np.flatnonzero(np.diff(level_of[order])) + 1):
        made = change(inputs[rows], int(level_of[rows[0]]))
        result = np.empty_like(inputs, dtype=made.dtype) if result is None else result
        result = result.astype(np.result_type(result, made), copy=False)
        result[rows] = made
    assert result is not None, "a data set has samples"
    return result


def _corners(height: int, width: int, radians: float) -> Any:
    """Yield the places and weights, [pixels], of the four source pixels that each pixel is interpolated from."""
    y, x = np.mgrid[:height, :width].reshape(2, -1) - np.array([[(height - 1) / 2], [(width - 1) / 2]])
    across = x * np.cos(radians) - y * np.sin(radians) + (width - 1) / 2
    down = x * np.sin(radians) + y * np.cos(radians) + (height - 1) / 2
    left, top = np.floor(across).astype(int), np.floor(down).astype(int)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        own_x, own_y = left + column, top + row
        weight = (1 - abs(across - own_x)) * (1 - abs(down - own_y))
        inside = (own_x >= 0) & (own_x < width) & (own_y >= 0) & (own_y < height)
        yield np.where(inside, own_y * width + own_x, 0), np.where(inside, weight, 0).astype(np.float32)


def _typed(values: Floats, like: Inputs) -> Inputs:
    """Return values in the inputs' type, rounded if it is an integer type."""
    return (np.rint(values) if like.dtype.kind in "iu" else values).astype(like.dtype)
