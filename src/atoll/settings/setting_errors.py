"""What is wrong with a value and what is allowed, in one sentence without pydantic's words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from atoll.support.limits import LARGEST
from atoll.support.wording import allowed, show


def explain(
    error: ValidationError,
    table: Mapping[str, Any],
    model: type[BaseModel],
    why: Callable[[Sequence[str], str], str],
) -> str:
    """Return the first fault of a table of settings, and how many more there are.

    Names the setting's path, its value and what is allowed; `why` ends the sentence of one that is unknown or missing.
    """
    # A setting is at most two names deep; what follows in a location is an alternative that was tried.
    found = {tuple(map(str, fault["loc"][:2])): fault for fault in reversed(error.errors())}
    path, fault = list(found.items())[-1]
    if len(fault["loc"]) > 2 and path[1] in table[path[0]]:  # it is told with the whole value
        fault = {**fault, "input": table[path[0]][path[1]]}
    more = f" (and {len(found) - 1} more such)" if len(found) > 1 else ""
    return _sentence(path, fault, table, model, why) + more


def _sentence(
    path: tuple[str, ...],
    fault: Mapping[str, Any],
    table: Mapping[str, Any],
    model: type[BaseModel],
    why: Callable[[Sequence[str], str], str],
) -> str:
    name, kind = ".".join(path), fault["type"]
    if kind in ("extra_forbidden", "missing"):
        return f"{name}{why(path, kind)}"
    field = model.model_fields[path[0]]
    section = field.annotation
    if isinstance(section, type) and issubclass(section, BaseModel):
        if len(path) == 1:
            return f"{name} = {show(fault['input'])}: is a section; set {name}.{next(iter(section.model_fields))}, say"
        field = section.model_fields[path[1]]
    if kind == "less_than_equal" and fault["ctx"]["le"] == LARGEST:
        return f"{name} = {show(fault['input'])}: must be at most {LARGEST:g}"
    return f"{name} = {show(fault['input'])}: must be {_allowed_by(field)}"


def _allowed_by(field: FieldInfo) -> str:
    """Say in words what a field may be."""
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    try:
        return allowed(TypeAdapter(annotation).json_schema())
    except PydanticUserError:  # such as a class of the user's own
        return str(getattr(annotation, "__name__", annotation))
