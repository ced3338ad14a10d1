"""What is wrong with a value and what is allowed, in one sentence without pydantic's words."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from atoll.support.limits import LARGEST

_KINDS = {
    "integer": "a whole number",
    "number": "a finite number",
    "string": "a text",
    "boolean": "true or false",
    "object": "a table",
}
_LIMITS = {
    "minimum": "of at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def unknown(name: str, known: Iterable[str]) -> str:
    """Say that a name is unknown, with the nearest known name and all that are allowed.

    >>> unknown("fedvag", ["fedavg", "ifca"])
    "unknown, did you mean 'fedavg'? Allowed: fedavg, ifca"
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f", did you mean {nearest[0]!r}?" if nearest else ";"
    return f"unknown{hint} Allowed: {', '.join(names)}" if names else "unknown; none is allowed here"


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
    if len(fault["loc"]) > 2:  # it is told with the whole value
        fault = {**fault, "input": table[path[0]][path[1]]}
    more = f" (and {len(found) - 1} more such)" if len(found) > 1 else ""
    return _sentence(path, fault, table, model, why) + more


def allowed(schema: Mapping[str, Any]) -> str:
    """Say in words what a JSON schema allows.

    >>> allowed({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "full"}]})
    "a whole number of at least 1, or 'full'"
    >>> allowed({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2})
    'a list of 2, each entry a whole number'
    """
    if "anyOf" in schema:
        return ", or ".join(allowed(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return " or ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if "pattern" in schema:
        return "letters, digits, spaces and . , = ( ) + - _, beginning with a letter or digit"
    if schema.get("type") == "array":
        number = f" of {schema['minItems']}" if schema.get("minItems", 0) == schema.get("maxItems") else ""
        return f"a list{number}, each entry {allowed(schema['items'])}"
    told = {key: value for key, value in schema.items() if key != "maximum" or value < LARGEST}
    limits = [f"{words} {told[key]:g}" for key, words in _LIMITS.items() if key in told]
    return " ".join(filter(None, (_KINDS.get(schema.get("type", ""), "another type"), " and ".join(limits))))


def show(value: Any) -> str:
    """Return a value nearly as an experiment file holds it, cut short if it is long.

    >>> show(True), show(None), show("a")
    ('true', 'unset', "'a'")
    """
    text = str(value).lower() if isinstance(value, bool) else "unset" if value is None else repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


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
