"""Types of arrays."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
"""Real numbers."""

Ids = npt.NDArray[np.int64]
"""Numbers of clients or clusters, or counts."""

Mask = npt.NDArray[np.bool_]
"""Yes or no."""
