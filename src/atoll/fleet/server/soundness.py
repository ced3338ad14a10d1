"""Whether a combined model can be used: each reply may pass the checks although their mean is useless."""

import math
from threading import Lock

import numpy as np

from atoll.evaluation.scores import Evaluator
from atoll.local.batches import measure_samples
from atoll.local.models import Model
from atoll.local.weights import is_bounded, is_finite

_SAMPLES = 32
_TAME = 1e3  # values up to this do not overflow in a few layers' products, whatever the sample


class Soundness:
    """Tests whether a model is finite and gives finite losses on the server's data.

    Finite numbers may still be useless, such as a negative variance in a normalisation layer or layers whose products
    overflow. A few of the server's samples reveal that; all of them are used if large numbers might hide. Thread-safe.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        """Measure with this evaluator, which must not be shared."""
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
