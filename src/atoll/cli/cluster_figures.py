"""The figures of `atoll cluster --plot`."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from atoll.cli.common import heading_of
from atoll.clustering.describe import class_shares
from atoll.clustering.feduc.summary import ClusteringSummary
from atoll.experiment.experiment import Experiment
from atoll.report.figures.before_training import plot_clusters
from atoll.report.figures.comparisons import plot_bars, plot_completion
from atoll.report.figures.network_map import plot_map
from atoll.report.figures.sizes import plot_size_against
from atoll.runs.titles import without_seed
from atoll.settings.validation import Settings


def draw_clusterings(
    runs: list[Experiment], plans: list[ClusteringSummary | None], ids: bool = False
) -> list[tuple[str, Figure]]:
    """Return (suffix of the file's name, figure) pairs: the first run's clusters, and comparisons of all runs.

    `ids` numbers the clients on the map.
    """
    first, plan, title = runs[0], plans[0], heading_of(runs[0])
    shares = class_shares(first.population, first.clustering)
    figures = [("", plot_clusters(first.clustering.sizes, shares, title))]
    if plan is None:
        return figures
    network = first.conditions.networks[0]
    if network.clients_xy is not None and network.aggregators_xy is not None:
        positions = (network.clients_xy, network.aggregators_xy, first.clustering.labels)
        neighbours = network.neighbours if plan.pattern.startswith("dec") else None
        server = None if neighbours else network.server_xy
        figures.append(("-map", plot_map(*positions, server, neighbours, title, ids)))
    seconds = [c.completion_seconds for c in plan.clusters]
    figures.append(("-completion", plot_completion(seconds, first.plan.problem.limits, title)))
    found = [(each.settings, made) for each, made in zip(runs, plans, strict=True) if made is not None]
    figures.append(("-sizes", _plot_sizes(found)))
    if len(found) > 1:
        emd = _by_group(found, lambda made: made.mean_emd)
        longest = _by_group(found, lambda made: made.max_completion_seconds)
        figures.append(("-emd", plot_bars(emd, "Mean EMD", first.settings.name)))
        figures.append(("-longest", plot_bars(longest, "Longest completion (s)", first.settings.name)))
    return figures


def _plot_sizes(found: Sequence[tuple[Settings, ClusteringSummary]]) -> Figure:
    """Plot sizes against frequency if that differs between aggregators, else against links; all seeds in one panel."""
    frequency = all(made.pattern.endswith("asy") for _, made in found)
    x: dict[str, list[list[float]]] = {}
    sizes: dict[str, list[list[float]]] = {}
    for settings, made in found:
        name = ", ".join(filter(None, (settings.panel, _series(settings)))) or made.pattern
        x.setdefault(name, []).append([c.psi if frequency else float(c.links) for c in made.clusters])
        sizes.setdefault(name, []).append([float(c.size) for c in made.clusters])
    label = "Share of the inter-cluster aggregations" if frequency else "Neighbours"
    return plot_size_against(x, sizes, label, found[0][0].name)


def _by_group(
    found: Sequence[tuple[Settings, ClusteringSummary]], value: Callable[[ClusteringSummary], float]
) -> dict[str, dict[str, list[float]]]:
    """Return a value of each run by panel and series, one number per seed."""
    table: dict[str, dict[str, list[float]]] = {}
    for settings, made in found:
        table.setdefault(settings.panel or made.pattern, {}).setdefault(_series(settings), []).append(value(made))
    return table


def _series(settings: Settings) -> str:
    return without_seed(settings.label) or settings.clustering.method
