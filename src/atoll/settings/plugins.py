"""Rules by name: built-in ones from a table, a user's own as ``module:function``.

A rule is called with what its parameters name: objects such as `rng` or `population`, and settings of its section of
the experiment file. A new rule is therefore one function in one file.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from types import FunctionType
from typing import Any

from atoll.methods.parts.kind import MethodKind
from atoll.settings.signatures import REQUIRED, parameters_of, takes_any
from atoll.support.errors import InputError, blaming, failure_of
from atoll.support.wording import unknown

_GIVEN: dict[str, Any] = {}  # objects that this process passed directly, by the names that stand for them


def resolve(setting: str, name: str, known: Mapping[str, Any], is_open: bool = True) -> Any:
    """Return the rule of this name: a known one or, if the setting is open, one of the user's own."""
    if name in known:
        return known[name]
    if ":" in name and not is_open:
        raise InputError(f"{setting} = {name!r}: must be one of {', '.join(known)}, not a function")
    if name in _GIVEN:
        return _GIVEN[name]
    if ":" not in name:
        of_file = "; a file of rows is data.root of 'table'" * (setting == "data.dataset" and "." in name)
        others = ", or 'module:function' for your own" * is_open
        raise InputError(f"{setting} = {name!r}: {unknown(name, known)}{others}{of_file}")
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in f"{module_name}.{attribute}".split(".")):
        raise InputError(f"{setting} = {name!r}: must have the form 'module:function'")
    module = _import(setting, name, module_name)
    found = _attribute(module, attribute)
    if found is None and module_name == "__main__":
        again = "was passed directly by another script or notebook; pass it again, or name it as 'module:function'"
        raise InputError(f"{setting} = {name!r}: {again}")
    if found is None:
        own = (key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise InputError(f"{setting} = {name!r}: {attribute!r} in {module_name!r} is {unknown(attribute, own)}")
    if not (callable(found) or isinstance(found, MethodKind)):
        raise InputError(f"{setting} = {name!r}: must be a function, not {type(found).__name__!r}")
    return found


def _import(setting: str, name: str, module_name: str) -> Any:
    try:
        found, first = importlib.import_module(module_name), module_name.partition(".")[0]
    except (Exception, SystemExit) as error:  # a user's module may raise anything on import
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            places = "beside the experiment file, in the working folder and among the installed packages"
            raise InputError(f"{setting} = {name!r}: there is no module {module_name!r}; looked {places}") from error
        raise InputError(f"{setting} = {name!r}: importing it failed ({failure_of(error)})") from error
    own, loaded = Path(sys.path[0], f"{first}.py"), getattr(sys.modules.get(first), "__file__", None)
    if loaded and own.is_file() and own.resolve() != Path(loaded).resolve():
        told = f"Python has loaded {loaded} before, and so not {own}"
        raise InputError(f"{setting} = {name!r}: {told}; rename one, or start another Python process")
    return found


def _attribute(module: Any, path: str) -> Any:
    """Return a module's attribute by its dotted path, or None."""
    return reduce(lambda held, part: getattr(held, part, None), path.split("."), module)


def remember(given: Any, name: str = "") -> str:
    """Return a name by which `resolve` finds this object for the lifetime of the process.

    What can be imported keeps its own name, ``module:function``. A function of a script or notebook, where it may be
    redefined, is numbered if another one has its name. `name` is for objects without one; it replaces the previous
    object of that name.
    """
    module, path = getattr(given, "__module__", ""), getattr(given, "__qualname__", type(given).__name__)
    if name:
        _GIVEN[f"__main__:{name}"] = given
        return f"__main__:{name}"
    if module != "__main__" and _attribute(sys.modules.get(module), path) is given:
        return f"{module}:{path}"
    own = found = "__main__:" + re.sub(r"\W", "", path.split(".")[-1])
    number = 1
    while not _is_same(_GIVEN.setdefault(found, given), given):
        number += 1
        found = f"{own}_{number}"
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two objects are the same, or the same notebook cell run twice, which a run can resume with."""
    if one is other:
        return True
    if not (isinstance(one, FunctionType) and isinstance(other, FunctionType)):
        return False
    return one.__code__ == other.__code__ and _held(one) == _held(other)


def _held(function: FunctionType) -> list[Any]:
    """Return what a function refers to besides its code: simple values, and the identities of other objects."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    simple = str | int | float | None
    return [str(function.__annotations__), *(each if isinstance(each, simple) else id(each) for each in values)]


def import_from(folder: Path) -> None:
    """Let ``module:function`` names find modules beside the experiment file, then in the working folder."""
    for source in map(str, (Path.cwd(), folder.resolve())):
        if source in sys.path:
            sys.path.remove(source)
        sys.path.insert(0, source)


def call(
    setting: str, rule: Callable[..., Any], given: Mapping[str, Any], extra: Mapping[str, Any] | None = None
) -> Any:
    """Call a rule with those of `given` that it has parameters for, and `extra` if it has ``**parameters``.

    None counts as not given.
    """
    return bind(setting, rule, given, extra)()


def bind(
    setting: str,
    rule: Callable[..., Any],
    given: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    later: Iterable[str] = (),
) -> Callable[..., Any]:
    """Return the rule with these arguments filled in; the caller passes those named in `later`, in that order."""
    try:
        parameters = parameters_of(rule)
        rest = dict(extra or {}) if takes_any(rule) else {}
    except ValueError as error:
        told = "its parameters cannot be read; wrap it in a function"
        raise InputError(f"{setting} = {_name(rule)!r}: {told}") from error
    arguments = rest | {name: given[name] for name in parameters if given.get(name) is not None}
    needed = [name for name, each in parameters.items() if each.default is REQUIRED and name not in set(later)]
    if missing := [name for name in needed if name not in arguments]:
        section = setting.partition(".")[0]
        raise InputError(f"{section}.{missing[0]} is not set, but {setting} = {_name(rule)!r} needs it")

    if _is_ours(rule) and not arguments:
        return rule

    def bound(*values: Any) -> Any:
        if _is_ours(rule):
            return rule(*values, **arguments)
        with blaming(f"{setting} = {_name(rule)!r}: calling it failed", InputError, SystemExit):
            return rule(*values, **arguments)

    return bound


def _is_ours(rule: Callable[..., Any]) -> bool:
    """Return whether a rule is part of Atoll, where an unexpected error is a bug and keeps its traceback."""
    return str(getattr(rule, "__module__", "")).partition(".")[0] == "atoll"


def _name(rule: Callable[..., Any]) -> str:
    """Return a rule's name as experiment files write it."""
    name = str(getattr(rule, "__qualname__", rule))
    return name.replace("_", "-") if _is_ours(rule) else f"{getattr(rule, '__module__', '')}:{name}"
