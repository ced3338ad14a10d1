"""The JSON schema of the experiment file, for editors that validate and complete TOML."""

from collections.abc import Mapping
from typing import Any

from atoll.settings.choices import CHOICES
from atoll.settings.validation import Settings, full_model

DRAFT = "http://json-schema.org/draft-07/schema#"  # the draft that TOML editors read

_SCALES = "Named overrides, for `--scale NAME`."
_PANELS = "A panel of a figure: overrides for all its runs."
_RUNS = "A run: overrides of the file and of its panel."


def experiment_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 7) of an experiment file: the settings, `panels`, `runs` and `scales`.

    Sections may be partial. A setting is unset by leaving it out, as TOML has no null. A section that names a user's
    function (``module:function``), whose parameters the schema cannot know, may hold anything.
    """
    made = _without_null(full_model().model_json_schema(ref_template="#/definitions/{model}"))
    sections = {name: _open_for_own({**section, "title": name}) for name, section in made["$defs"].items()}
    settings = made["properties"]
    overlay = _table("Settings that override those of the file.", settings)
    scales = {"type": "object", "description": _SCALES, "additionalProperties": _ref("Overlay")}
    layer = {**settings, "scales": scales}
    return {
        "$schema": DRAFT,
        "title": "Atoll experiment",
        **_table(
            "An experiment: every run of every panel, as a figure is every curve in every panel.",
            {
                **layer,
                "panels": {"type": "array", "minItems": 1, "description": _PANELS, "items": _ref("Layer")},
                "runs": {"type": "array", "minItems": 1, "description": _RUNS, "items": _ref("Layer")},
            },
        ),
        "definitions": {**sections, "Overlay": overlay, "Layer": _table("A panel or a run.", layer)},
    }


def _open_for_own(section: dict[str, Any]) -> dict[str, Any]:
    """Return a section that may hold any setting if it names a user's function."""
    names = {choice.section: Settings.model_fields[choice.section].annotation.__name__ for choice in CHOICES}  # type: ignore[union-attr]
    choices = [choice for choice in CHOICES if names[choice.section] == section["title"]]
    if not choices:
        return section
    own: list[Any] = []
    for choice in choices:
        lazy = choice.functions.keys() - choice.known_functions.keys()  # PyTorch's, whose parameters are not known here
        pattern = {
            "pattern": "|".join([":", *(f"^{name}$" for name in sorted(lazy)), *([r"^torch\."] if lazy else [])])
        }
        value = pattern if choice.default is not None else {"contains": pattern}
        own.append({"properties": {choice.key: value}, "required": [choice.key]})
    closed = {"propertyNames": {"enum": list(section["properties"])}}
    return {key: value for key, value in section.items() if key != "additionalProperties"} | {
        "if": {"anyOf": own},
        "else": closed,
    }


def _table(description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    closed = {"properties": dict(properties), "additionalProperties": False}
    return {"type": "object", "description": description, **closed}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


def _without_null(schema: Any) -> Any:
    """Return a schema without null, as an alternative or a default."""
    if isinstance(schema, list):
        return [_without_null(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    if "anyOf" not in kept:
        return kept
    rest = [one for one in kept.pop("anyOf") if one != {"type": "null"}]
    return {**kept, **rest[0]} if len(rest) == 1 else {**kept, "anyOf": rest}
