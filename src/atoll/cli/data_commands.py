"""`atoll data`: list, fetch, inspect and split data sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from atoll.cli.common import app, claim_file, err, heading_of, make_app, only_one, out, print_json, read_experiments
from atoll.cli.figure_files import claim_plot, save_plots
from atoll.cli.options import ExperimentArg, JsonOption, OnlyOption, PlotOption, ScaleOption, SetOption, WidthOption
from atoll.support.errors import InputError
from atoll.support.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atoll.data.population import Population
    from atoll.experiment.experiment import Experiment
    from atoll.support.arrays import Ids

_SHOWN = 20  # clients in a table
_CLASSES = 12  # classes in a table
_NAMED = 8  # inputs, or classes, that a line names

RootOption = Annotated[str | None, typer.Option(help="Data folder; by default ATOLL_DATA, or the user's cache.")]

data_app = make_app(invoke_without_command=True)
app.add_typer(data_app, name="data")


@data_app.callback()
def data(context: typer.Context) -> None:
    """List, fetch, inspect and split data sets.

    Example: atoll data list
    """
    if not context.invoked_subcommand:
        out.print(context.get_help())


@data_app.command("list")
def data_list(root: RootOption = None, as_json: JsonOption = False) -> None:
    """List the data sets and where their files are.

    Example: atoll data list --root ~/data
    """
    from atoll.data import datasets

    places: dict[str, str | None] = {}
    for name in datasets.available():
        place = datasets.find(name, root)
        places[name] = "built in" if name in datasets.BUILT_IN else str(place) if place else None
    if as_json:
        print_json(places)
        return
    for name, where in places.items():
        out.print(f"{name:13}", where or f"not here; get it with atoll data fetch {name}")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a data set.")], root: RootOption = None
) -> None:
    """Download a data set, verify its checksums, and read it once.

    Example: atoll data fetch mnist
    """
    from atoll.data import datasets

    _refuse_recipe(name)
    loaded = datasets.load(name, root)
    place = datasets.find(name, root) or "built in"
    out.print(f"{name}: {len(loaded.targets)} training and {len(loaded.test_targets)} test samples, {place}")


def _refuse_recipe(name: str) -> None:
    from atoll.settings.experiment_file import make_runs, read_experiment, recipe_names

    if name in recipe_names():
        used = dict.fromkeys(each.data.dataset for each in make_runs(read_experiment(name)))
        raise InputError(
            f"NAME {name}: is a recipe, not a data set; to get its data: atoll data fetch {' or '.join(used)}"
        )


@data_app.command("inspect")
def data_inspect(
    experiment: ExperimentArg,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
    width: WidthOption = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="FILE", help="Write which client holds what, for data.partition = 'file' (.npz)."
        ),
    ] = None,
) -> None:
    """Show what the clients of an experiment hold: samples and label shares, for each run if runs differ.

    --plot draws the first run: samples, class shares and input features, one column per client.

    Example: atoll data inspect quickstart --plot shares
    """
    runs = read_experiments(experiment, scale, changes, only)
    inches = claim_plot(plot, width, runs)
    if write is not None:
        if write.suffix != ".npz":
            raise InputError(f"--write {write}: must end in .npz")
        only_one("--write", runs)
    claim_file("--write", write)
    held = [each.clients.dealt for each in runs]
    counts = [population.class_counts() for population in held]
    if as_json:
        print_json([_as_dict(*each) for each in zip(runs, held, counts, strict=True)])
    else:
        for alike in _group(counts):
            if len(runs) > 1:
                out.print("; ".join(heading_of(runs[place]) for place in alike))
            _print_shares(held[alike[0]], counts[alike[0]])
    if write is not None:
        from atoll.data.population import partition_as_bytes

        write_atomically(write, partition_as_bytes(held[0], runs[0].clients.test))
        (err if as_json else out).print(str(write))
    save_plots(plot, inches, lambda: [("", _draw(held[0], counts[0], runs[0].settings.name))])


def _draw(population: "Population", counts: "Ids", title: str) -> "Figure":
    from atoll.data.feature_means import feature_means
    from atoll.report.figures.before_training import MAX_CLIENTS, evenly
    from atoll.report.figures.holdings import plot_holdings

    features = feature_means(population, evenly(len(population), MAX_CLIENTS).tolist())
    return plot_holdings(counts, features.values, features.names, title, class_names(population))


def class_names(population: "Population") -> tuple[str, ...]:
    """Return the names of classes, or of groups in a regression; empty if they have none."""
    return population.data.names.get("targets" if population.data.classes else "groups", ())


def _group(counts: "Sequence[Ids]") -> list[list[int]]:
    """Group runs, by position, whose clients hold the same number of samples of each class."""
    groups: dict[bytes, list[int]] = {}
    for place, held in enumerate(counts):
        groups.setdefault(held.tobytes() + str(held.shape).encode(), []).append(place)
    return list(groups.values())


def _as_dict(each: "Experiment", population: "Population", counts: "Ids") -> dict[str, Any]:
    names = {"panel": each.settings.panel, "label": each.settings.label, "clients": len(population)}
    held = {"samples": population.sizes.tolist(), "class_counts": counts.tolist() if population.data.classes else None}
    return names | held | {"task": _task(population), "inputs": _inputs(population), "names": _client_names(population)}


def _task(population: "Population") -> str:
    """Return what is predicted, in words."""
    data = population.data
    named = ", ".join(data.names.get("targets", ())[:_NAMED]) + (", ..." if data.outputs > _NAMED else "")
    if data.classes:
        return f"one of {data.classes} classes" + (f" ({named})" if "targets" in data.names else "")
    if data.loss == "next-token":
        return "each next token"
    kind = "labels that each apply or not" if data.loss == "binary-cross-entropy" else "numbers"
    return f"{data.outputs} {kind if data.outputs > 1 else kind.rstrip('s')}" + (f" ({named})" if named else "")


def _inputs(population: "Population") -> str:
    """Return what is predicted from, in words."""
    data = population.data
    named = data.names.get("inputs", ())
    shape = " x ".join(map(str, data.shape))
    return f"{shape} ({', '.join(named[:_NAMED])}{', ...' if len(named) > _NAMED else ''})" if named else shape


def _client_names(population: "Population") -> list[str]:
    """Return the clients' names: those of the data where each holds one owner's samples, else their numbers."""
    data, numbers = population.data, list(map(str, range(len(population))))
    if data.owners is None or "owners" not in data.names or len(data.owners) != len(data):
        return numbers
    own = [set(data.owners[population.samples(client)].tolist()) for client in range(len(population))]
    return [data.names["owners"][min(each)] if len(each) == 1 else numbers[k] for k, each in enumerate(own)]


def _print_shares(population: "Population", counts: "Ids") -> None:
    sizes = population.sizes
    out.print(
        f"{len(population)} clients, {int(sizes.sum())} samples "
        f"({sizes.min()} to {sizes.max()} per client) from a pool of {len(population.data)}"
    )
    out.print(f"predicted: {_task(population)}; from inputs of {_inputs(population)}")
    names = (class_names(population) or tuple(map(str, range(counts.shape[1]))))[:_CLASSES]
    clients = _client_names(population)
    names, title = (names, "share of each class") if population.data.classes else ((), None)
    table = Table("client", "samples", *names, title=title, box=None)
    for client in range(min(len(population), _SHOWN)):
        shares = (f"{share:.0%}" for share in (counts[client] / sizes[client])[: len(names)])
        table.add_row(clients[client], str(sizes[client]), *shares)
    out.print(table)
    if len(population) > _SHOWN:
        out.print(f"(the first {_SHOWN}; --json prints all)")
    if population.data.classes > _CLASSES:
        out.print(f"(the first {_CLASSES} of {counts.shape[1]} classes; --json prints all)")


@data_app.command("split")
def data_split(
    experiment: ExperimentArg,
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")],
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
) -> None:
    """Write the data of each client to a folder of its own, for atoll fleet node.

    Example: atoll data split digits.toml --out shares
    """
    from atoll.fleet.node.shards import write_shards
    from atoll.runs.run_files import entries_of

    found = only_one("atoll data split", read_experiments(experiment, scale, changes, only))
    if entries_of(folder):
        raise InputError(f"--out {folder}: is not an empty folder, and nothing is overwritten; give another one")
    for client, place in enumerate(write_shards(found, folder)):
        out.print(f"{place}: {found.population.sizes[client]} samples")
