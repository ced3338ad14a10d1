"""The page's table of results: where every setting ends, as mean and deviation over its seeds."""

from collections.abc import Callable, Sequence

import numpy as np

from atoll.report.page.groups import Group, Panel
from atoll.report.page.markup import Body, Cell, table
from atoll.report.page.numbers import bytes_sent
from atoll.report.runs import Run
from atoll.report.spread import Moments
from atoll.report.style import format_seconds
from atoll.report.tables import DASH

SEEDS_NOTE = "Where a setting has several seeds: mean ± sample standard deviation over those that finished."
Writer = Callable[[float], str]


def results_table(panels: Sequence[Panel]) -> str:
    """Return where each setting ends: losses, accuracies, and what it cost; one line a setting."""
    groups = [group for panel in panels for group in panel.groups]
    columns = [column for column in _columns() if any(_values(group.runs, column[1]) for group in groups)]
    seeds = any(len(group.runs) > 1 for group in groups)
    header = ["Run", *(["Seeds"] if seeds else []), "State", *(title for title, _, _ in columns)]
    bodies = [
        Body(
            panel.title,
            [
                [
                    Cell(group.label),
                    *([Cell(_seeds(group))] if seeds else []),
                    _state(group),
                    *(Cell(write_moments(_values(group.counted, value), write)) for _, value, write in columns),
                ]
                for group in panel.groups
            ],
        )
        for panel in panels
    ]
    return table("Where each run ends", header, bodies, SEEDS_NOTE if seeds else "", "results")


def write_moments(values: Sequence[float], write: Writer) -> str:
    """Return the mean, and with several values the deviation, each as `write` writes it; a dash for no value.

    >>> write_moments([1.0, 3.0], lambda value: f"{value:.1f}")
    '2.0 ± 1.4'
    """
    if not values:
        return DASH
    found = moments(values)
    return write(found.mean) if found.std is None else f"{write(found.mean)} ± {write(found.std)}"


def moments(values: Sequence[float]) -> Moments:
    """Return the mean and the sample standard deviation of at least one value."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Moments(len(values), float(np.mean(values)), std)


def format_bytes(count: float) -> str:
    """Write a number of bytes in its own best unit, to three digits.

    >>> format_bytes(1_234_000)
    '1.23 MB'
    """
    for size, symbol in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {symbol}"
    return f"{count:.0f} B"


def _columns() -> list[tuple[str, Callable[[Run], float], Writer]]:
    """Return the columns of results: title, a run's value, and how it is written."""

    def last(name: str) -> Callable[[Run], float]:
        return lambda run: float(run.rows[name][-1]) if name in run.rows else np.nan

    def best(run: Run) -> float:
        return float(np.fmax.reduce(run.rows["test_accuracy"]))

    return [
        ("Training loss", last("train_loss"), _loss),
        ("Final accuracy", last("test_accuracy"), _percent),
        ("Best accuracy", best, _percent),
        ("Mean cluster accuracy", last("mean_cluster_accuracy"), _percent),
        ("ARI", last("ari"), lambda value: f"{value:.3f}"),
        ("Client updates", last("client_updates"), write_count),
        ("Bytes sent", lambda run: float(bytes_sent(run)[-1]), format_bytes),
        ("Virtual time", last("virtual_time"), format_seconds),
        ("Wall time", last("wall_time"), format_seconds),
    ]


def _values(runs: Sequence[Run], value: Callable[[Run], float]) -> list[float]:
    return [number for number in map(value, runs) if np.isfinite(number)]


def _seeds(group: Group) -> str:
    """Write seeds as a range where they are one.

    >>> _seeds(Group("", "", "", ()))
    ''
    """
    seeds = sorted(group.seeds)
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}{DASH}{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _state(group: Group) -> Cell:
    finished = sum(run.finished for run in group.runs)
    if finished == len(group.runs):
        return Cell("finished")
    if finished:
        return Cell(f"{finished} of {len(group.runs)} finished", style="open")
    furthest = max(_values(group.runs, lambda run: float(run.rows["round"][-1])), default=0.0)
    planned = group.runs[0].config.get("rounds")
    return Cell(f"at round {furthest:,.0f}" + (f" of {planned:,}" if isinstance(planned, int) else ""), style="open")


def _loss(value: float) -> str:
    return f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def write_count(value: float) -> str:
    """Write a count, or the mean of several.

    >>> write_count(1234.0), write_count(2.5)
    ('1,234', '2.5')
    """
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.1f}"
