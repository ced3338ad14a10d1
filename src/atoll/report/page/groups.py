"""Groups of runs that differ only in their seed, and panels of groups that may be compared."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from atoll.report.reading.runs import Run
from atoll.report.tables.spread import label_of_seeds, seed_of, setting_of


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration, one for each seed, in the order given; most often a single run.

    `label` is unique within the panel, and `dataset` is the data set of all of them.
    """

    panel: str
    dataset: str
    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(map(seed_of, self.runs))

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that are averaged: the finished ones, or all while none has finished."""
        return tuple(run for run in self.runs if run.finished) or self.runs


@dataclass(frozen=True, eq=False)
class Panel:
    """Groups with the same data set and panel, which may be compared; the first is the baseline."""

    title: str
    dataset: str
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in seed and label, in the order of each group's first run.

    Unlike `spread_over_seeds` it includes unfinished runs. A repeated seed begins a new group, so that no run counts
    twice in a mean.
    """
    members = defaultdict[tuple[str, int], list[Run]](list)
    seen = Counter[tuple[str, int]]()
    for run in runs:
        key, seed = setting_of(run), seed_of(run)
        members[key, seen[key, seed]].append(run)
        seen[key, seed] += 1
    return _with_unique_labels([_make_group(group) for group in members.values()])


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


def _make_group(runs: Sequence[Run]) -> Group:
    first = runs[0]
    label = first.label if len(runs) == 1 else label_of_seeds(runs)
    data = first.config.get("data")
    dataset = str(data.get("dataset", "")) if isinstance(data, dict) else ""
    return Group(first.panel, dataset, label, tuple(runs))


def _with_unique_labels(groups: Sequence[Group]) -> list[Group]:
    count = Counter((group.panel, group.label) for group in groups)
    return [
        replace(group, label=f"{group.label} ({group.runs[0].folder})")
        if count[group.panel, group.label] > 1
        else group
        for group in groups
    ]
