"""The command line: run, recipes, cluster, schedule, report, data."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from atoll import config, datasets, report
from atoll.clustering.describe import class_shares, describe
from atoll.errors import AtollError, InputError
from atoll.experiment import Experiment, import_from
from atoll.plugins import unknown
from atoll.record import to_json, write_atomically
from atoll.runner import carry_out, run_folders
from atoll.schedules import Event

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    help="Clustered and hierarchical federated learning.",
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, fetch and inspect data sets.")
recipes_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None, help="List the built-in experiments.")
app.add_typer(data_app, name="data")
app.add_typer(recipes_app, name="recipes")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

ExperimentArg = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A .toml file, or a recipe's name.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated.")
]
ScaleOption = Annotated[str | None, typer.Option(help="One of the experiment's scales, such as small or paper.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PlotOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it into FILE.png and FILE.svg.")]


@app.command()
def run(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the results; else runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment.

    Example: atoll run quickstart --set method.name=fedavg --out runs/fedavg
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite: give one of them, not both")
    runs = _experiments(experiment, scale, changes)
    for each in runs:
        each.check()
    parent = folder or Path("runs") / runs[0].settings.name
    folders = run_folders(runs, parent)
    try:
        for each, place in zip(runs, folders, strict=True):
            _run_one(each, place, resume, overwrite, quiet=as_json)
    except KeyboardInterrupt:
        err.print(f"interrupted; go on with the same command and --resume --out {parent}")
        raise typer.Exit(130) from None
    results = report.find_runs(folders)
    if as_json:
        _print_json(report.as_dicts(report.rounds_to_target(results)))
        return
    out.print(report.as_rich(report.rounds_to_target(results)))
    if len(runs) > 1:
        write_atomically(parent / "experiment.json", to_json({"runs": [place.name for place in folders]}))
        report.write_report(results, parent / "report")
        out.print(f"Figures and table: {parent / 'report'}")
    out.print(f"Results: {parent}")


def _run_one(experiment: Experiment, place: Path, resume: bool, overwrite: bool, quiet: bool) -> None:
    title = " ".join(filter(None, (experiment.settings.panel, experiment.settings.label or experiment.settings.name)))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[latest]}"),
    )
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(title, total=None, latest="")
        for progress in carry_out(experiment, place, resume, overwrite):
            for warning in progress.warnings:
                err.print(f"warning: {warning}")
            bar.update(task, completed=progress.events_done, total=progress.events)
            if progress.row:
                bar.update(task, latest=_latest(progress.row))


def _latest(row: dict[str, Any]) -> str:
    accuracy = "" if row["test_accuracy"] is None else f"  accuracy {row['test_accuracy']:.3f}"
    return f"loss {row['train_loss']:.4f}{accuracy}  virtual {report.format_seconds(row['virtual_time'])}"


@recipes_app.callback()
def recipes(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the built-in experiments, or print one with `show`.

    Example: atoll recipes show quickstart
    """
    if context.invoked_subcommand:
        return
    rows = []
    for name in config.recipe_names():
        table = config.read_experiment(name)
        scales = ["paper", *table.get("scales", {})] if "scales" in table else []
        rows.append({"name": name, "description": table.get("description", ""), "scales": scales})
    if as_json:
        _print_json(rows)
        return
    shown = Table("name", "scales", "what it shows", box=None)
    for row in rows:
        shown.add_row(row["name"], ", ".join(row["scales"]), row["description"])
    out.print(shown)


@recipes_app.command("show")
def recipes_show(name: Annotated[str, typer.Argument(help="The recipe's name.")]) -> None:
    """Print a recipe's file, to run as it is or to start your own from.

    Example: atoll recipes show quickstart > mine.toml
    """
    path = config.recipe_path(name)
    if path is None:
        raise InputError(f"recipe {name!r}: {unknown(name, config.recipe_names())}")
    sys.stdout.write(path.read_text(encoding="utf-8"))


@app.command()
def cluster(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Make an experiment's clustering only, and show what it is like.

    Example: atoll cluster quickstart --set clustering.clusters=5 --plot clusters
    """
    shown = []
    runs = _experiments(experiment, scale, changes)
    for each in runs:
        clustering = each.clustering
        profiles = describe(each.population, clustering)
        left_out = clustering.left_out.tolist()
        record = {"label": each.settings.label, "panel": each.settings.panel, "method": each.settings.clustering.method}
        record |= {"membership": clustering.labels.tolist(), "left_out": left_out}
        shown.append(record | {"clusters": [asdict(profile) for profile in profiles]})
        if not as_json:
            title = _title(each)
            table = Table("cluster", "clients", "samples", "EMD", "major class", "UTC hour", title=title, box=None)
            for number, p in enumerate(profiles):
                hour = "" if p.hour is None else f"{p.hour:.2f}"
                major = f"{p.major_class} ({p.major_share:.0%})"
                table.add_row(str(number), str(p.size), str(p.samples), f"{p.emd:.3f}", major, hour)
            out.print(table)
            if left_out:
                err.print(f"warning: {len(left_out)} clients belong to no cluster: {left_out[:10]}")
    if as_json:
        _print_json(shown[0] if len(shown) == 1 else shown)
    if plot:
        first = runs[0]
        shares = class_shares(first.population, first.clustering)
        _save(report.plot_clusters(first.clustering.sizes, shares, _title(first)), plot)


@app.command()
def schedule(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Make an experiment's schedule only: who trains when, what it costs. Nothing is trained.

    Example: atoll schedule quickstart --plot gantt
    """
    shown = []
    runs = _experiments(experiment, scale, changes)
    for each in runs:
        table = each.method.schedule
        size = each.model_bytes
        totals: dict[str, Any] = {
            "label": each.settings.label,
            "panel": each.settings.panel,
            "events": len(table),
            "rounds": table.rounds,
            "virtual_seconds": table.events[-1].seconds,
            "client_updates": sum(event.client_updates for event in table.events),
            "bytes_up": size * sum(event.models_up for event in table.events),
            "bytes_down": size * sum(event.models_down for event in table.events),
            "max_updates_per_client_round": table.max_updates_per_client_round(),
        }
        shown.append(totals | {"rows": [_event_row(event, size) for event in table.events]})
        if not as_json:
            lines = Table(box=None, show_header=False, title=_title(each))
            for key, value in totals.items():
                if value not in ("", None):
                    lines.add_row(key, report.format_seconds(value) if key == "virtual_seconds" else f"{value:,}")
            out.print(lines)
    if as_json:
        _print_json(shown[0] if len(shown) == 1 else shown)
    if plot:
        events = runs[0].method.schedule.events
        bars = [(c, began, e.seconds, e.round) for e in events for c, began in zip(e.active, e.began, strict=True)]
        _save(report.plot_gantt(bars, _title(runs[0])), plot)


def _event_row(event: Event, model_bytes: int) -> dict[str, Any]:
    return {
        "event": event.index,
        "round": event.round,
        "began": list(event.began),
        "seconds": event.seconds,
        "clusters": list(event.active),
        "cohort": event.cohort.tolist(),
        "staleness": list(event.staleness),
        "bytes_up": event.models_up * model_bytes,
        "bytes_down": event.models_down * model_bytes,
    }


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that hold runs.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Where to write; else DIR/report of the first.")] = None,
    target: Annotated[list[float] | None, typer.Option(help="A test accuracy to reach, 0 to 1; repeatable.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: curves against rounds, client updates and virtual time, and rounds to target accuracies.

    Example: atoll report runs/fedcluster runs/fedavg --out runs/report --target 0.9
    """
    runs = report.find_runs(folders)
    for value in target or ():
        if not 0 < value <= 1:
            raise InputError(f"--target {value}: must be greater than 0 and at most 1")
    rows = report.rounds_to_target(runs, target or None)
    place = folder or folders[0] / "report"
    files = report.write_report(runs, place, target or None)
    if as_json:
        _print_json(report.as_dicts(rows))
        return
    out.print(report.as_rich(rows))
    for file in files:
        out.print(str(file))


@data_app.command("list")
def data_list(
    root: Annotated[str | None, typer.Option(help="Data folder; else ATOLL_DATA, else the user's cache.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the data sets and where their files are.

    Example: atoll data list --root ~/data
    """
    places = {name: datasets.find(name, root) for name in datasets.available()}
    if as_json:
        _print_json({name: "built in" if name == "digits" else place and str(place) for name, place in places.items()})
        return
    for name, place in places.items():
        out.print(f"{name:10}", "built in" if name == "digits" else place or f"not here; atoll data fetch {name}")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="The data set's name.")],
    root: Annotated[str | None, typer.Option(help="Data folder; else ATOLL_DATA, else the user's cache.")] = None,
) -> None:
    """Download a data set, checking its checksums, and read it once.

    Example: atoll data fetch mnist
    """
    data = datasets.load(name, root)
    place = datasets.find(name, root) or "built in"
    out.print(f"{name}: {len(data.targets)} training and {len(data.test_targets)} test samples, {place}")


@data_app.command("inspect")
def data_inspect(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Show what the clients of an experiment hold: samples, and label shares per client.

    Example: atoll data inspect quickstart --plot shares
    """
    each = _experiments(experiment, scale, changes)[0]
    population = each.clients
    counts = population.class_counts()
    if as_json:
        _print_json({"clients": len(population), "samples": population.sizes.tolist(), "class_counts": counts.tolist()})
    else:
        sizes = population.sizes
        out.print(
            f"{len(population)} clients, {int(sizes.sum())} samples "
            f"({sizes.min()} to {sizes.max()} a client) from a pool of {len(population.data.targets)}"
        )
        table = Table("client", "samples", *(f"class {c}" for c in range(counts.shape[1])), box=None)
        for client in range(min(len(population), 20)):
            shares = (f"{share:.0%}" for share in counts[client] / sizes[client])
            table.add_row(str(client), str(sizes[client]), *shares)
        out.print(table)
        if len(population) > 20:
            out.print("(the first 20; --json prints all)")
    if plot:
        _save(report.plot_shares(counts, each.settings.name), plot)


def _experiments(name: str, scale: str | None, changes: list[str] | None) -> list[Experiment]:
    import_from(Path(name).parent)
    runs = config.make_runs(config.read_experiment(name), scale, changes or ())
    return [Experiment(settings) for settings in runs]


def _title(experiment: Experiment) -> str:
    s = experiment.settings
    return ", ".join(filter(None, (s.name, s.panel, s.label)))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def _save(figure: Any, path: Path) -> None:
    stem = path.with_suffix("") if path.suffix in (".png", ".svg") else path
    for file in report.save_figure(figure, stem):
        err.print(f"wrote {file}")


@contextmanager
def _errors_told() -> Iterator[None]:
    """Turn Atoll's own errors into one sentence and an exit code."""
    try:
        yield
    except AtollError as error:
        err.print(f"error: {error}", markup=False)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


def main() -> None:
    """Run the command line."""
    with _errors_told():
        app()
