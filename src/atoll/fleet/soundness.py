"""Whether what a fleet's replies were combined to can be used: each may pass the checks, and the mean be no model."""

from dataclasses import replace
from threading import Lock

import numpy as np
import torch
from torch import nn

from atoll.data.datasets import Dataset
from atoll.local.batches import Batches, measure_samples
from atoll.local.models import Model
from atoll.local.weights import is_finite

_SAMPLES = 32


class Soundness:
    """Tells whether a model is finite, and gives finite losses on a few of the server's samples.

    A normalisation's variance below zero, or layers whose products overflow, are finite numbers and no model. Safe to
    use from several threads.
    """

    def __init__(self, module: nn.Module, data: Dataset) -> None:
        """Measure with this module, which nobody else may use, on the first samples of the pool."""
        first = replace(data, inputs=data.inputs[:_SAMPLES], targets=data.targets[:_SAMPLES], turns=(0,), groups=None)
        self._module = module
        self._batches = Batches(first, module)
        self._rows = np.arange(len(first), dtype=np.int32)
        self._lock = Lock()

    def __call__(self, model: Model) -> bool:
        """Return whether the model can be used."""
        if not is_finite(model, 0.0):
            return False
        with self._lock:
            losses, _ = measure_samples(self._module, self._batches, [model], self._rows)
        return bool(torch.isfinite(losses).all())
