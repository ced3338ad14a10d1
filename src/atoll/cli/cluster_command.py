"""`atoll cluster`: an experiment's clustering, without training."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from atoll.cli.common import app, err, heading_of, out, print_json, read_experiments
from atoll.cli.data_commands import class_names
from atoll.cli.figure_files import claim_plot, save_plots
from atoll.cli.options import ExperimentArg, JsonOption, OnlyOption, PlotOption, ScaleOption, SetOption, WidthOption
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from atoll.clustering.describe import ClusterProfile
    from atoll.clustering.feduc.summary import ClusteringSummary
    from atoll.experiment.experiment import Experiment


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
    """Show an experiment's clustering; on a network, also its completion times and its bound. Nothing is trained.

    On a network, --plot writes FILE-map, FILE-completion and FILE-sizes too. If there are several runs it draws the
    first, and compares all of them in FILE-emd and FILE-longest.

    Example: atoll cluster quickstart --set clustering.clusters=5 --plot clusters
    """
    from atoll.settings.choices import uses_network  # help pages do not wait for pydantic

    runs = read_experiments(experiment, scale, changes, only)
    from atoll.api import check_runs  # a bad file is told of without loading PyTorch

    # A clustering may be shown even if, say, its graph is not connected.
    check_runs(runs, trained=False, schedules=False)
    if ids and plot and not uses_network(runs[0].settings):
        raise InputError("--ids: numbers the clients on a network's map, and this experiment has no network")
    inches = claim_plot(plot, width, runs, ids)
    plans = [each.plan.summary if uses_network(each.settings) else None for each in runs]
    records = [_show(each, plan, as_json) for each, plan in zip(runs, plans, strict=True)]
    if as_json:
        print_json(records)
    if plot is not None:
        from atoll.cli.cluster_figures import draw_clusterings

        save_plots(plot, inches, lambda: draw_clusterings(runs, plans, ids))


def _show(experiment: "Experiment", plan: "ClusteringSummary | None", as_json: bool) -> dict[str, Any]:
    """Return a run's clustering for JSON; print its table, unless `as_json`, and its warnings."""
    from atoll.clustering.describe import describe
    from atoll.runs.warnings import warnings_of

    settings, clustering = experiment.settings, experiment.clustering
    profiles = [] if plan else describe(experiment.population, clustering)
    if not as_json:
        title, classes = heading_of(experiment), class_names(experiment.population)
        out.print(_plan_table(plan, title) if plan else _profile_table(profiles, title, classes))
    for warning in warnings_of(experiment):
        err.print(f"warning: {warning}")
    record = {"label": settings.label, "panel": settings.panel, "method": settings.clustering.method}
    record |= {"membership": clustering.labels.tolist(), "left_out": clustering.left_out.tolist()}
    return record | (asdict(plan) if plan else {"clusters": [asdict(profile) for profile in profiles]})


def _profile_table(profiles: "Sequence[ClusterProfile]", title: str, classes: "Sequence[str]") -> Table:
    has_hours = any(p.hour is not None for p in profiles)
    names = ("cluster", "clients", "samples", "EMD", "major class", *(["UTC hour"] if has_hours else []))
    table = Table(*names, title=title, box=None)
    for number, p in enumerate(profiles):
        hour = "" if p.hour is None else f"{p.hour:.2f}"
        major = f"{classes[p.major_class] if classes else p.major_class} ({p.major_share:.0%})"
        table.add_row(str(number), str(p.size), str(p.samples), f"{p.emd:.3f}", major, *([hour] if has_hours else []))
    return table


def _plan_table(plan: "ClusteringSummary", title: str) -> Table:
    from atoll.support.units import format_seconds

    caption = (
        f"bound {plan.bound:.4g} = kappa {plan.kappa:.4g} x {plan.initial_gap:.4g} + delta {plan.delta:.4g}; "
        f"T = {plan.steps:g} local steps take {format_seconds(plan.virtual_seconds)}\n"
        f"mean EMD {plan.mean_emd:.3f}, by samples {plan.weighted_emd:.3f}; as a Euclidean norm "
        f"{plan.mean_emd_norm:.3f}, by samples {plan.weighted_emd_norm:.3f}"
    )
    names = ("aggregator", "clients", "samples", "EMD", "completion", "limit", "frequency", "xi", "links")
    table = Table(*names, title=title, caption=caption, box=None)
    for number, c in enumerate(plan.clusters):
        emd = "" if c.emd is None else f"{c.emd:.3f}"
        limit = "" if c.limit_seconds is None else f"{c.limit_seconds:,g} s"
        numbers = f"{c.psi:.2%}", f"{c.xi:.3g}", str(c.links)
        table.add_row(str(number), str(c.size), str(c.samples), emd, f"{c.completion_seconds:.3f} s", limit, *numbers)
    return table
