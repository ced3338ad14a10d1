"""The experiment file: sections of validated settings, overlays and runs.

A file is TOML. Its `panels` and `runs` are lists of tables that override some of its settings: an experiment is every
run of every panel, as a figure is every curve in every panel. `scales` holds named overrides, such as
``[scales.small]``, of the whole file, a panel or a run.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import reduce
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any
from warnings import warn

import tomli_w
from pydantic import BaseModel

from atoll.settings.choices import CHOICES, choices_that_take, chosen, method_needs, taken, uses_clusters
from atoll.settings.file_paths import located
from atoll.settings.sections import NAME
from atoll.settings.validation import LISTS, Settings, full_model, unused, validate, who_takes, with_plain_names
from atoll.support.errors import InputError, SettingWarning, refusing
from atoll.support.requiring import require_path
from atoll.support.untrusted import parse_toml, read_toml
from atoll.support.wording import natural, nearest, show, unknown

Table = dict[str, Any]
Key = tuple[str, str]

_POINT = re.compile(r"(?<![\w.])\.(?=\d+$)")  # of a number without a digit before it, which TOML asks for
_OWN = 2  # the run's own layer, among file, panel, run, changes and those of one combination


def read_experiment(name: str | Path) -> Table:
    """Read an experiment file, or the built-in recipe of that name, as a table.

    Relative paths in the file are looked for beside it first, then in the working folder.

    Raises:
        InputError: if there is no such file or recipe, or it is not TOML.
    """
    path, given = require_path("experiment", name), f"experiment {str(name)!r}"
    if path.suffix != ".toml":
        if (recipe := recipe_path(str(name))) is None:
            told = "must end in .toml" if path.is_file() else f"no recipe has this name{_nearest_recipe(str(name))}"
            raise InputError(f"{given}: {told}")
        path = recipe
    with refusing(f"{given}: is not valid TOML", ValueError), refusing(f"{given}: cannot be read"):
        table = located(read_toml(path), Path(name).parent)
    if not table:
        raise InputError(f"{given}: is empty; `atoll recipes show quickstart` prints one")
    own = path.stem if re.fullmatch(NAME, path.stem) else None
    return table if own is None or "name" in table else {"name": own, **table}


def recipe_names() -> list[str]:
    """Return the names of the built-in experiments, `quickstart` first."""
    found = (f.name[: -len(".toml")] for f in resources.files("atoll.recipes").iterdir() if f.name.endswith(".toml"))
    return sorted(found, key=lambda name: (name != "quickstart", *natural(name)))


def recipe_path(name: str) -> Path | None:
    """Return the file of a built-in experiment, or None."""
    return Path(str(resources.files("atoll.recipes") / f"{name}.toml")) if name in recipe_names() else None


def make_runs(
    table: Table, scale: str | None = None, changes: Iterable[str] | Mapping[str, Any] = ()
) -> list[Settings]:
    """Return the settings of each run of an experiment: every run in every panel.

    Later layers override earlier ones, in the order file, panel, run, changes; each of the first three may hold an
    override for the scale. Changes are ``section.key=value`` texts, or a table. A setting that a run inherits but does
    not use is left out, such as the file's ``method.beta`` in a run of FedAvg; if no run uses it, there is a
    `SettingWarning`.

    Raises:
        InputError: if the scale or a setting is unknown, or a value has the wrong type or is out of range.
    """
    (made,) = make_grid(table, scale, changes)
    return made


def make_grid(
    table: Table,
    scale: str | None = None,
    changes: Iterable[str] | Mapping[str, Any] = (),
    overs: Iterable[Iterable[str]] = ((),),
) -> list[list[Settings]]:
    """Return `make_runs` for each of several further changes, ``section.key=value`` texts that come last.

    What only some of them use, such as a parameter of one rule where they choose rules, is left out of the others.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"table: must be settings by section, as from atoll.read_experiment, not {show(table)}")
    panels, runs = _tables(table, "panels"), _tables(table, "runs")
    known = {name for layer in (table, *panels, *runs) for name in _scales(layer)}
    if scale not in (None, "paper") and scale not in known:
        told = unknown(str(scale), {*known, "paper"}) if known else "this experiment has no scales; leave it out"
        raise InputError(f"--scale {scale}: {told}")

    def scaled(layer: Table, others: Iterable[str]) -> Table:
        settings = {key: value for key, value in layer.items() if key not in others}
        return overlay(settings, _scales(layer).get(str(scale), {}))

    base = scaled(table, LISTS)
    last = dict(changes) if isinstance(changes, Mapping) else parse_changes(changes)
    pairs = [[scaled(layer, ("scales",)) for layer in pair] for pair in product(panels, runs)]
    made, left_out = list[Settings](), Counter[tuple[str, str]]()
    stacks = [(base, *pair, last, parse_changes(over)) for over in overs for pair in pairs]
    own = {setting for layers in stacks for setting in _taken(layers)}
    for layers in stacks:
        settings, inherited = _compose_run(layers, own, several=len(pairs) > 1)
        left_out.update(inherited)
        made.append(settings)
    for section, key in (setting for setting, runs_without in left_out.items() if runs_without == len(made)):
        if any(key in layer.get(section, {}) for layer in layers[_OWN + 1 :]):  # explicit, so it must not be ignored
            validate(reduce(overlay, layers))
        warn(f"{section}.{key}: no run uses it; it is taken by {who_takes(section, key)}", SettingWarning, 3)
    _warn_of_no_use(made)
    return [made[low : low + len(pairs)] for low in range(0, len(made), len(pairs))]


def _warn_of_no_use(made: Sequence[Settings]) -> None:
    """Warn of settings of clusters, moves, attackers and secure sums if no run's method, probe or switch uses them."""
    if not any(map(uses_clusters, made)):
        method, given = made[0].method, made[0].clustering.model_dump(exclude_defaults=True)
        counts = method.get("clusters")
        told = "has no use for clusters" if counts is None else "finds clusters itself, as many as method.clusters"
        for key in (key for key in given if given[key] != counts):
            told_of = f"clustering.{key} = {show(given[key])}: no run uses it; method.name = {method.name!r} {told}"
            warn(told_of, SettingWarning, 4)
    for key in ("trace_file", "metres_per_round", "recluster_every"):
        moving = [each for each in made if each.network.get(key) is not None]
        if moving and not any(method_needs(each, "phases") for each in moving):
            told = f"with method.name = {moving[0].method.name!r} clients do not move, as they do with 'hierarchical'"
            warn(f"network.{key} = {show(moving[0].network.get(key))}: no run uses it; {told}", SettingWarning, 4)
    paced = [each for each in made if each.clustering.get("frequencies") is not None]
    if paced and not any(str(each.method.get("pattern")).endswith("asy") for each in paced):
        told = f"{show(paced[0].clustering.get('frequencies'))}: no run uses it"
        warn(f"clustering.frequencies = {told} without method.pattern = 'cenasy' or 'decasy'", SettingWarning, 4)
    for section, switch, names in (("faults", "attackers", ("attack", "claimed")), ("secure", "sums", "")):
        own = [getattr(each, section).model_dump(exclude_defaults=True) for each in made]
        for key, value in () if any(switch in each for each in own) else own[0].items():
            if key.startswith(names):
                warn(f"{section}.{key} = {show(value)}: no run uses it without {section}.{switch}", SettingWarning, 4)


def _taken(layers: Sequence[Table]) -> Iterator[Key]:
    """Yield the settings that the layers' functions take, with and without changes; none where one is unknown."""
    for some in (layers, layers[: _OWN + 1]):
        with suppress(InputError):
            found = taken(chosen(with_plain_names(reduce(overlay, some))))
            yield from ((section, key) for section in found for key in found[section])


def _compose_run(layers: Sequence[Table], own: Iterable[Key], several: bool) -> tuple[Settings, list[Key]]:
    """Merge layers; of several runs, an error that the run's own settings cause names the run."""
    try:
        return compose(layers, own, several)
    except InputError as error:
        named = ", ".join(str(layer[key]) for layer in layers[1:3] for key in ("panel", "label") if key in layer)
        if not several or not named or _fails_alike(layers, own, str(error)):
            raise
        raise InputError(f"run {named!r}: {error}") from error


def _fails_alike(layers: Sequence[Table], own: Iterable[Key], told: str) -> bool:
    """Return whether the file and the changes alone, without this run, have the same error."""
    try:
        compose([layers[0], {}, {}, *layers[_OWN + 1 :]], own, several=True)
    except InputError as error:
        return str(error) == told
    return False


def compose(layers: Sequence[Table], own: Iterable[Key] = (), several: bool = False) -> tuple[Settings, list[Key]]:
    """Merge layers of tables; return the settings, and which inherited ones were left out as unused.

    A setting is inherited if its layer lies below the one that names the function which does not take it; with
    `several` runs, also if it comes from any layer but the run's own. `own` are those that users' functions take.
    """
    whole: Table = dict(with_plain_names(reduce(overlay, layers, {})))
    idle = unused(whole, own)
    unset = [(section, key) for section, key in idle if whole[section][key] is None]
    inherited = [each for each in idle if each not in unset and _is_inherited(*each, layers, several)]
    for section, key in unset + inherited:
        del whole[section][key]
    return validate(whole), inherited


def _is_inherited(section: str, key: str, layers: Sequence[Table], several: bool) -> bool:
    """Return whether an unused setting comes from a layer below the deciding one, or from one that runs share."""
    decided = max(_last_layer(layers, choice.section, choice.key) for choice in choices_that_take(section, key))
    at = _last_layer(layers, section, key)
    return at < decided or (several and at != _OWN)


def _last_layer(layers: Sequence[Table], section: str, key: str) -> int:
    """Return the last layer that sets this, or -1."""
    held = (layer.get(section) for layer in layers)
    return max((i for i, table in enumerate(held) if isinstance(table, dict) and key in table), default=-1)


def _tables(table: Table, key: str) -> list[Table]:
    if isinstance(table.get(key[:-1]), list):
        raise InputError(f"[[{key[:-1]}]]: unknown, did you mean [[{key}]]?")
    tables = table.get(key, [{}])
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise InputError(f"{key}: must be a list of tables, each written as [[{key}]]")
    return tables


def _scales(layer: Table) -> dict[str, Table]:
    scales = layer.get("scales", {})
    if not isinstance(scales, dict) or not all(isinstance(over, dict) for over in scales.values()):
        raise InputError("scales: must be tables, each written as [scales.NAME]")
    return scales


def overlay(table: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Return `table` with the entries of `over` merged in, table by table."""
    result = deepcopy(dict(table))
    for key, value in over.items():
        below = result.get(key)
        result[key] = overlay(below, value) if isinstance(value, dict) and isinstance(below, dict) else deepcopy(value)
    return result


def parse_changes(changes: Iterable[str]) -> Table:
    """Turn ``section.key=value`` texts into a table.

    A value is TOML, or taken literally if the setting is a text or the value is not TOML. An empty value unsets an
    optional setting.
    """
    table: Table = {}
    for change in changes:
        if not isinstance(change, str):
            raise InputError(f"changes: must be texts such as 'local.lr=0.1', or a table, not {show(change)}")
        key, equals, text = change.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise InputError(f"--set {change!r}: must have the form section.key=value")
        value = _parse_value(text.strip(), _annotation(parts))
        for part in reversed(parts):
            value = {part: value}
        table = overlay(table, value)
    return table


def resolved(settings: Settings) -> Table:
    """Return all settings as a table, without unset ones, which TOML cannot express."""
    return settings.model_dump(exclude_none=True)


def as_toml(settings: Settings) -> str:
    """Return all settings as the text of a file."""
    return tomli_w.dumps(resolved(settings))


def _nearest_recipe(name: str) -> str:
    if files := sorted(Path(name).glob("*.toml")):
        return f", and a folder; did you mean {str(files[0])!r}?"
    for choice in CHOICES:
        if (meant := nearest(name, choice.functions, cutoff=1)) and choice.default != meant:
            return f", but it is a value of {choice.setting}: atoll run quickstart --set {choice.setting}={meant}"
    meant = nearest(name, recipe_names(), cutoff=0.6)
    return f"; did you mean {meant!r}?" if meant else "; `atoll recipes` lists them, and your own ends in .toml"


def _annotation(parts: Sequence[str]) -> Any:
    """Return the type of the setting with this path, or None if it does not exist."""
    fields = full_model().model_fields
    for part in parts[:-1]:
        section = fields[part].annotation if part in fields else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
        fields = section.model_fields
    return fields[parts[-1]].annotation if parts[-1] in fields else None


def _parse_value(text: str, annotation: Any) -> Any:
    if not text:
        return "" if annotation is str else None
    try:
        parsed = parse_toml(f"value = {_POINT.sub('0.', text)}".encode())
    except ValueError:
        return text
    # A line break in the text could add further keys; and a text such as 2024 need not be quoted.
    is_text = annotation in (str, str | None) and not isinstance(parsed["value"], str)
    return text if is_text or len(parsed) > 1 else parsed["value"]
