"""Rules by name: built-in ones from a table, a user's own as ``module:function``, called with what they ask for.

A rule's parameters say what it needs: objects such as `rng` or `population`, settings of its section of the
experiment file, and entries of that section's ``options``. So a new rule is one function in one file.
"""

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from atoll.experiment.wording import allowed, show, unknown
from atoll.support.errors import AtollError, InputError

# Where code lies that is not the user's: Atoll, Python, installed packages, and what has no file.
_NOT_OWN = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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
    if not all(part.isidentifier() for part in f"{module_name}.{attribute}".split(".")):
        raise InputError(f"{setting} = {name!r}: must have the form 'module:function'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise _raised(setting, name, "importing it", error) from error
        places = "beside the experiment file, in the working folder and among the installed packages"
        raise InputError(f"{setting} = {name!r}: there is no module {module_name!r}; looked {places}") from error
    except (Exception, SystemExit) as error:  # whatever a user's module may do while it is imported
        raise _raised(setting, name, "importing it", error) from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        own = (key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise InputError(f"{setting} = {name!r}: {attribute!r} in {module_name!r} is {unknown(attribute, own)}")
    if not callable(found):
        raise InputError(f"{setting} = {name!r}: must be a function, it is {_a(type(found).__name__)}")
    return found  # type: ignore[no-any-return]


def import_from(folder: Path) -> None:
    """Let ``module:function`` names find modules beside the experiment file and in the working folder."""
    for source in (Path.cwd(), folder.resolve()):
        if str(source) not in sys.path:
            sys.path.insert(0, str(source))


def asks_for(rule: Callable[..., Any], name: str) -> bool:
    """Return whether a rule has a parameter of this name, so that what it does not need need not be made.

    >>> asks_for(lambda population, rng: None, "rng")
    True
    """
    try:
        return name in inspect.signature(rule).parameters
    except ValueError:  # `bind` refuses it, and says so
        return False


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
    try:
        parameters = inspect.signature(rule).parameters
    except ValueError as error:
        raise InputError(
            f"{setting} = {_name(rule)!r}: its parameters cannot be read; wrap it in a function"
        ) from error
    section = setting.partition(".")[0]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments = {name: given[name] for name in parameters if given.get(name) is not None}
    types = _types(rule) if options else {}
    for name, value in options.items():
        if name not in parameters and not takes_any:
            raise InputError(f"{section}.options.{name}: {unknown(name, set(parameters) - set(given) - set(later))}")
        arguments[name] = _checked(f"{section}.options.{name}", value, types.get(name, Any))
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind in _NAMED]
    if missing := [name for name in needed if name not in arguments and name not in set(later)]:
        where = f"{section}.{missing[0]}" if missing[0] in given else f"{section}.options.{missing[0]}"
        raise InputError(f"{where} is not set, but {setting} = {_name(rule)!r} needs it")

    def bound(*values: Any) -> Any:
        if _is_ours(rule):
            return rule(*values, **arguments)
        try:
            return rule(*values, **arguments)
        except AtollError:
            raise
        except Exception as error:
            raise _raised(setting, _name(rule), "calling it", error) from error

    return bound


def _checked(path: str, value: Any, annotation: Any) -> Any:
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    except Exception:  # an annotation that pydantic cannot check is the rule's own business
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        try:
            wanted = allowed(adapter.json_schema())
        except PydanticUserError:  # such as a class of the user's own
            wanted = str(getattr(annotation, "__name__", annotation))
        raise InputError(f"{path} = {show(value)}: must be {wanted}") from error


def _types(rule: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a rule's parameters, also those written as text (``from __future__ import annotations``)."""
    function = vars(rule).get("__init__", rule) if isinstance(rule, type) else rule
    types = dict[str, Any]()
    for name, annotation in getattr(function, "__annotations__", {}).items():
        with suppress(Exception):  # a name that only a type checker sees; what cannot be read is not checked
            alone = SimpleNamespace(__annotations__={name: annotation})
            types |= get_type_hints(alone, getattr(inspect.unwrap(function), "__globals__", {}))
    return types


def _raised(setting: str, name: str, doing: str, error: BaseException) -> InputError:
    """Say that a user's code failed, and in which line of it."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_OWN)]
    where = f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(f"{setting} = {name!r}: {doing} failed ({told}{where})")


def _is_ours(rule: Callable[..., Any]) -> bool:
    """Return whether a rule is part of Atoll: an unforeseen error in it is a bug, and keeps its traceback."""
    return str(getattr(rule, "__module__", "")).partition(".")[0] == "atoll"


def _name(rule: Callable[..., Any]) -> str:
    """Return a rule's name as the experiment file has it."""
    name = str(getattr(rule, "__qualname__", rule))
    return name.replace("_", "-") if _is_ours(rule) else f"{getattr(rule, '__module__', '')}:{name}"


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
