"""`atoll schedule --privacy`: the epsilon of every cluster and of the worst client, before anything is trained."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from atoll.cli.common import err, heading_of, out, print_json
from atoll.cli.figure_files import save_plots
from atoll.support.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atoll.experiment.experiment import Experiment
    from atoll.experiment.privacy import Private


def show_spending(runs: "Sequence[Experiment]", as_json: bool, plot: Path | None, inches: float | None) -> None:
    """Print what each run's schedule spends, and plot the first run's epsilon over rounds."""
    shown = [spending_of(each, _private(each)) for each in runs]
    if as_json:
        print_json(shown)
    else:
        for each, told in zip(runs, shown, strict=True):
            out.print(_table(heading_of(each), told))
            out.print(_sentence(_private(each), told))
    for each in runs:
        if warning := _private(each).ends_early:
            err.print(f"warning: {warning}")
    save_plots(plot, inches, lambda: [("", _draw(runs[0]))])


def _draw(experiment: "Experiment") -> "Figure":
    from atoll.report.figures.privacy_figure import plot_spending

    return plot_spending(*_private(experiment).plan.over_rounds(), heading_of(experiment))


def spending_of(experiment: "Experiment", private: "Private") -> dict[str, Any]:
    """Return what a run's schedule spends, for JSON."""
    from atoll.privacy.privacy_plan import finite

    plan, wanted = private.plan, private.mechanism
    epsilons = plan.of_clusters().tolist()
    rounds, over = plan.over_rounds()
    return {
        "label": experiment.settings.label,
        "panel": experiment.settings.panel,
        **{name: getattr(wanted, name) for name in ("trust", "adjacency", "delta")},
        "budget": wanted.epsilon,
        "events": len(plan.schedule),
        "events_planned": private.events_planned,
        "epsilon": finite(max(epsilons)),
        "worst_client": plan.worst_client,
        "worst_client_releases": int(plan.releases.max(initial=0)),
        "clusters": plan.table(),
        "over_rounds": {"rounds": rounds.tolist(), "epsilon": [finite(row.max()) for row in over]},
    }


def _private(experiment: "Experiment") -> "Private":
    private = experiment.planned.private
    if private is None:
        raise InputError(
            "--privacy: privacy.trust = 'none' protects nothing and spends nothing; set it to 'server', 'aggregator' "
            "or 'client', with privacy.clip and privacy.noise"
        )
    return private


def _table(title: str, told: dict[str, Any]) -> Table:
    table = Table("cluster", "clients", "most releases", "epsilon", box=None, title=title, title_justify="left")
    for row in told["clusters"]:
        table.add_row(str(row["cluster"]), f"{row['clients']:,}", f"{row['releases']:,}", _write(row["epsilon"]))
    return table


def _sentence(private: "Private", told: dict[str, Any]) -> str:
    wanted = private.mechanism
    return (
        f"worst client: {told['worst_client']}, in {told['worst_client_releases']:,} releases: epsilon = "
        f"{_write(told['epsilon'])} at delta = {wanted.delta:g} ({wanted.adjacency}, trust = {wanted.trust})"
    )


def _write(epsilon: float | None) -> str:
    return f"{math.inf if epsilon is None else epsilon:.3f}"
