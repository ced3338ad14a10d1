"""The runs of a sweep, checked before the first one starts: each can be made, and each setting changes something."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.api import check_runs
from atoll.experiment.experiment import Experiment
from atoll.runs.fingerprint import digest, free_settings, names_data
from atoll.runs.run_folders import name_folders
from atoll.runs.titles import title_of
from atoll.settings.choices import uses_clusters
from atoll.settings.experiment_file import Table, make_grid
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, reading
from atoll.sweep.axes import Axis, combinations, file_part, parse_value, require_folders, short_names
from atoll.sweep.goal import Goal

_ENDS = "run.stop_at"  # a run may resume with another one, but may end elsewhere
_LONGEST = 200  # bytes of a folder's name; file systems take 255


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        name: the name of its folder.
        run: panel and label of the experiment's run; empty if the experiment has only one.
        values: the settings swept over, by name.
    """

    name: str
    run: str
    values: Mapping[str, Any]
    settings: Settings

    @property
    def setting(self) -> str:
        """A key shared by the runs that differ only in their seed."""
        return json.dumps([self.run, {key: value for key, value in self.values.items() if key != "seed"}], default=str)


def make_members(
    table: Table, axes: Sequence[Axis], scale: str | None = None, changes: Iterable[str] = (), only: Iterable[str] = ()
) -> list[Member]:
    """Return each of the experiment's runs, or of those with the titles of `only`, with every combination of values."""
    names, titles = [axis.name for axis in axes], set(only)
    members, every = list[Member](), list(combinations(axes))
    overs = ([f"{name}={text}" for name, text in zip(names, texts, strict=True)] for texts in every)
    for texts, made in zip(every, make_grid(table, scale, changes, overs), strict=True):
        runs = [settings for settings in made if not titles or title_of(settings) in titles]
        values = {name: parse_value(name, text) for name, text in zip(names, texts, strict=True)}
        members += _members_of(runs, values, list(zip(short_names(names), texts, strict=True)))
    require_folders((member.name.casefold(), member.values) for member in members)
    return members


def _members_of(
    runs: Sequence[Settings], values: Mapping[str, Any], texts: Sequence[tuple[str, str]]
) -> Iterator[Member]:
    """Yield the experiment's runs with one combination of values, which `texts` has by short name."""
    prefixes = name_folders([Experiment(settings) for settings in runs]) if len(runs) > 1 else [""]
    parts = [f"{short}={file_part(text)}" for short, text in texts]
    labels = [f"seed {text}" if short == "seed" else f"{short} = {text}" for short, text in texts]
    for prefix, settings in zip(prefixes, runs, strict=True):
        label = ", ".join(filter(None, (settings.label, *labels)))
        name = ",".join(filter(None, (prefix, *parts))).encode()[:_LONGEST].decode(errors="ignore")
        run = title_of(settings) if len(runs) > 1 else ""
        yield Member(name, run, values, settings.model_copy(update={"label": label}))


def check_members(members: Iterable[Member]) -> None:
    """Check the first run of each setting, as `check_settings` does."""
    first: dict[str, Member] = {}
    for member in members:
        first.setdefault(member.setting, member)
    check_settings({member.name: member.settings for member in first.values()})


def check_settings(runs: Mapping[str, Settings]) -> None:
    """Check runs, given by name, by making all that can be made before training."""
    for name, settings in runs.items():
        with reading(name):
            check_runs([Experiment(settings)])


def require_effect(names: Iterable[str], members: Sequence[Member], goal: Goal) -> list[str]:
    """Reject a setting that changes no run of a sweep; return a warning for each that leaves some runs unchanged."""
    warnings = []
    for name in names:
        idle = {run: _is_idle(name, own) for run, own in _variants(name, members).items()}
        runs = [run for run, is_idle in idle.items() if is_idle]
        if not runs or name == _ENDS or (goal.metric == "wall_time" and name in free_settings()):
            continue
        if all(idle.values()):
            raise InputError(f"--over {name}: {_why(name, members[0].settings)}")
        warnings.append(f"--over {name}: changes nothing in {'; '.join(runs)}, so those runs will be identical")
    return warnings


def _variants(name: str, members: Sequence[Member]) -> Mapping[str, list[list[Settings]]]:
    """Return, for each of the experiment's runs, groups of settings that differ only in this one."""
    groups: dict[str, dict[str, list[Settings]]] = {}
    for member in members:
        others = str([(key, value) for key, value in member.values.items() if key != name])
        groups.setdefault(member.run, {}).setdefault(others, []).append(member.settings)
    return {run: [group for group in own.values() if len(group) > 1] for run, own in groups.items()}


def _is_idle(name: str, groups: Sequence[Sequence[Settings]]) -> bool:
    """Return whether no group has two runs that differ; False if no group has two runs."""
    if name.startswith("clustering."):
        return bool(groups) and not any(uses_clusters(each) for group in groups for each in group)
    if name == "local.steps" and groups and all(each.local.epochs for group in groups for each in group):
        return True
    # Executors may round differently.
    kinds = ({(digest(e), e.run.executor, names_data(e.data.dataset) and e.data.root) for e in own} for own in groups)
    return bool(groups) and all(len(kind) == 1 for kind in kinds)


def _why(name: str, settings: Settings) -> str:
    if name in free_settings():
        return "changes no result of a run, only its wall time (to compare that: --metric wall_time --target ...)"
    if name.startswith("clustering."):
        return f"changes nothing, since method.name = {settings.method.name!r} uses no clustering"
    return "changes nothing in any run" + ", since local.epochs is set" * (name == "local.steps")
