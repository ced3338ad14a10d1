"""The one place that draws random numbers.

Every draw comes from a generator derived from (seed, purpose, key...), never from global state, so a result
does not depend on the order or number of workers, on the executor, or on a resume.
"""

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, such as ``("batches", event, client)``.

    Equal arguments give equal streams; different ones give independent streams.

    >>> generator(0, "cohort", 3).integers(100) == generator(0, "cohort", 3).integers(100)
    np.True_
    """
    return np.random.default_rng([seed, int.from_bytes(purpose.encode(), "little"), *key])


def torch_seed(seed: int, purpose: str, *key: int) -> int:
    """Return an integer to seed PyTorch's own generator with, for one purpose.

    >>> torch_seed(0, "model") == torch_seed(0, "model")
    True
    """
    return int(generator(seed, purpose, *key).integers(2**63))
