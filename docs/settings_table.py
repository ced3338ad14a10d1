"""MkDocs hook: puts the tables of all settings, made from the code that checks them, into the page settings.md."""

from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atoll.settings.choices import CHOICES, every_parameter
from atoll.settings.validation import Settings, full_model

MARK = "<!-- the tables of all settings are put here by docs/settings_table.py -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark by the tables; MkDocs calls this for every page."""
    return markdown.replace(MARK, settings_tables())


def settings_tables() -> str:
    """Return tables of the settings at the top of the file and, for each section, of its own and of each choice."""
    plain = {name: field for name, field in Settings.model_fields.items() if not _section(field)}
    parts = ["## Top of the file", _table(plain)]
    for name, field in Settings.model_fields.items():
        if section := _section(field):
            parts += [f"## `[{name}]`", str(section.__doc__), _table(section.model_fields), *_choices(name)]
    return "\n\n".join(parts)


def _choices(section: str) -> list[str]:
    """Return the settings of each function that the section may name."""
    whole = _section(full_model().model_fields[section])
    assert whole is not None
    parts = []
    for choice in CHOICES:
        if choice.section == section:
            parts += [f"### `{choice.setting}`", _names(tuple(choice.functions))]
    own = {key: whole.model_fields[key] for key in every_parameter(section)} if parts else {}
    return [*parts, _table(own)] if own else parts


def _names(names: tuple[str, ...]) -> str:
    return f"{', '.join(f'`{name}`' for name in names)}, or `module:function`."


def _table(fields: dict[str, FieldInfo]) -> str:
    heads = ["Setting", "Default", "Type", "Meaning"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|"]
    for name, field in fields.items():
        meaning = str(field.description).replace("|", r"\|")
        lines.append(f"| `{name}` | {_default(field)} | {_kind(field.annotation)} | {meaning} |")
    return "\n".join(lines)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "unset"
    return f"`{str(value).lower() if isinstance(value, bool) else repr(value)}`"


def _kind(annotation: Any) -> str:
    """Return a type's name in TOML."""
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if annotation in names:
        return names[annotation]
    if not parts or str(annotation).startswith("dict"):
        return "table"
    if str(annotation).startswith("list"):
        return "list"
    if all(isinstance(part, str | int) for part in parts):
        return " or ".join(f"`{part}`" for part in parts)
    # A union's parts, or the one type that constraints are attached to.
    return " or ".join(dict.fromkeys(_kind(part) for part in parts if not hasattr(part, "is_required")))
