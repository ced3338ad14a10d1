"""How clients' inputs differ, in a few numbers per client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset import Dataset
from atoll.data.population import Population
from atoll.support.arrays import Floats

MOST = 24  # features shown of a client
_SAMPLES = 200  # per client, evenly spaced, that are used
_BLOCKS = 3  # that an image is divided into, down and across
_COLOURS = {1: ("brightness",), 3: ("red", "green", "blue")}


@dataclass(frozen=True)
class FeatureMeans:
    """Mean features of clients' inputs.

    Attributes:
        values: each client's mean minus the mean over all of them, in standard deviations of single samples,
            [clients, features].
    """

    names: tuple[str, ...]
    values: Floats


def feature_means(population: Population, clients: Sequence[int]) -> FeatureMeans:
    """Return the mean features of these clients' inputs, from up to 200 samples of each.

    Images have as features each channel's mean, the deviation of the pixels and the brightness of nine blocks; other
    inputs, their numbers. At most 24 are kept, those in which clients differ most.
    """
    whole = map(population.samples, clients)
    rows = [own[np.linspace(0, len(own) - 1, min(len(own), _SAMPLES)).astype(int)] for own in whole]
    found, names = _features(population.data, np.concatenate(rows))
    sizes = np.array([len(own) for own in rows])
    means = np.add.reduceat(found, np.cumsum(sizes) - sizes) / sizes[:, None]
    spread = found.std(axis=0)
    values = (means - found.mean(axis=0)) / np.where(spread > 0, spread, 1)
    kept = np.sort(np.argsort(-values.std(axis=0), kind="stable")[:MOST])
    return FeatureMeans(tuple(names[place] for place in kept.tolist()), values[:, kept])


def _features(data: Dataset, rows: npt.NDArray[Any]) -> tuple[Floats, Sequence[str]]:
    """Return the features of these samples, [samples, features], and their names."""
    inputs = data.inputs_of(rows).astype(np.float64) * data.scale
    if inputs.ndim == 4:
        return _of_images(inputs)
    if inputs.ndim == 3:  # a series, [steps, numbers]
        inputs = inputs.mean(axis=1)
    inputs = inputs.reshape(len(inputs), -1)
    names = data.names.get("inputs", ())
    return inputs, names if len(names) == inputs.shape[1] else [f"input {n}" for n in range(inputs.shape[1])]


def _of_images(images: Floats) -> tuple[Floats, Sequence[str]]:
    channels = images.mean(axis=(2, 3))
    names = [*_COLOURS.get(channels.shape[1], [f"channel {c}" for c in range(channels.shape[1])]), "contrast"]
    found = [channels, images.std(axis=(1, 2, 3))[:, None]]
    for down, band in enumerate(np.array_split(images.mean(axis=1), _BLOCKS, axis=1)):
        for across, block in enumerate(np.array_split(band, _BLOCKS, axis=2)):
            if block.size:
                names.append(f"block {down + 1}, {across + 1}")
                found.append(block.mean(axis=(1, 2))[:, None])
    return np.concatenate(found, axis=1), names
