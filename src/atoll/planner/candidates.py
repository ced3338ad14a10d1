"""Candidate plans: an experiment with every combination of pattern, clustering and limits."""

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from atoll.clustering.feduc.problem import PATTERNS
from atoll.experiment.foresight import unit_of
from atoll.settings.choices import method_kind
from atoll.settings.experiment_file import make_runs, resolved
from atoll.settings.signatures import parameters_of
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, SettingWarning
from atoll.support.wording import slug
from atoll.sweep.axes import Axis, file_part, require_folders, short_names

TIMED = "time"
"""A `clustering.method`: FedUC for the plan's own time (`clustering.objective = "time"`)."""

PROGRESS = "progress"
"""A `clustering.method`: FedUC's search by the predicted time to a target (`clustering.objective = "progress"`)."""

PLACING = ("comaw", "dataw", "feduc")
"""Clusterings for aggregators with positions."""

SLOW = {"feduc": 10_000_000, PROGRESS: 2_000}
"""Clients times aggregators above which these are not tried by default: they take half a minute each, or minutes."""

MOST = 1_000  # plans that are compared
_SEARCHED = ("method=feduc", "overshoot=false", "opening=none", "start=greedy", "passes=0")


@dataclass(frozen=True)
class Candidate:
    """One way to run the experiment.

    Attributes:
        name: unique among candidates; also names its folder.
        values: of the planned settings, as written.
    """

    name: str
    values: Mapping[str, str]
    settings: Settings


@dataclass(frozen=True)
class Dropped:
    """A plan that is not raced.

    Attributes:
        name: as of `Candidate`.
        values: of the planned settings.
        why: the reason, as the end of a sentence.
        cannot_be: whether it is not a valid experiment, rather than no better than another one.
    """

    name: str
    values: Mapping[str, str]
    why: str
    cannot_be: bool = False


def usual_axes(settings: Settings, given: Sequence[Axis]) -> list[Axis]:
    """Return the axes to plan: the method's open choices, then what else the user varies."""
    found, parameters = list[Axis](), parameters_of(method_kind(settings).make)
    if "pattern" in parameters:
        period = int(settings.method.get("intra_rounds", 1))
        own = tuple(each for each in get_args(parameters["pattern"].annotation) if isinstance(each, str))
        found.append(Axis("method.pattern", own or PATTERNS))
        pairs = settings.data.clients * settings.clustering.clusters
        quick = tuple(name for name in (*PLACING, PROGRESS) if pairs <= SLOW.get(name, pairs))
        found.append(Axis("clustering.method", quick))
        found.append(Axis("method.intra_rounds", tuple(map(str, sorted({max(1, period // 2), period, 2 * period})))))
    named = {axis.name: axis for axis in given}
    if "seed" in named:
        raise InputError("--over seed: the race would pick a lucky seed; fix one with --set seed=..., and give --seeds")
    axes = [*(named.pop(axis.name, axis) for axis in found), *named.values()]
    if not axes:
        raise InputError(
            f"method.name = {settings.method.name!r}: has no pattern to choose; say what to vary, such as "
            "--over local.steps=10,40"
        )
    return axes


def make_candidates(settings: Settings, axes: Sequence[Axis], seconds: float) -> tuple[list[Candidate], list[Dropped]]:
    """Return every combination of values, and those that are not valid experiments, with the reason.

    FedUC's clustering is made for this virtual time, `seconds`.
    """
    if (count := math.prod(len(axis.texts) for axis in axes)) > MOST:
        raise InputError(f"--over: makes {count:,} plans; at most {MOST:,} are compared")
    made, dropped = list[Candidate](), list[Dropped]()
    names = [axis.name for axis in axes]
    for texts in itertools.product(*(axis.texts for axis in axes)):
        values = dict(zip(names, texts, strict=True))
        name = _name_of(values)
        try:
            changed = with_changes(settings, _changes(values, seconds))
            whole = with_rounds(changed, changed.rounds)
            made.append(Candidate(name, values, whole.model_copy(update={"label": name, "panel": ""})))
        except InputError as error:
            dropped.append(Dropped(name, values, str(error), cannot_be=True))
    require_folders((slug(each.name), each.values) for each in made)
    return made, dropped


def with_changes(settings: Settings, changes: Iterable[str]) -> Settings:
    """Return settings with ``section.key=value`` changes, without those that no longer apply."""
    with warnings.catch_warnings(action="ignore", category=SettingWarning):
        (changed,) = make_runs(resolved(settings), changes=changes)
    return changed


def _changes(values: Mapping[str, str], seconds: float) -> Iterator[str]:
    """Yield a plan's changes, with short names expanded."""
    for setting, text in values.items():
        if setting == "clustering.method" and text in (TIMED, PROGRESS):
            timed = ("refine=true", f"seconds={seconds!r}") if text == TIMED else ("refine=false",)
            yield from (f"clustering.{change}" for change in (*_SEARCHED, f"objective={text}", *timed))
        else:
            yield f"{setting}={text}"


def with_rounds(settings: Settings, rounds: float) -> Settings:
    """Return settings with at least this many rounds, rounded up to whole events."""
    unit = unit_of(settings)
    return settings.model_copy(update={"rounds": max(1, -(-int(rounds) // unit)) * unit})


def _name_of(values: Mapping[str, str]) -> str:
    """Return a plan's name."""
    shorts = short_names(list(values))
    words = {"method.pattern", "clustering.method"}
    return ",".join(
        file_part(text) if setting in words else f"{short}={file_part(text)}"
        for (setting, text), short in zip(values.items(), shorts, strict=True)
    )
