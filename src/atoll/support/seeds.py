"""The source of all random numbers.

Every draw comes from a generator derived from (seed, purpose, key...), never from global state, so results do not
depend on the order or number of workers, on the executor, or on whether a run was resumed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from atoll.support.errors import InputError
from atoll.support.wording import show


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, such as ``("batches", event, client)``.

    Equal arguments give equal streams; different purposes, or keys of the same length below 2^32, independent ones.

    Raises:
        InputError: if the seed or a key is negative, or not a whole number.

    >>> generator(0, "cohort", 3).integers(100) == generator(0, "cohort", 3).integers(100)
    np.True_
    """
    try:
        return np.random.default_rng([seed, int.from_bytes(purpose.encode(), "little"), *key])
    except (AttributeError, TypeError, ValueError) as error:
        told = f"seed = {show(seed)}, purpose = {show(purpose)}, {show(key)}"
        raise InputError(f"{told}: seed and key must be whole numbers of at least 0, the purpose a text") from error


@contextmanager
def layers_drawing_from(seed: int, purpose: str, *key: int) -> Iterator[None]:
    """Seed PyTorch's global generators (initial weights, dropout) for one purpose; restore their state afterwards.

    This includes the generators of GPUs that are in use.
    """
    import torch

    # torch.manual_seed would do, but it records a traceback each time (0.7 ms), and no GPU should be initialised here.
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    generators = (torch.default_generator, *on_gpus)
    before = [draws.get_state() for draws in generators]
    number = int(generator(seed, purpose, *key).integers(2**63))
    for draws in generators:
        draws.manual_seed(number)
    try:
        yield
    finally:
        for draws, state in zip(generators, before, strict=True):
            draws.set_state(state)
