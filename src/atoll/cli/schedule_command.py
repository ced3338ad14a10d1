"""`atoll schedule`: what an experiment costs, without training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from atoll.cli.common import app, heading_of, out, print_json, read_experiments
from atoll.cli.figure_files import claim_plot, save_plots
from atoll.cli.options import ExperimentArg, JsonOption, OnlyOption, PlotOption, ScaleOption, SetOption, WidthOption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atoll.experiment.experiment import Experiment
    from atoll.schedules.events import Event


@app.command()
def schedule(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    width: WidthOption = None,
    privacy: Annotated[
        bool, typer.Option("--privacy", help="Show the privacy budget it spends instead, as [privacy] sets it.")
    ] = False,
) -> None:
    """Show an experiment's schedule: who trains when, and what it costs. Nothing is trained.

    Example: atoll schedule quickstart --plot gantt
    """
    runs = read_experiments(experiment, scale, changes, only)
    from atoll.api import check_runs  # a bad file is told of without loading PyTorch

    check_runs(runs, trained=False)
    inches = claim_plot(plot, width, runs)
    if privacy:
        from atoll.cli.schedule_privacy import show_spending

        show_spending(runs, as_json, plot, inches)
        return
    shown = list(map(_as_dict, runs))
    if as_json:
        print_json(shown)
    else:
        out.print(_totals_table(runs, shown))
    save_plots(plot, inches, lambda: [("", _gantt(runs[0]))])


def _gantt(experiment: "Experiment") -> "Figure":
    from atoll.experiment.cluster_waits import work_ends
    from atoll.experiment.drifting import changes_in
    from atoll.report.figures.before_training import plot_gantt

    events = experiment.method.schedule.events
    bars = [(c, began, e.seconds, e.round) for e in events for c, began in zip(e.active, e.began, strict=True)]
    changes = [change["seconds"] for change in changes_in(experiment.clients.dealt, experiment.method.schedule)]
    return plot_gantt(bars, heading_of(experiment), work_ends(experiment), changes)


def _as_dict(experiment: "Experiment") -> dict[str, Any]:
    """Return a schedule's totals and events, for JSON."""
    from atoll.experiment.drifting import changes_in

    table = experiment.method.schedule
    changes = changes_in(experiment.clients.dealt, table)
    return {
        "label": experiment.settings.label,
        "panel": experiment.settings.panel,
        "events": len(table),
        "rounds": table.rounds,
        "virtual_seconds": table.events[-1].seconds,
        "client_updates": sum(event.client_updates for event in table.events),
        **_bytes_of(experiment, table.events),
        "max_updates_per_client_round": table.max_updates_per_client_round(),
        "frequencies": table.frequencies.tolist(),
        **({"data_changes": changes} if changes else {}),
        "rows": [
            {
                "event": event.index,
                "round": event.round,
                "began": list(event.began),
                "seconds": event.seconds,
                "clusters": list(event.active),
                "cohort": event.cohort.tolist(),
                "staleness": list(event.staleness),
                **_bytes_of(experiment, [event]),
            }
            for event in table.events
        ],
    }


def _totals_table(runs: "list[Experiment]", shown: list[dict[str, Any]]) -> Table:
    from atoll.support.units import format_seconds

    largest = max(max(totals["bytes_up"], totals["bytes_down"]) for totals in shown)
    unit, size = ("MB", 1e6) if largest >= 1e6 else ("kB", 1e3)
    names = ("run", "rounds", "events", "virtual time", "client updates", f"{unit} up", f"{unit} down")
    changing = any("data_changes" in totals for totals in shown)
    table = Table(*names, *(["data change at round"] if changing else []), box=None)
    for experiment, totals in zip(runs, shown, strict=True):
        table.add_row(
            heading_of(experiment),
            str(totals["rounds"]),
            f"{totals['events']:,}",
            format_seconds(totals["virtual_seconds"]),
            f"{totals['client_updates']:,}",
            f"{totals['bytes_up'] / size:,.1f}",
            f"{totals['bytes_down'] / size:,.1f}",
            *([", ".join(str(change["round"]) for change in totals.get("data_changes", []))] if changing else []),
        )
    return table


def _bytes_of(experiment: "Experiment", events: Sequence["Event"]) -> dict[str, int]:
    up, down = experiment.traffic.bytes_of(events)
    return {"bytes_up": up, "bytes_down": down}
