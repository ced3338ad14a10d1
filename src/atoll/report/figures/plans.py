"""Figures that compare clusterings: of each its panel, its label, and the fields of its `ClusteringSummary`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from atoll.report.figures.sizes import plot_size_against
from atoll.runs.titles import without_seed

Plans = Sequence[Mapping[str, Any]]
"""Clusterings as their folder keeps them: label, panel, seed, and the fields of `ClusteringSummary`."""


def by_panel(plans: Plans, value: str) -> dict[str, dict[str, list[float]]]:
    """Return a field of each clustering by panel, or else pattern, and label, one number per seed."""
    table: dict[str, dict[str, list[float]]] = {}
    for plan in plans:
        own = table.setdefault(plan["panel"] or plan["pattern"], {})
        own.setdefault(without_seed(plan["label"]), []).append(float(plan[value]))
    return table


def plot_sizes(plans: Plans, against: str, title: str = "") -> Figure:
    """Plot aggregators' clients against their frequency, "psi", or their "links"; all seeds in one panel."""
    x: dict[str, list[list[float]]] = {}
    sizes: dict[str, list[list[float]]] = {}
    for plan in plans:
        name = ", ".join(filter(None, (plan["panel"], without_seed(plan["label"]))))
        x.setdefault(name, []).append([float(cluster[against]) for cluster in plan["clusters"]])
        sizes.setdefault(name, []).append([float(cluster["size"]) for cluster in plan["clusters"]])
    return plot_size_against(x, sizes, "Share of the merges" if against == "psi" else "Neighbours", title)
