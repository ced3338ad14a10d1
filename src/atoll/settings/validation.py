"""From a table of settings to checked `Settings`, whose sections gain the parameters of the functions they name."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, reduce
from operator import or_
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from atoll.local.from_torch import spelled
from atoll.settings.choices import CHOICES, NamedChoice, choices_that_take, chosen, every_parameter, taken, takers
from atoll.settings.file_paths import with_home
from atoll.settings.given_objects import named
from atoll.settings.section import Section
from atoll.settings.sections import Sections
from atoll.settings.signatures import REQUIRED, Function, Parameter, settings_of, takes_any
from atoll.support.errors import InputError, refusing
from atoll.support.limits import LARGEST
from atoll.support.requiring import plain
from atoll.support.wording import allowed, nearest, show, unknown

Table = dict[str, Any]

CHOOSING = tuple(dict.fromkeys(choice.section for choice in CHOICES))

_HUB = "hf:"
_NAMED = 4  # functions that a sentence lists for a setting
LISTS = ("panels", "runs", "scales")  # further keys at the top of an experiment file


class _Checked(type(BaseModel)):  # type: ignore[misc]
    """Makes ``Settings(...)`` return what an experiment file with these tables would."""

    def __call__(cls, *args: Any, **table: Any) -> Any:
        """Check the table like a file's, whose sections gain the parameters of the functions they name."""
        if cls is not Settings:
            return super().__call__(*args, **table)
        if args:
            raise InputError("Settings: takes named arguments only, such as Settings(rounds=5, local={'lr': 0.1})")
        return validate(named(table))


class Settings(Sections, metaclass=_Checked):
    """All settings of one run.

    >>> Settings(rounds=5, method={"name": "fedavg", "fraction": 0.5}).method.fraction
    0.5
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values alone: the class is built from the functions that they name."""
        return validate, (self.model_dump(),)


def validate(table: Mapping[str, Any]) -> Settings:
    """Check a table of settings."""
    if odd := [key for key in table if not isinstance(key, str)]:
        raise InputError(f"{odd[0]!r}: the names of settings must be texts")
    table = plain({key: dict(each) if isinstance(each, Section) else each for key, each in table.items()})
    table = with_plain_names(with_home(table))
    functions = chosen(table)
    model = settings_model(tuple(functions.items()))
    try:
        made = model.model_validate(table)
    except ValidationError as error:
        told = explain(error, table, model, lambda path, kind: _why(path, kind, functions, table, model))
        raise InputError(told) from error
    for section in CHOOSING:
        for key, value in getattr(made, section).model_dump(exclude_none=True).items():
            with refusing(f"{section}.{key} = {show(value)}: must be what an experiment file can hold", TypeError):
                tomli_w.dumps({key: value})
    return made


def with_plain_names(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table with ``data.dataset = "hf:x"`` as the data set ``hf`` with the repository x, and PyTorch's
    optimisers and schedules by the names that they have here.
    """
    local = table.get("local", {})
    if isinstance(local, Mapping):
        names = {key: local[key] for key in ("optimizer", "schedule") if isinstance(local.get(key), str)}
        table = {**table, "local": {**local, **{key: spelled(f"local.{key}", name) for key, name in names.items()}}}
    section = table.get("data", {})
    name = section.get("dataset") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or not name.startswith(_HUB) or name == _HUB:
        return table
    return {**table, "data": {**section, "dataset": "hf", "repository": name.removeprefix(_HUB)}}


@lru_cache(maxsize=64)
def settings_model(functions: tuple[tuple[NamedChoice, Function], ...]) -> type[Settings]:
    """Return the class of settings for these functions."""
    sections: dict[str, Any] = {}
    open_ones = {choice.section for choice, function in functions if any(map(takes_any, choice.parts(function)))}
    for section, parameters in taken(dict(functions)).items():
        base: type[Section] = Settings.model_fields[section].annotation  # type: ignore[assignment]
        made = _section_model(_opened(base) if section in open_ones else base, tuple(map(tuple, parameters.values())))
        is_required = any(field.is_required() for field in made.model_fields.values())
        default = FieldInfo(default={}, validate_default=True) if is_required else FieldInfo(default_factory=made)
        sections[section] = (made, default)
    return _create(Settings, sections)


@lru_cache(maxsize=256)
def _section_model(base: type[Section], parameters: tuple[tuple[Parameter, ...], ...]) -> type[Section]:
    """Return a section's class with the settings that functions take besides its own."""
    return _create(base, {own[0].name: field_of(own) for own in parameters if own[0].name not in base.model_fields})


@cache
def full_model() -> type[Settings]:
    """Return a class with the settings of every built-in function, for schemas and docs."""
    sections: dict[str, Any] = {}
    for section in CHOOSING:
        base: type[Section] = Settings.model_fields[section].annotation  # type: ignore[assignment]
        fields = {key: _described(each) for key, each in every_parameter(section).items()}
        made = _create(base, {key: field for key, field in fields.items() if key not in base.model_fields})
        sections[section] = (made, FieldInfo(default_factory=made))
    return _create(Settings, sections)


def _described(parameters: Sequence[tuple[NamedChoice, str, Parameter]]) -> tuple[Any, Any]:
    """Return a setting's type and field, described as ``regular: neighbours of each aggregator``; never required."""
    annotation, field = field_of([each for *_, each in parameters])
    meanings: dict[str | None, dict[str, None]] = {}
    for _, name, each in parameters:
        meanings.setdefault(each.description or field.description, {})[name] = None
    told = " / ".join(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items())
    if field.is_required():
        return annotation | None, Field(None, description=told)
    return annotation, Field(field.default, description=told)


def field_of(parameters: Sequence[Parameter]) -> tuple[Any, Any]:
    """Return a setting's type and field from the functions that take it; if their defaults differ, it is unset."""
    annotation = reduce(or_, (each.annotation for each in parameters))
    described = next((each.description for each in parameters if each.description), None)
    defaults = {repr(each.default) for each in parameters}
    if defaults == {repr(REQUIRED)}:
        return annotation, Field(description=described)
    default = parameters[0].default if len(defaults) == 1 else None
    return annotation | None if default is None else annotation, Field(default, description=described)


def _why(
    path: Sequence[str],
    kind: str,
    functions: Mapping[NamedChoice, Function],
    table: Mapping[str, Any],
    model: type[Settings],
) -> str:
    if kind == "extra_forbidden":
        return f": {why_unknown(path, table, model)}"
    section, key = path
    needing = next(choice for choice, function in functions.items() if key in taken({choice: function})[section])
    own = settings_of(functions[needing], needing.given) if needing.key == "combine" else ()
    is_rule = sum(each.default is REQUIRED for each in own) == 3  # models, start and cohort_weight, by whatever names
    hint = "; it must be a function that returns the combine rule, not the rule itself" if is_rule else ""
    if not hint and ":" in str(table.get(section, {}).get(needing.key)) and needing.given:
        hint = f"; besides settings it may take {', '.join(sorted(needing.given))}"
    return f" is not set, but {_named(table, (needing,))} needs it{hint}"


def unused(table: Mapping[str, Any], own: Iterable[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """Return a table's settings, (section, key), that only functions take which it does not name; `own`: users'."""
    model = settings_model(tuple(chosen(table).items()))
    found = []
    for section in CHOOSING:
        fields, held = _fields(model, section), table.get(section, {})
        if isinstance(held, Mapping):
            known = {*takers(section), *(key for place, key in own if place == section)}
            found += [(section, key) for key in held if key not in fields and key in known]
    return found


def why_unknown(path: Sequence[str], table: Mapping[str, Any], model: type[Settings]) -> str:
    """Return why a setting is unknown: which function takes it, where it belongs, or the nearest known name."""
    if path[0] in LISTS:
        return "is allowed only at the top of an experiment file"
    sections = {name: _fields(model, name) for name in model.model_fields}
    if len(path) > 1:
        section, key = path[0], path[1]
        if section in CHOOSING and key in takers(section):
            return f"is taken by {who_takes(section, key)}, not by {_named(table, choices_that_take(section, key))}"
        return _where_else(key, sections, section) or unknown(key, sections[section])
    return _where_else(path[0], sections) or unknown(path[0], [*sections, *LISTS])


def _where_else(key: str, sections: Mapping[str, Mapping[str, FieldInfo]], own: str = "") -> str:
    """Return where a misplaced setting belongs, under its own or a similar name; empty if nowhere."""
    if own and nearest(key, sections[own], cutoff=0.75):
        return ""
    at_the_top = [name for name, fields in sections.items() if not fields] if own else []
    places = [meant] if (meant := nearest(key, at_the_top, cutoff=1)) else list[str]()
    places = places or [f"{name}.{told}" for name, each in sections.items() if (told := nearest(key, each, cutoff=1))]
    return f"unknown here, did you mean {' or '.join(places)}?" if places else ""


@cache
def _opened(base: type[Section]) -> type[Section]:
    """Return a section that accepts any setting, for a function with ``**parameters``."""
    return type(base.__name__, (base,), {"__doc__": base.__doc__, "model_config": {"extra": "allow"}})


def _fields(model: type[BaseModel], section: str) -> Mapping[str, FieldInfo]:
    """Return the settings of a section; none if it is not a section."""
    return getattr(model.model_fields[section].annotation, "model_fields", {})


def _named(table: Mapping[str, Any], choices: Iterable[NamedChoice]) -> str:
    """Return a table's choices, as ``method.name = 'fedavg'``."""
    held = ((choice, table.get(choice.section, {})) for choice in choices)
    return " and ".join(f"{each.setting} = {show(own.get(each.key, each.default))}" for each, own in held)


def who_takes(section: str, key: str) -> str:
    """Return which built-in functions take a setting, as ``method.name = 'ifca' or 'cfl-mgd'``, shortened if many."""
    names: dict[str, list[str]] = {}
    for setting, _, name in (who.partition(" = ") for who in takers(section).get(key, ())):
        names.setdefault(setting, []).append(name)
    return " and ".join(f"{setting} = {_some(each)}" for setting, each in names.items()) or "your own function"


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return " or ".join(names) if more <= 1 else f"{' or '.join(names[:_NAMED])} or {more} others"


def _create(base: type[Any], fields: dict[str, Any]) -> type[Any]:
    """Return a subclass with more fields; those whose types pydantic cannot check are left unchecked."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a parameter named like pydantic's methods
        try:
            return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)
        except Exception:
            fields = {name: (kind if _can_check(kind) else Any, first) for name, (kind, first) in fields.items()}
            return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _can_check(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except Exception:
        return False
    return True


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
