"""Names and values in sentences: the nearest known name, what a type allows, and a value as a file holds it."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

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
