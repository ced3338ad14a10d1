"""Functions and data sets that a script gives in the place of their names, and names that stand for two settings."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from atoll.experiment.choices import CHOICES
from atoll.support.errors import InputError

_HUB = "hf:"


def with_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of settings in which functions and data sets are names, ``hf:x`` a repository of ``hf``.

    Raises:
        InputError: a function that no name leads to.
    """
    made = dict(table)
    for choice in CHOICES:
        section = made.get(choice.section)
        if not isinstance(section, Mapping) or choice.key not in section:
            continue
        value = section[choice.key]
        if callable(value) and not isinstance(value, str):
            made[choice.section] = {**section, choice.key: _name_of(choice.setting, value)}
        elif choice.setting == "data.dataset":
            made["data"] = {**section, **_of_data(value)}
    return made


def _name_of(setting: str, function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(
            f"{setting}: no name leads to the function {name or function!r}; define it at the top of a module, with def"
        ) from error
    return f"{module}:{name}"


def _of_data(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        is_hub = value.startswith(_HUB) and len(value) > len(_HUB)
        return {"dataset": "hf", "repository": value.removeprefix(_HUB)} if is_hub else {}
    from atoll.data.datasets import Dataset
    from atoll.data.given import name_of

    return {"dataset": name_of(value)} if isinstance(value, Dataset) else {}
