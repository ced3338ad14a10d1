"""Types of arrays."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
"""Real numbers."""

Ids = npt.NDArray[np.int64]
"""Numbers of clients or clusters, or counts."""

Mask = npt.NDArray[np.bool_]
"""Yes or no."""


def least(losses: Floats) -> Ids:
    """Return the column with the least number in each row, the first on ties; NaN only where all are."""
    return np.asarray(np.where(np.isnan(losses), np.inf, losses).argmin(axis=1), np.int64)
