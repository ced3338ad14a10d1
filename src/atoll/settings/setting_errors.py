"""What is wrong with a value and what is allowed, in one sentence instead of pydantic's report."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from atoll.support.limits import LARGEST
from atoll.support.wording import allowed, show


def explain(
    error: ValidationError, table: Mapping[str, Any], model: type[BaseModel], why: Callable[[Sequence[str], str], str]
) -> str:
    """Return a sentence on the first fault in a table of settings, and the number of further faults.

    It names the setting, its value and what is allowed; `why` ends the sentence if the setting is unknown or missing.
    """
    # A setting is at most two names deep; the rest of a location is an alternative that was tried.
    found = {tuple(map(str, fault["loc"][:2])): fault for fault in reversed(error.errors())}
    path, fault = list(found.items())[-1]
    if len(fault["loc"]) > 2 and path[1] in table[path[0]]:  # show the whole value
        kind = "wrong" if fault["type"] == "missing" else fault["type"]  # an entry of a list, not the setting
        fault = {**fault, "input": table[path[0]][path[1]], "type": kind}
    more = f" (and {len(found) - 1} more such)" if len(found) > 1 else ""
    return _sentence(path, fault, model, why) + more


def _sentence(
    path: tuple[str, ...], fault: Mapping[str, Any], model: type[BaseModel], why: Callable[[Sequence[str], str], str]
) -> str:
    name, kind = ".".join(path), fault["type"]
    if kind in ("extra_forbidden", "missing"):
        return f"{name}{why(path, kind)}"
    if kind == "value_error":
        return f"{name} = {show(fault['input'])}: {fault['ctx']['error']}"
    field = model.model_fields[path[0]]
    section = field.annotation
    if isinstance(section, type) and issubclass(section, BaseModel):
        if len(path) == 1:
            example = next(iter(section.model_fields))
            return f"{name} = {show(fault['input'])}: must be a table, e.g. `[{name}] {example} = ...`"
        field = section.model_fields[path[1]]
    given = str(fault["input"])
    is_beyond = kind == "int_type" and given.isdecimal() and len(given) > len(str(LARGEST))  # TOML has no such number
    if is_beyond or (kind == "less_than_equal" and fault["ctx"]["le"] == LARGEST):
        return f"{name} = {show(fault['input'])}: must be at most {LARGEST:g}"
    return f"{name} = {show(fault['input'])}: must be {_allowed_by(field)}"


def _allowed_by(field: FieldInfo) -> str:
    """Return in words which values a field allows."""
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    try:
        return allowed(TypeAdapter(annotation).json_schema())
    except PydanticUserError:  # such as a user's own class
        return str(getattr(annotation, "__name__", annotation))
