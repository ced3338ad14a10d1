"""What the peers' processes share: the case, its data, and the pace at which rounds are asked for.

Atoll is not installed where they run, so its one file on this is loaded by its place.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from bench import work as work

_WORK = Path(__file__).parents[2] / "benchmarks/bench/work.py"


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("work", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["work"] = module  # where its dataclass looks for its names
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    work = _load(_WORK)
ROUNDS = 1_000_000  # more than are ever asked for, where a library wants to know how many there are


def read_case(text: str) -> work.Case:
    """Return the case from its JSON, which the race gives as the last word of the command line."""
    return work.Case(**json.loads(text))


def client_arrays(case: work.Case) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """Return each client's images as float32 in [0, 1], channels first, and its labels."""
    images, labels = work.make_pool(case)
    inputs = images.astype(np.float32) / np.float32(255)
    places = [work.samples_of(case, client) for client in range(case.clusters * case.clients)]
    return [(inputs[own], labels[own]) for own in places]
