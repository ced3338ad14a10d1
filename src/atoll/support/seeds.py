"""The one place that draws random numbers.

Every draw comes from a generator derived from (seed, purpose, key...), never from global state, so a result
does not depend on the order or number of workers, on the executor, or on a resume.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from atoll.support.errors import InputError
from atoll.support.wording import show


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return the generator of one purpose, such as ``("batches", event, client)``.

    Equal arguments give equal streams; different ones give independent streams.

    Raises:
        InputError: a seed or key below 0, or of another type.

    >>> generator(0, "cohort", 3).integers(100) == generator(0, "cohort", 3).integers(100)
    np.True_
    """
    try:
        return np.random.default_rng([seed, int.from_bytes(purpose.encode(), "little"), *key])
    except (AttributeError, TypeError, ValueError) as error:
        told = f"seed = {show(seed)}, purpose = {show(purpose)}, {show(key)}"
        raise InputError(f"{told}: must be whole numbers of at least 0, and a text for the purpose") from error


@contextmanager
def layers_drawing_from(seed: int, purpose: str, *key: int) -> Iterator[None]:
    """Let PyTorch layers (initial weights, dropout) draw for one purpose; afterwards the global state is as before.

    Layers on a GPU draw from its own generator, which is treated alike.

    >>> import torch
    >>> with layers_drawing_from(0, "model"):
    ...     first = torch.rand(1)
    >>> with layers_drawing_from(0, "model"):
    ...     bool(first == torch.rand(1))
    True
    """
    import torch

    # torch.manual_seed would do, but records a traceback each time, for 0.7 ms; and a GPU is not to be woken up here.
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
