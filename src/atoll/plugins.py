"""Rules by name: built-in ones from a table, a user's own as ``module:function``, called with what they ask for.

A rule's parameters say what it needs: objects such as `rng` or `population`, settings of its section of the
experiment file, and entries of that section's ``options``. So a new rule is one function in one file.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from atoll.errors import InputError


def resolve(setting: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the rule of this name.

    Raises:
        InputError: names the setting, the value, the nearest known name and all that are allowed.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        raise InputError(f"{setting} = {name!r}: {unknown(name, known)}, or 'module:function' for your own")
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever a user's module may raise while it is imported
        raise InputError(f"{setting} = {name!r}: cannot be imported ({type(error).__name__}: {error})") from error
    if not callable(found):
        raise InputError(f"{setting} = {name!r}: is not a function")
    return found  # type: ignore[no-any-return]


def call(setting: str, rule: Callable[..., Any], given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call a rule with those of `given` that it has parameters for (None counts as not given), and all `options`.

    Raises:
        InputError: an option that the rule does not have or of a wrong type, or a parameter that nothing gives.
    """
    return bind(setting, rule, given, options)()


def bind(
    setting: str,
    rule: Callable[..., Any],
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    later: Iterable[str] = (),
) -> Callable[..., Any]:
    """Return the rule with these arguments filled in; the caller passes those named in `later`, in order."""
    parameters = inspect.signature(rule).parameters
    section = setting.partition(".")[0]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments = {name: given[name] for name in parameters if given.get(name) is not None}
    for name, value in options.items():
        if name not in parameters and not takes_any:
            raise InputError(f"{section}.options.{name}: {unknown(name, set(parameters) - set(given))}")
        arguments[name] = _checked(f"{section}.options.{name}", value, parameters.get(name))
    needed = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if missing := [name for name in needed if name not in arguments and name not in set(later)]:
        where = f"{section}.{missing[0]}" if missing[0] in given else f"{section}.options.{missing[0]}"
        raise InputError(f"{where} is not set, but {setting} = {_name(rule)!r} needs it")

    def bound(*values: Any) -> Any:
        return rule(*values, **arguments)

    return bound


def unknown(name: str, known: Iterable[str]) -> str:
    """Say that a name is unknown, with the nearest known name and all that are allowed.

    >>> unknown("fedvag", ["fedavg", "ifca"])
    "unknown, did you mean 'fedavg'? Allowed: fedavg, ifca"
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f", did you mean {nearest[0]!r}?" if nearest else ";"
    return f"unknown{hint} Allowed: {', '.join(names)}" if names else "unknown; none is allowed here"


def _checked(path: str, value: Any, parameter: inspect.Parameter | None) -> Any:
    if parameter is None or parameter.annotation is parameter.empty or isinstance(parameter.annotation, str):
        return value
    try:
        return TypeAdapter(parameter.annotation).validate_python(value)
    except ValidationError as error:
        raise InputError(f"{path} = {value!r}: {error.errors()[0]['msg']}") from error
    except Exception:  # an annotation that pydantic cannot check is the rule's own business
        return value


def _name(rule: Callable[..., Any]) -> str:
    return getattr(rule, "__name__", str(rule))
