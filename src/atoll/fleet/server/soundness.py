"""Whether what a fleet's replies were combined to can be used: each may pass the checks, and the mean be no model."""

import math
from threading import Lock

import numpy as np

from atoll.evaluation.scores import Evaluator
from atoll.local.batches import measure_samples
from atoll.local.models import Model
from atoll.local.weights import is_bounded, is_finite

_SAMPLES = 32
_TAME = 1e3  # numbers up to here do not overflow in products of a few layers, whatever sample they meet


class Soundness:
    """Tells whether a model is finite, and gives finite losses where the server measures it.

    A normalisation's variance below zero, or layers whose products overflow, are finite numbers and no model. A few of
    the server's samples show that, and all of them are measured where large numbers might hide from these. Safe to use
    from several threads.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        """Measure with this evaluator, which nobody else may use."""
        self._evaluator = evaluator
        self._rows = evaluator.rows[:_SAMPLES].astype(np.int32)
        self._lock = Lock()

    def __call__(self, model: Model) -> bool:
        """Return whether the model can be used."""
        if not is_finite(model, 0.0):
            return False
        with self._lock:
            losses, _ = measure_samples(self._evaluator.module, self._evaluator.pool, [model], self._rows)
            if not losses.isfinite().all():
                return False
            if is_bounded(model, 0.0, _TAME):
                return True
            score = self._evaluator.score(model)
        return math.isfinite(score.train_loss) and math.isfinite(score.test_loss)
