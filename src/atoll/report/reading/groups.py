"""Groups of runs that differ only in their seed, and panels of groups that may be compared."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from atoll.report.reading.runs import Run
from atoll.runs.fingerprint import flatten, free_settings, names_data
from atoll.runs.titles import without_seed
from atoll.support.errors import InputError
from atoll.support.untrusted import read_json
from atoll.support.wording import nearest, printable

_MOST_NAMED = 3  # settings in a label
_FREE = free_settings() - {"panel", "run.stop_at"} | {"seed"}  # a run may resume with another stop, but end elsewhere


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration, one for each seed, in the order given; most often a single run.

    `label` is unique within the panel, and `dataset` is the data set of all of them. `planned` is how many runs were
    asked for, with those that a sweep has not begun.
    """

    panel: str
    dataset: str
    label: str
    runs: tuple[Run, ...]
    planned: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(map(seed_of, self.runs))

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that are complete."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that are averaged: the finished ones, or all while none has finished."""
        return self.finished or self.runs


@dataclass(frozen=True, eq=False)
class Panel:
    """Groups with the same data set and panel, which may be compared; the first is the baseline."""

    title: str
    dataset: str
    groups: tuple[Group, ...]

    def baseline(self, label: str) -> Group:
        """Return the group with this label, or else the first."""
        return next((group for group in self.groups if group.label == label), self.groups[0])

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in seed, label and what affects no result, in the order of each group's first run.

    Unfinished runs are included. A repeated seed begins a new group, so that no run counts twice in a mean; a sweep's
    runs stay together.
    """
    numbers = {id(run): number for number, run in enumerate(runs)}
    asked = {sweep: _seeds_asked(sweep) for sweep in {run.sweep for run in runs}}
    bundles, seen = defaultdict[tuple[str, Path, int], list[Run]](list), Counter[tuple[str, Path, int]]()
    for run in sorted(runs, key=lambda run: not asked[run.sweep]):  # a sweep's first: others' repeat their seeds
        key, seed = _key_of(run), seed_of(run)
        whose = run.sweep if run.sweep and asked[run.sweep] else run.folder
        bundles[key, whose, seen[key, whose, seed]].append(run)
        seen[key, whose, seed] += 1
    members = defaultdict[str, list[list[Run]]](list)
    for (key, _, _), bundle in bundles.items():
        seeds = {*map(seed_of, bundle)}
        room = next((group for group in members[key] if seeds.isdisjoint(map(seed_of, group))), None)
        if room is None:
            members[key].append(bundle)
        else:
            room += bundle
    groups = [sorted(group, key=lambda run: numbers[id(run)]) for own in members.values() for group in own]
    groups.sort(key=lambda group: numbers[id(group[0])])
    return _with_unique_labels([_make_group(group, asked) for group in groups])


def overlay(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of all panels in one, labelled by panel and label, so that all are compared."""
    return [_out_of_panel(run) for run in runs]


def _out_of_panel(run: Run) -> Run:
    def joined(label: str) -> str:
        return ", ".join(dict.fromkeys(filter(None, (run.panel, label))))

    config = {**run.config, "panel": "", "label": joined(str(run.config.get("label") or run.name))}
    return replace(run, panel="", label=joined(run.label), config=config)


def make_panels(groups: Sequence[Group]) -> list[Panel]:
    """Sort groups into panels, each of one data set: accuracies on different data sets are not comparable."""
    sorted_in = defaultdict[tuple[str, str], list[Group]](list)
    for group in groups:
        sorted_in[group.panel, group.dataset].append(group)
    shared = Counter(panel for panel, _ in sorted_in)
    return [
        Panel(" · ".join(filter(None, (panel, dataset if shared[panel] > 1 else ""))), dataset, tuple(own))
        for (panel, dataset), own in sorted_in.items()
    ]


def _make_group(runs: Sequence[Run], asked: Mapping[Path | None, int]) -> Group:
    first = runs[0]
    dataset = str(flatten(first.config).get("data.dataset", ""))
    labels = [printable(run.config.get("label")) or run.name for run in runs]
    labels = [*map(without_seed, labels)] if len(labels) > 1 else labels
    planned = sum(max(own, asked[sweep]) for sweep, own in Counter(run.sweep for run in runs).items())
    return Group(first.panel, dataset, _common_label(labels) or first.name, tuple(runs), planned)


def _seeds_asked(sweep: Path | None) -> int:
    """Return how many seeds a sweep has of each setting, begun or not; 0 if it is no sweep over seeds."""
    try:
        return len(read_json(sweep / "sweep.json", sweep)["over"]["seed"]) if sweep else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def find_baseline(groups: Sequence[Group], label: str) -> Group:
    """Return the first group with this label, in upper or lower case, with or without the seed of its only run."""
    known = {without_seed(group.label).casefold(): group for group in reversed(groups)}
    known |= {group.label.casefold(): group for group in reversed(groups)}
    found = known.get(label.strip().casefold())
    if found is None:
        labels = list(dict.fromkeys(group.label for group in groups))
        close = nearest(label, labels)
        meant = f" (did you mean {close!r}?)" if close else ""
        raise InputError(f"baseline {label!r}: no setting has this label{meant}; the labels are {'; '.join(labels)}")
    return found


def _with_unique_labels(groups: Sequence[Group]) -> list[Group]:
    """Tell groups of one panel and label apart."""
    alike = defaultdict[tuple[str, str], list[Group]](list)
    for group in groups:
        alike[group.panel, group.label].append(group)
    labels = {id(group): label for own in alike.values() for group, label in zip(own, _labels(own), strict=True)}
    return [replace(group, label=labels[id(group)]) for group in groups]


def _labels(groups: Sequence[Group]) -> list[str]:
    """Return labels with the settings in which groups differ, such as ``lr = 0.1``; for equal ones, their own."""
    if len(groups) == 1:
        return [groups[0].label]
    endings = differences_of([settings_of(group.runs[0]) for group in groups], _MOST_NAMED)
    if len(set(endings)) == len(groups):
        return [f"{group.label} ({ending})" for group, ending in zip(groups, endings, strict=True)]
    own = [f"{g.label}, {len(g.runs)} seeds" if len(g.runs) > 1 else g.runs[0].label for g in groups]
    return own if len(set(own)) == len(own) else [f"{label} ({number})" for number, label in enumerate(own, start=1)]


def settings_of(run: Run) -> dict[str, Any]:
    """Return a run's settings by dotted name, without the seed and those that affect no result, such as the label."""
    named = flatten(run.config)
    free = _FREE - ({"data.root"} if names_data(named.get("data.dataset")) else set())
    return {name: value for name, value in named.items() if name not in free}


def _key_of(run: Run) -> str:
    """Return what only runs of one configuration share; of files that they read, it is the content that counts."""
    named, contents = settings_of(run), defaultdict[str, list[Any]](list)
    for name, content in sorted(run.files.items()):
        contents[name.partition("/")[0]].append(content)
    return json.dumps(named | {name: contents[name] for name in named.keys() & contents}, sort_keys=True, default=str)


def differences_of(settings: Sequence[Mapping[str, Any]], most: int | None = None) -> list[str]:
    """Return what tells each of these settings from the others, such as ``lr = 0.1``, by at most this many names."""
    names = sorted({name for each in settings for name in each})
    apart = [name for name in names if len({str(each.get(name)) for each in settings}) > 1][:most]
    return [", ".join(f"{name.rpartition('.')[2]} = {each.get(name, 'unset')}" for name in apart) for each in settings]


def seed_of(run: Run) -> int:
    """Return a run's seed; 0 if its settings have no whole number there."""
    return seed if isinstance(seed := run.config.get("seed"), int) else 0


def _common_label(labels: Sequence[str]) -> str:
    """Return the words with which all labels begin, without a trailing word for the seed."""
    if len(set(labels)) == 1:
        return labels[0]
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*map(str.split, labels), strict=False))
    words = " ".join(column[0] for column in alike)
    return re.sub(r"(\bseed)?[\s,;:(\[/|–-]*$", "", words).rstrip(" ,;:([/|–-")
