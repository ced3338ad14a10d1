"""Results of races as tables."""

import statistics
from collections.abc import Sequence

from rich.table import Table

from bench.racing import RaceResult

COLUMNS = ("", "seconds", "times the plain loop's speed", "GFLOP/s", "of the matrix product", "peak memory")


def as_rich(title: str, results: Sequence[RaceResult]) -> Table:
    """Return one case's results as a table for the terminal."""
    table = Table(*COLUMNS, title=title, box=None)
    for result in results:
        table.add_row(*cells(result))
    return table


def as_markdown(results: Sequence[RaceResult]) -> str:
    """Return the results of several cases as one Markdown table, without failed contenders."""
    lines = ["| " + " | ".join(("case", *COLUMNS)) + " |", "|---" * 2 + "|--:" * (len(COLUMNS) - 1) + "|"]
    lines += ["| " + " | ".join((result.case, *cells(result))) + " |" for result in results if not result.failure]
    return "\n".join(lines) + "\n"


def cells(result: RaceResult) -> list[str]:
    """Return one row: the contender and its figures, or why it has none."""
    if result.failure:
        return [result.contender, f"skipped: {result.failure}", *[""] * (len(COLUMNS) - 2)]
    return [
        result.contender,
        f"{statistics.median(result.seconds):.3g}",
        "" if result.speed is None else f"{result.speed:.2f}",
        "" if result.gflops is None else f"{result.gflops:.1f}",
        "" if result.share is None else f"{result.share:.0%}",
        "" if result.memory_bytes is None else f"{result.memory_bytes / 1e6:.0f} MB",
    ]
