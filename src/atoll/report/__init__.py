"""Reports on runs: reading their folders, curves, tables and pictures of data, clusters and schedules."""

from atoll.report import plot
from atoll.report.comparisons import plot_bars, plot_completion
from atoll.report.curves import plot_curves, plot_parameter_error
from atoll.report.figures import plot_clusters, plot_gantt, plot_shares
from atoll.report.files import save_figure, write_report
from atoll.report.holdings import plot_holdings
from atoll.report.identity import plot_identity
from atoll.report.network import plot_map
from atoll.report.runs import Run, find_readable, find_runs, overlay, read_run
from atoll.report.sizes import plot_size_against
from atoll.report.spread import Moments, Spread, spread_as_markdown, spread_as_rich, spread_over_seeds, tables_as_rich
from atoll.report.style import figure_width, format_seconds
from atoll.report.tables import Reached, Row, rounds_to_target
from atoll.report.writing import as_csv, as_dicts, as_latex, as_markdown, as_rich

__all__ = [
    "Moments",
    "Reached",
    "Row",
    "Run",
    "Spread",
    "as_csv",
    "as_dicts",
    "as_latex",
    "as_markdown",
    "as_rich",
    "figure_width",
    "find_readable",
    "find_runs",
    "format_seconds",
    "overlay",
    "plot",
    "plot_bars",
    "plot_clusters",
    "plot_completion",
    "plot_curves",
    "plot_gantt",
    "plot_holdings",
    "plot_identity",
    "plot_map",
    "plot_parameter_error",
    "plot_shares",
    "plot_size_against",
    "read_run",
    "rounds_to_target",
    "save_figure",
    "spread_as_markdown",
    "spread_as_rich",
    "spread_over_seeds",
    "tables_as_rich",
    "write_report",
]
