"""MkDocs hook: draws the site's figures from the library itself while the site is built, as figures/NAME.svg."""

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mkdocs.structure.files import File, Files

import atoll
from atoll.benchmark.result_files import read_results
from atoll.benchmark.standings import average_ranks, critical_difference, stand
from atoll.clustering.describe import class_shares
from atoll.clustering.feduc.problem import PATTERNS, Pattern
from atoll.experiment.cluster_waits import work_ends
from atoll.experiment.experiment import Experiment
from atoll.methods.papers.hierarchical import Phase, hierarchical_schedule
from atoll.network.completion import event_seconds
from atoll.network.network import Network
from atoll.network.network_files import matrix_network
from atoll.report.figures import plot
from atoll.report.figures.before_training import plot_clusters, plot_gantt
from atoll.report.figures.comparisons import plot_completion
from atoll.report.figures.curves import plot_curves
from atoll.report.figures.network_map import plot_map
from atoll.report.figures.ranks import plot_ranks
from atoll.report.figures.style import PALETTE, STYLE, WIDTH_INCHES
from atoll.report.reading.runs import Run, find_runs
from atoll.runs.run import run_events
from atoll.schedules.events import Event, Schedule
from atoll.settings import experiment_file as config

PLAN = Path(__file__).with_name("planning.md")
PERFORMANCE = Path(__file__).with_name("performance.md")
BENCHMARK = Path(__file__).parents[1] / "evidence" / "benchmark"
_FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

PACES = (4.0, 6.0, 10.0)  # seconds of each cluster's work in the timelines of the patterns
SEEDS = 5
STUDIED = {  # methods by label
    "FedAvg": "fedavg",
    "FedCluster": "fedcluster",
    "FedAvgM": "fedavgm",
}
SHOWN_SECONDS = 20.0
SERVER_ROW = -1.0
NAMES = {"censyn": "CenSyn", "cenasy": "CenAsy", "decsyn": "DecSyn", "decasy": "DecAsy"}
INK = "#222222"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the drawn files to those of the site; MkDocs calls this once per build."""
    for name, svg in drawn().items():
        files.append(File.generated(config, f"figures/{name}.svg", content=svg))
    return files


@cache  # `mkdocs serve` builds again and again
def drawn() -> dict[str, bytes]:
    """Return all figures as SVG, by name."""
    figures = {
        "quickstart-curves": quickstart_curves,
        "quickstart-clusters": lambda: clusters_of(quickstart()[0]),
        "quickstart-gantt": lambda: gantt_of(quickstart()[0]),
        "performance-peers": peers,
        "benchmark-ranks": benchmark_ranks,
        "study-column": lambda: plot.curves(study()[: 2 * SEEDS], width="column"),
        "study-text": lambda: plot.curves(study(), width="text"),
        **{f"pattern-{pattern}": _timeline(pattern) for pattern in PATTERNS},
    }
    return {name: as_svg(draw()) for name, draw in figures.items()} | {
        name: as_svg(figure) for name, figure in plan_figures()
    }


def as_svg(figure: Figure) -> bytes:
    """Return a figure as SVG; equal figures give equal bytes."""
    stream = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "atoll"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def quickstart() -> list[Experiment]:
    """Return the runs of the recipe `quickstart`."""
    return [Experiment(settings) for settings in config.make_runs(config.read_experiment("quickstart"))]


def quickstart_curves() -> Figure:
    """Run the recipe and draw what `atoll run quickstart` draws."""
    with tempfile.TemporaryDirectory() as folder:
        for number, experiment in enumerate(quickstart()):
            for _ in run_events(experiment, Path(folder) / str(number)):
                pass
        return plot_curves(find_runs([Path(folder)]))


@cache
def study() -> list[Run]:
    """Return runs of three methods with five seeds each, on a small problem."""
    table = {
        "rounds": 8,
        "data": {"dataset": "digits", "partition": "major-class", "clients": 20, "samples": 40, "rho_device": 0.7},
        "model": {"name": "lr"},
        "local": {"steps": 5, "batch_size": 20, "lr": 0.05},
        "clustering": {"method": "random", "clusters": 4},
        "runs": [{"label": label, "method": {"name": name, "fraction": 0.25}} for label, name in STUDIED.items()],
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, settings in enumerate(config.make_runs({**table, "name": "study"})):
            for seed in range(SEEDS):
                made = settings.model_copy(update={"seed": seed})
                for _ in run_events(Experiment(made), Path(folder) / f"{number}-{seed}"):
                    pass
        return find_runs([Path(folder)])


def clusters_of(experiment: Experiment) -> Figure:
    """Draw what `atoll cluster --plot` draws."""
    return plot_clusters(experiment.clustering.sizes, class_shares(experiment.population, experiment.clustering))


def gantt_of(experiment: Experiment) -> Figure:
    """Draw what `atoll schedule --plot` draws."""
    return plot_gantt(bars_of(experiment.method.schedule), done=work_ends(experiment))


def bars_of(schedule: Schedule) -> list[tuple[int, float, float, int]]:
    """Return one bar for each piece of work, as `plot_gantt` takes them."""
    return [(c, began, e.seconds, e.round) for e in schedule.events for c, began in zip(e.active, e.began, strict=True)]


def peers() -> Figure:
    """Draw the speeds in performance.md's table of libraries as bars."""
    _, _, text = PERFORMANCE.read_text(encoding="utf-8").partition("### Measured against them")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    (_, *names, _), rows = lines[0], [line for line in lines[2:] if len(line) == len(lines[0])]
    figure = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    with mpl.rc_context(STYLE):
        axes = figure.subplots()
        width = 0.8 / len(names)
        for number, (name, colour) in enumerate(zip(names, PALETTE, strict=False)):
            speeds = [float(row[1 + number]) for row in rows]
            places = np.arange(len(rows)) + (number - (len(names) - 1) / 2) * width
            axes.bar(places, speeds, width * 0.9, label=name.replace("`", "").strip(), color=colour)
        axes.axhline(1, color=INK, linewidth=0.9)
        axes.set_xticks(
            np.arange(len(rows)), [row[0].strip().replace(", ", ",\n").replace(" (", "\n(") for row in rows]
        )
        axes.set_ylabel("Times the plain loop's speed")
        axes.legend(ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def benchmark_ranks() -> Figure:
    """Draw the average ranks of the benchmark's published result."""
    suites = [
        stand(read_results([BENCHMARK], folder.name).values(), "updates") for folder in sorted(BENCHMARK.iterdir())
    ]
    ranks = average_ranks(suites)
    return plot_ranks(ranks, critical_difference(len(ranks), len(suites)))


def plan_figures() -> Iterator[tuple[str, Figure]]:
    """Draw the network, the completions and the schedule of the experiment on planning.md."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, text in _FILE.findall(PLAN.read_text(encoding="utf-8")):
            Path(name).write_text(text, encoding="utf-8")
        (settings,) = config.make_runs(config.read_experiment("fleet.toml"))
        experiment = Experiment(settings)
        network, plan = experiment.conditions.networks[0], experiment.plan.summary
        positions = (network.clients_xy, network.aggregators_xy, experiment.clustering.labels, network.server_xy)
        yield "plan-map", plot_map(*positions)  # type: ignore[arg-type]  # drawn, so there are positions
        seconds = [cluster.completion_seconds for cluster in plan.clusters]
        yield "plan-completion", plot_completion(seconds, experiment.plan.problem.limits)
        yield "plan-gantt", plot_gantt(bars_of(experiment.method.schedule.until(120.0)))


def _timeline(pattern: Pattern) -> Callable[[], Figure]:
    return lambda: timeline(pattern)


def timeline(pattern: Pattern) -> Figure:
    """Draw a pattern's events for three clusters in a row, each with its own pace, and who takes part in each merge."""
    network = three_clusters()
    schedule = schedule_of(pattern, network)
    seconds = event_seconds(network, np.arange(3), pattern, 1)
    bars = [(c, began, began + seconds[c], e.round) for e in schedule.events for c, began in _work(e)]
    figure = Figure(figsize=(4.6, 2.3), layout="constrained")
    with mpl.rc_context(STYLE):
        axes = figure.subplots()
        plot.gantt(axes, bars, NAMES[pattern])
        axes.set(xlim=(0, SHOWN_SECONDS + 0.6), xlabel="Virtual time (seconds)", ylabel="")
        axes.set_xticks(np.arange(0, SHOWN_SECONDS + 1, 5))
        axes.set_yticks([0, 1, 2], ["Cluster 0", "Cluster 1", "Cluster 2"])
        if schedule.has_server:
            axes.set_yticks([SERVER_ROW, 0, 1, 2], ["Server", "Cluster 0", "Cluster 1", "Cluster 2"])
            axes.set_ylim(2.6, SERVER_ROW - 0.5)
        turns = [0, 0, 0]
        for event in schedule.events:
            if event.seconds <= SHOWN_SECONDS:
                _draw_merge(axes, event, network)
            for (cluster, began), stale in zip(_work(event), event.staleness, strict=True):
                if event.seconds <= SHOWN_SECONDS:
                    _write(axes, began + seconds[cluster], cluster, stale, dark=turns[cluster] % 2 == 1)
                turns[cluster] += 1
    return figure


def three_clusters() -> Network:
    """Return a network with one client per cluster, which sets its pace; 1 is the neighbour of 0 and of 2."""
    uploads = np.zeros((3, 3))
    return matrix_network(PACES, uploads, np.zeros(3), np.zeros((3, 3)), ((1,), (0, 2), (1,)))


def schedule_of(pattern: Pattern, network: Network) -> Schedule:
    """Return slightly more of a pattern's schedule than is drawn."""
    population = atoll.make_population(atoll.load("digits"), np.arange(30).reshape(3, 10))
    phase = Phase(0, atoll.Clustering(np.arange(3), 3), network)
    return hierarchical_schedule(population, [phase], pattern, rounds=20, intra_rounds=1)[0].until(SHOWN_SECONDS + 10)


def _work(event: Event) -> list[tuple[int, float]]:
    return list(zip(event.active, event.began, strict=True))


def _draw_merge(axes: Axes, event: Event, network: Network) -> None:
    """Draw a line between merging clusters, a star where the server moves, and dots at new starts."""
    started = [cluster for cluster, _ in event.starts]
    rows: list[float] = [*event.active, *started]
    if event.server is not None:
        rows.append(SERVER_ROW)
        axes.plot(event.seconds, SERVER_ROW, marker="*", markersize=11, color=INK, clip_on=False, zorder=5)
    else:
        rows += [near for cluster in started for near in network.neighbours[cluster]]
    axes.plot([event.seconds] * 2, [min(rows), max(rows)], color=INK, linewidth=0.9, zorder=3)
    axes.plot([event.seconds] * len(started), started, "o", color=INK, markersize=4, clip_on=False, zorder=5)


def _write(axes: Axes, end: float, cluster: int, staleness: int, *, dark: bool) -> None:
    """Write the staleness into the end of its bar."""
    place: Any = {"ha": "right", "va": "center", "fontsize": 8, "fontweight": "bold"}
    axes.text(end - 0.4, cluster, str(staleness), color=INK if dark else "white", zorder=4, **place)
