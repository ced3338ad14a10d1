"""`atoll cluster`: an experiment's clustering, without training."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from atoll import report
from atoll.cli.common import (
    ExperimentArg,
    JsonOption,
    OnlyOption,
    PlotOption,
    ScaleOption,
    SetOption,
    app,
    err,
    out,
    print_json,
    read_experiments,
    save_plot,
    stem_of,
    title_of,
)
from atoll.clustering.describe import ClusterProfile, class_shares, describe
from atoll.clustering.feduc.summary import ClusteringSummary
from atoll.experiment.experiment import Experiment
from atoll.experiment.settings import Settings
from atoll.runs.run import warnings_of


@app.command()
def cluster(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Make an experiment's clustering only, and show what it is like; on a network, also its seconds and its bound.

    With --plot, on a network there are further files: FILE-map, FILE-completion and FILE-sizes; of several runs the
    first is drawn, and FILE-emd and FILE-longest compare all.

    Example: atoll cluster quickstart --set clustering.clusters=5 --plot clusters
    """
    runs = read_experiments(experiment, scale, changes, only)
    plans: list[ClusteringSummary | None] = []
    shown = []
    for each in runs:
        clustering = each.clustering
        plan = each.plan if each.has_network else None
        plans.append(plan)
        profiles = [] if plan else describe(each.population, clustering)
        record = {"label": each.settings.label, "panel": each.settings.panel, "method": each.settings.clustering.method}
        record |= {"membership": clustering.labels.tolist(), "left_out": clustering.left_out.tolist()}
        shown.append(record | (asdict(plan) if plan else {"clusters": [asdict(profile) for profile in profiles]}))
        if not as_json:
            title = title_of(each)
            out.print(_plan_table(plan, title) if plan else _profile_table(profiles, title))
        for warning in warnings_of(each):
            err.print(f"warning: {warning}", markup=False)
    if as_json:
        print_json(shown[0] if len(shown) == 1 else shown)
    if plot:
        for ending, figure in _figures(runs, plans):
            save_plot(figure, Path(f"{stem_of(plot)}{ending}"))


def _profile_table(profiles: Sequence[ClusterProfile], title: str) -> Table:
    names = ("cluster", "clients", "samples", "EMD", "major class", "UTC hour")
    table = Table(*names, title=title, box=None)
    for number, p in enumerate(profiles):
        hour = "" if p.hour is None else f"{p.hour:.2f}"
        major = f"{p.major_class} ({p.major_share:.0%})"
        table.add_row(str(number), str(p.size), str(p.samples), f"{p.emd:.3f}", major, hour)
    return table


def _plan_table(plan: ClusteringSummary, title: str) -> Table:
    told = (
        f"bound {plan.bound:.4g} = kappa {plan.kappa:.4g} x {plan.initial_gap:.4g} + delta {plan.delta:.4g}; mean EMD "
        f"{plan.mean_emd:.3f}; T = {plan.steps:g} local steps take {report.format_seconds(plan.virtual_seconds)}"
    )
    names = ("aggregator", "clients", "samples", "EMD", "completion", "limit", "frequency", "xi", "links")
    table = Table(*names, title=title, caption=told, box=None)
    for number, c in enumerate(plan.clusters):
        table.add_row(
            str(number),
            str(c.size),
            str(c.samples),
            "" if c.emd is None else f"{c.emd:.3f}",
            f"{c.completion_seconds:.3f} s",
            "" if c.limit_seconds is None else f"{c.limit_seconds:.3g} s",
            f"{c.psi:.2%}",
            f"{c.xi:.3g}",
            str(c.links),
        )
    return table


def _figures(runs: list[Experiment], plans: list[ClusteringSummary | None]) -> list[tuple[str, Figure]]:
    """Return (ending of the file's name, figure): the first run's clusters, and what compares all runs."""
    first, plan, title = runs[0], plans[0], title_of(runs[0])
    shares = class_shares(first.population, first.clustering)
    figures = [("", report.plot_clusters(first.clustering.sizes, shares, title))]
    if plan is None:
        return figures
    network = first.networks[0]
    if network.clients_xy is not None and network.aggregators_xy is not None:
        positions = (network.clients_xy, network.aggregators_xy, first.clustering.labels)
        neighbours = network.neighbours if plan.pattern.startswith("dec") else None
        server = None if neighbours else network.server_xy
        figures.append(("-map", report.plot_map(*positions, server, neighbours, title)))
    seconds = [c.completion_seconds for c in plan.clusters]
    figures.append(("-completion", report.plot_completion(seconds, first.problem.limits, title)))
    found = [(each.settings, made) for each, made in zip(runs, plans, strict=True) if made is not None]
    figures.append(("-sizes", _plot_sizes(found)))
    if len(found) > 1:
        emd = _by_group(found, lambda made: made.mean_emd)
        longest = _by_group(found, lambda made: made.max_completion_seconds)
        figures.append(("-emd", report.plot_bars(emd, "Mean EMD", first.settings.name)))
        figures.append(("-longest", report.plot_bars(longest, "Longest completion (s)", first.settings.name)))
    return figures


def _plot_sizes(found: Sequence[tuple[Settings, ClusteringSummary]]) -> Figure:
    """Draw sizes against frequency where that differs between aggregators, else against links; all seeds in a panel."""
    frequency = all(made.pattern.endswith("asy") for _, made in found)
    x: dict[str, list[list[float]]] = {}
    sizes: dict[str, list[list[float]]] = {}
    for settings, made in found:
        name = ", ".join(filter(None, (settings.panel, _series(settings)))) or made.pattern
        x.setdefault(name, []).append([c.psi if frequency else float(c.links) for c in made.clusters])
        sizes.setdefault(name, []).append([float(c.size) for c in made.clusters])
    label = "Share of the inter-cluster aggregations" if frequency else "Neighbours"
    return report.plot_size_against(x, sizes, label, found[0][0].name)


def _by_group(
    found: Sequence[tuple[Settings, ClusteringSummary]], value: Callable[[ClusteringSummary], float]
) -> dict[str, dict[str, list[float]]]:
    """Return a value of each run by panel and series, one number a seed."""
    table: dict[str, dict[str, list[float]]] = {}
    for settings, made in found:
        table.setdefault(settings.panel or made.pattern, {}).setdefault(_series(settings), []).append(value(made))
    return table


def _series(settings: Settings) -> str:
    """Return a run's label without its seed, which runs of one series differ in."""
    return re.sub(r"[\s,]*\bseed \d+$", "", settings.label) or settings.clustering.method
