"""Data sets that a script gives as objects, found again by a name as long as the script holds them."""

import re
from collections.abc import Callable
from itertools import count
from weakref import WeakKeyDictionary, WeakValueDictionary

from atoll.data.datasets import Dataset

_numbers = count(1)
_names: WeakKeyDictionary[Dataset, str] = WeakKeyDictionary()
_held: WeakValueDictionary[str, Dataset] = WeakValueDictionary()


def name_of(data: Dataset) -> str:
    """Return the name, as ``module:function``, by which settings find a data set in this process."""
    if data not in _names:
        word = re.sub(r"\W", "_", data.name).lstrip("_0123456789") or "data"
        _names[data] = f"{word}_{next(_numbers)}"
        _held[_names[data]] = data
    return f"{__name__}:{_names[data]}"


def __getattr__(name: str) -> Callable[[], Dataset]:
    if (data := _held.get(name)) is None:
        raise AttributeError(f"no data set of this process is called {name!r}")
    return lambda: data
