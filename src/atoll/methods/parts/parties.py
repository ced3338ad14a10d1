"""Splits samples and models between parties that hold different features of the same samples (FedBCD)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from atoll.data.population import Population
from atoll.local.models import HIDDEN, Shape, dense
from atoll.methods.parts.feature_blocks import split_evenly, split_shape
from atoll.support.errors import InputError
from atoll.support.limits import Positive

if TYPE_CHECKING:
    from atoll.methods.parts.party_trainer import Parties


def share_samples(population: Population, parties: Positive = 2) -> Population:
    """Return the population of parties, each of which holds its features of the union of all samples.

    Args:
        population: the clients, whose samples are pooled.
        parties: number of parties that share the features, K.
    """
    split_shape(population.data.shape, parties)
    offsets = np.arange(parties + 1) * len(population.indices)
    return Population(population.data, np.tile(np.asarray(population.indices), parties), offsets)


def split_model(name: str) -> Callable[..., "Parties"]:
    """Return a factory that splits a built-in dense model between parties.

    Each hidden layer's units are divided evenly, at least one per party, and only the label party has output biases.
    So the sum has the whole model's widths, and for `linear` it equals the whole model.

    >>> split_model("mlp")((1, 28, 28), 10, 2).parties[1]
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=392, out_features=100, bias=True)
      (2): ReLU()
      (3): Linear(in_features=100, out_features=10, bias=False)
    )
    """
    if name not in HIDDEN:
        raise InputError(
            f"model.name = {name!r}: with method.name = 'fedbcd' it must be one of {', '.join(map(repr, HIDDEN))}, "
            "whose dense layers can be split between parties"
        )

    def make(shape: Shape, classes: int, parties: int) -> "Parties":
        from atoll.methods.parts.party_trainer import Parties

        blocks = split_shape(shape, parties)
        hidden = [split_evenly(max(units, parties), parties) for units in HIDDEN[name]]
        networks = [
            dense(block, tuple(units[k] for units in hidden), classes, bias=k == 0) for k, block in enumerate(blocks)
        ]
        return Parties(shape, networks)

    return make
