"""The figures of `atoll cluster --plot`."""

from dataclasses import asdict

from matplotlib.figure import Figure

from atoll.cli.common import heading_of
from atoll.clustering.describe import class_shares
from atoll.clustering.feduc.summary import ClusteringSummary
from atoll.experiment.experiment import Experiment
from atoll.report.figures.before_training import plot_clusters
from atoll.report.figures.comparisons import plot_bars, plot_completion
from atoll.report.figures.network_map import plot_map
from atoll.report.figures.plans import by_panel, plot_sizes
from atoll.runs.titles import without_seed


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
    found = [
        asdict(plan) | {"panel": own.panel, "label": without_seed(own.label) or own.clustering.method}
        for own, plan in zip((each.settings for each in runs), plans, strict=True)
        if plan is not None
    ]
    against = "psi" if all(each["pattern"].endswith("asy") for each in found) else "links"
    name = first.settings.name
    figures.append(("-sizes", plot_sizes(found, against, name)))
    if len(found) > 1:
        figures.append(("-emd", plot_bars(by_panel(found, "mean_emd"), "Mean EMD", name)))
        longest = by_panel(found, "max_completion_seconds")
        figures.append(("-longest", plot_bars(longest, "Longest completion (s)", name)))
    return figures
