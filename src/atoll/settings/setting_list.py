"""All settings with their defaults, types and meanings, as the documentation and `atoll settings` list them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atoll.settings.choices import CHOICES, NamedChoice, taken
from atoll.settings.validation import field_of, full_model
from atoll.support.errors import InputError
from atoll.support.wording import nearest

_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false"}


@dataclass(frozen=True)
class ListedSetting:
    """A setting: its path, ``section.key``; default and type as TOML has them; and first who takes it, if few do."""

    name: str
    default: str
    kind: str
    meaning: str


def sections() -> dict[str, str]:
    """Return what is in each section, by name; the settings at the top of a file are the section ``""``."""
    found = {"": "Top of the file"}
    for name, field in full_model().model_fields.items():
        if section := section_of(field):
            found[name] = str(section.__doc__)
    return found


def settings_in(section: str) -> list[ListedSetting]:
    """Return the settings of a section, with those of every built-in function that it may name."""
    fields = full_model().model_fields
    if not section:
        return [_listed(name, field) for name, field in fields.items() if not section_of(field)]
    kind = section_of(fields[section])
    assert kind is not None
    return [_listed(f"{section}.{key}", field) for key, field in kind.model_fields.items()]


def find_settings(name: str) -> list[ListedSetting]:
    """Return the settings of a section, of a named function, or with this path or key; no others: InputError."""
    if name and name in sections():
        return settings_in(name)
    every = [each for section in sections() for each in settings_in(section)]
    found = [each for each in every if name in (each.name, each.name.rpartition(".")[2])]
    found += [each for choice in CHOICES if name in choice.functions for each in _taken_by(choice, name)]
    if found:
        return found
    known = [*sections(), *(other for choice in CHOICES for other in choice.functions), *(each.name for each in every)]
    meant = nearest(name, known)
    told = f"a section ({', '.join(filter(None, sections()))}), a name that a setting accepts, or a setting"
    raise InputError(f"{name!r}: unknown{f', did you mean {meant!r}?' if meant else ';'} Give {told}")


def _taken_by(choice: NamedChoice, name: str) -> Iterator[ListedSetting]:
    """Yield the setting that names a function, and those that it takes."""
    default, kind = ("unset", "list") if choice.default is None else (repr(choice.default), "text")
    yield ListedSetting(choice.setting, default, kind, f"set it to {name!r}")
    for section, parameters in taken({choice: choice.functions[name]}).items():
        for key, each in parameters.items():
            annotation, field = field_of(each)
            yield _listed(f"{section}.{key}", field, annotation)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a field of the settings is; None if it is a setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _listed(name: str, field: FieldInfo, annotation: Any = None) -> ListedSetting:
    kind = " or ".join(dict.fromkeys(_kinds(annotation or field.annotation)))
    return ListedSetting(name, _default(field), kind, str(field.description or ""))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _kinds(annotation: Any) -> Iterator[str]:
    """Yield the alternatives of a type, as TOML names them."""
    parts = [part for part in get_args(annotation) if part is not type(None) and not hasattr(part, "is_required")]
    if annotation in _NAMES:
        yield _NAMES[annotation]
    elif not parts or str(annotation).startswith("dict"):
        yield "table"
    elif str(annotation).startswith("list"):
        yield "list"
    elif all(isinstance(part, str | int) for part in parts):
        yield from map(repr, parts)
    else:  # a union's parts, or the one type that constraints are attached to
        for part in parts:
            yield from _kinds(part)
