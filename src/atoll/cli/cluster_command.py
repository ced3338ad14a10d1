"""`atoll cluster`: an experiment's clustering, without training."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from atoll.cli.common import (
    ExperimentArg,
    JsonOption,
    OnlyOption,
    PlotOption,
    ScaleOption,
    SetOption,
    WidthOption,
    app,
    check_runs,
    claim_plot,
    err,
    out,
    print_json,
    read_experiments,
    read_width,
    save_plot,
    title_of,
)
from atoll.settings.choices import uses_network

if TYPE_CHECKING:
    from atoll.clustering.describe import ClusterProfile
    from atoll.clustering.feduc.summary import ClusteringSummary


@app.command()
def cluster(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    width: WidthOption = None,
    ids: Annotated[bool, typer.Option("--ids", help="With --plot: number the clients on the map.")] = False,
) -> None:
    """Make an experiment's clustering only, and show what it is like; on a network, also its seconds and its bound.

    With --plot, on a network there are further files: FILE-map, FILE-completion and FILE-sizes; of several runs the
    first is drawn, and FILE-emd and FILE-longest compare all.

    Example: atoll cluster quickstart --set clustering.clusters=5 --plot clusters
    """
    inches = read_width(width)
    runs = read_experiments(experiment, scale, changes, only)
    check_runs(runs, schedules=False)  # a clustering may be looked at whose graph is in parts, say
    claim_plot(plot)
    from atoll.clustering.describe import describe
    from atoll.runs.warnings import warnings_of

    plans: list[ClusteringSummary | None] = []
    shown = []
    for each in runs:
        clustering = each.clustering
        plan = each.plan.summary if uses_network(each.settings) else None
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
        print_json(shown)
    if plot is not None:
        from atoll.cli.cluster_figures import draw_clusterings
        from atoll.report.figures.style import figure_width

        with figure_width(inches):
            for ending, figure in draw_clusterings(runs, plans, ids):
                save_plot(figure, plot, ending)


def _profile_table(profiles: "Sequence[ClusterProfile]", title: str) -> Table:
    has_hours = any(p.hour is not None for p in profiles)
    names = ("cluster", "clients", "samples", "EMD", "major class", *(["UTC hour"] if has_hours else []))
    table = Table(*names, title=title, box=None)
    for number, p in enumerate(profiles):
        hour = "" if p.hour is None else f"{p.hour:.2f}"
        major = f"{p.major_class} ({p.major_share:.0%})"
        table.add_row(str(number), str(p.size), str(p.samples), f"{p.emd:.3f}", major, *([hour] if has_hours else []))
    return table


def _plan_table(plan: "ClusteringSummary", title: str) -> Table:
    from atoll.report.reading.units import format_seconds

    told = (
        f"bound {plan.bound:.4g} = kappa {plan.kappa:.4g} x {plan.initial_gap:.4g} + delta {plan.delta:.4g}; "
        f"T = {plan.steps:g} local steps take {format_seconds(plan.virtual_seconds)}\n"
        f"mean EMD {plan.mean_emd:.3f}, by samples {plan.weighted_emd:.3f}; as a Euclidean norm "
        f"{plan.mean_emd_norm:.3f}, by samples {plan.weighted_emd_norm:.3f}"
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
