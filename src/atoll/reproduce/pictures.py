"""Our figures of a recipe, as images embedded in the page, and the page around them."""

import base64
import re
from collections.abc import Iterator
from html import escape
from importlib import resources
from io import BytesIO

import matplotlib as mpl
from matplotlib.figure import Figure

from atoll.report.figures.comparisons import plot_bars
from atoll.report.figures.curves import has_column, plot_curves, plot_probe
from atoll.report.figures.plans import by_panel, plot_sizes
from atoll.reproduce.claim_results import ClaimResult

MEANS = "mean over seeds with its 95 % t interval"


def draw(result: ClaimResult) -> Iterator[tuple[str, str]]:
    """Yield (caption, SVG as a data address) for each of a recipe's figures; none without runs."""
    for caption, figure in (*_curves(result), *_bars(result)):
        yield caption, as_address(figure)


def _curves(result: ClaimResult) -> Iterator[tuple[str, Figure]]:
    runs = result.runs
    if runs:
        curves = plot_curves(runs)
        tested = "test loss" if any(axes.get_ylabel() == "Test loss" for axes in curves.axes) else "test accuracy"
        yield f"Training loss and {tested} against rounds, {MEANS}", curves
        if "pattern" in runs[0].config.get("method", {}):
            yield "The same against virtual time", plot_curves(runs, "virtual_time")
    if any(has_column(run, "parameter_error") for run in runs):
        yield f"Distance to the planted parameters, {MEANS}", plot_probe(runs, "parameter_error")


def _bars(result: ClaimResult) -> Iterator[tuple[str, Figure]]:
    measures = {verdict.claim.measure for verdict in result.verdicts} if result.plans else set()
    if "emd" in measures:
        yield "Mean EMD of the clusters", plot_bars(by_panel(result.plans, "mean_emd"), "Mean EMD")
    if "longest" in measures:
        seconds = by_panel(result.plans, "max_completion_seconds")
        yield "Longest completion in a cluster", plot_bars(seconds, "Seconds")
    if "size-frequency" in measures:
        yield "Clients of an aggregator against its frequency", plot_sizes(result.plans, "psi")
    elif "size-links" in measures:
        yield "Clients of an aggregator against its links", plot_sizes(result.plans, "links")


def document(title: str, body: str) -> str:
    """Return a page as self-contained HTML, in the style of the pages of claims."""
    style = (resources.files("atoll.reproduce") / "page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>{body}</body></html>\n"
    )


def as_address(figure: Figure) -> str:
    """Return a figure as an SVG data address, with numbers cut to five digits, which is not visible."""
    stream = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "atoll", "svg.fonttype": "path", "path.simplify_threshold": 0.2}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.5g}", stream.getvalue().decode())
    return "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()
