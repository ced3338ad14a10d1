"""`atoll fleet up`, `server` and `node`: run an experiment on real machines."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.common import err, experiment_words, only_one, out, read_experiments, refuse_both, resumable
from atoll.cli.fleet_commands import ConfigDir, fleet_app
from atoll.cli.fleet_metrics import serving_metrics
from atoll.cli.interrupts import SIGNALS, Interrupts
from atoll.cli.options import (
    ExperimentArg,
    OnlyOption,
    OverwriteOption,
    ResumeOption,
    RunsOption,
    ScaleOption,
    SetOption,
)
from atoll.cli.teller import Teller
from atoll.fleet.agreed.waiting import EVERY_SECONDS, passed, waiting
from atoll.fleet.folder.certificates import require_flower
from atoll.support.errors import InputError
from atoll.support.files import make_folder
from atoll.support.lock import claimed
from atoll.support.process import end_with_input, own_signals

if TYPE_CHECKING:
    from atoll.experiment.experiment import Experiment
    from atoll.fleet.agreed.transport import Fleet
    from atoll.fleet.folder.configuration import NodeConfiguration
    from atoll.fleet.node.node import Reporting
    from atoll.fleet.node.sites import Sites
    from atoll.fleet.node.store import FolderStore
    from atoll.settings.validation import Settings

_tell = Teller(err)


@fleet_app.command("up")
def up(
    experiment: ExperimentArg,
    nodes: Annotated[int, typer.Option(min=1, max=64, help="How many node processes share the clients.")] = 4,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    folder: RunsOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Run an experiment on a fleet on this machine: a server and nodes as processes, with TLS and keys.

    Example: atoll fleet up quickstart --only FedAvg --nodes 4 --set data.clients=4 --set rounds=2 --out runs/fleet
    """
    require_flower()
    with _starting():
        from atoll.fleet.flower.local import LocalFleet, own_place

        found = _one_experiment(experiment, changes, scale, only)
        clients = len(found.population)
    if nodes > clients:
        raise InputError(f"--nodes {nodes}: there are only data.clients = {clients} clients to share")
    if found.settings.secure.sums and nodes < (least := found.settings.secure.least_nodes):
        raise InputError(f"--nodes {nodes}: a secure sum needs clients on secure.least_nodes = {least} nodes")
    name = str(Path(experiment).absolute()) if Path(experiment).is_file() else experiment
    words = experiment_words(name, scale, changes, only)
    with own_place() as place:
        fleet = LocalFleet(place, found, nodes, words, _tell)
        _carry_out(found, folder or Path("runs") / found.settings.name, resume, overwrite, fleet)


@fleet_app.command("server")
def server(
    experiment: ExperimentArg,
    config: ConfigDir,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    folder: RunsOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    metrics: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve Prometheus metrics here; the host is 127.0.0.1.")
    ] = None,
) -> None:
    """Run an experiment on the nodes of a fleet; training starts once they are online.

    Example: atoll fleet server digits.toml --config fleet --out runs/fleet
    """
    require_flower()
    with _starting():
        from atoll.fleet.flower.flower_fleet import FlowerFleet
        from atoll.fleet.folder.configuration import read_fleet

        found, fleet = _one_experiment(experiment, changes, scale, only), FlowerFleet(read_fleet(config), _tell)
    place = folder or Path("runs") / found.settings.name
    with serving_metrics(metrics, fleet.configuration, place):
        _carry_out(found, place, resume, overwrite, fleet)


@fleet_app.command("node")
def node(
    experiment: ExperimentArg,
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The node's node.toml.")],
    data: Annotated[Path, typer.Option(metavar="FOLDER", help="The client's samples: inputs.npy and targets.npy.")],
    client: Annotated[
        list[int] | None, typer.Option(min=0, help="Which client of the experiment it is; by default as FILE says.")
    ] = None,
    changes: SetOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    class_counts: Annotated[
        bool, typer.Option("--class-counts", help="Tell the server the samples per class.")
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="With --class-counts: use randomised response with this epsilon.")
    ] = None,
    utc_offset: Annotated[float | None, typer.Option(help="Tell the server this node's UTC offset, in hours.")] = None,
    slot: Annotated[
        list[int] | None, typer.Option(min=0, help="Tell the server a slot of the day in which it trains. Repeatable.")
    ] = None,
    attached: Annotated[bool, typer.Option("--attached", hidden=True)] = False,
) -> None:
    """Run a node: train on this machine's data whenever the server asks, until stopped.

    Example: atoll fleet node digits.toml --config node-3/node.toml --data my-data
    """
    require_flower()
    if attached:
        threading.Thread(target=end_with_input, daemon=True).start()
    with _starting():
        from atoll.fleet.flower.flower_node import serve
        from atoll.fleet.folder.configuration import read_node
        from atoll.fleet.node.handlers import answer
        from atoll.fleet.node.node import Reporting
        from atoll.fleet.node.store import FolderStore

        found = read_node(config)
        if client and set(client) != set(found.clients):
            told = ", ".join(map(str, found.clients))
            raise InputError(f"--client {client[0]}: this node's key is registered for client {told}; see {config}")
        runs = [each.settings for each in read_experiments(experiment, scale, _on_a_fleet(changes), only)]
        if (last := max(found.clients)) >= (clients := runs[0].data.clients):
            raise InputError(f"{config}: clients has {last}; must be from 0 to data.clients - 1 = {clients - 1}")
        slots = None if slot is None else tuple(slot)
        reporting = Reporting(class_counts, epsilon, utc_offset, slots, found.reports)
        make_folder(found.folder / "state", 0o700)
        store = FolderStore(found.folder / "state" / "store")
        sites = _open_sites(found, runs, data, store, reporting)
    with _ended_by_signals():
        serve(found, lambda task, payload: answer(sites, store, task, payload, _tell), _tell)


def _open_sites(
    found: "NodeConfiguration", runs: "Sequence[Settings]", data: Path, store: "FolderStore", reporting: "Reporting"
) -> "Sites":
    """Return a node's side of the experiment's runs."""
    from atoll.fleet.folder.peers import read_identity
    from atoll.fleet.node.sites import Sites

    own = found.clients[0] if len(found.clients) == 1 else found.clients
    is_summed = any(run.secure.sums for run in runs)
    identity = read_identity(found.name, found.key, found.peers) if is_summed else None
    return Sites(runs, data, own, store, reporting, found.budget, found.allow, identity)


def _starting() -> AbstractContextManager[None]:
    """Report now and then that packages, data and models are being loaded, which takes long on a busy machine."""
    began = time.monotonic()
    return waiting(_tell, lambda: f"starting: loading packages, data and models for {passed(began)}")


def _one_experiment(name: str, changes: Sequence[str] | None, scale: str | None, only: str | None) -> "Experiment":
    """Return the chosen run, with the fleet as its executor."""
    return only_one("atoll fleet", read_experiments(name, scale, _on_a_fleet(changes), only))


def _on_a_fleet(changes: Sequence[str] | None) -> list[str]:
    return [*(changes or ()), "run.executor=fleet"]


def _carry_out(experiment: "Experiment", place: Path, resume: bool, overwrite: bool, fleet: Any) -> None:
    """Carry out a run until it ends or is interrupted, with a line for each row of metrics."""
    from atoll.api import check_runs
    from atoll.runs.run_folders import prepare_folders

    refuse_both(resume, overwrite)
    with _starting():
        check_runs([experiment], trained=False)
    prepare_folders([""], place, resume, overwrite)
    with claimed(place):
        pass  # what cannot be made, or written to, is told before anything starts
    with Interrupts() as interrupts, suppress(KeyboardInterrupt), resumable(), fleet:
        _watch(experiment, place, resume, overwrite, fleet, interrupts)
    if interrupts.number is not None:
        err.print("interrupted; to resume, give the same command with --resume")
        raise typer.Exit(interrupts.exit_code)
    out.print(f"Results: {place}")


def _watch(
    experiment: "Experiment", place: Path, resume: bool, overwrite: bool, fleet: "Fleet", interrupts: Interrupts
) -> None:
    from atoll.runs.run import run_events
    from atoll.trackers import tracked

    live = run_events(experiment, place, resume, overwrite, fleet=fleet, tell=_tell)
    last = time.monotonic()

    def at_work() -> str:
        is_long = time.monotonic() - last >= EVERY_SECONDS
        return f"no event for {passed(last)}: computing here, or no node is online" if is_long else ""

    with closing(tracked(live, experiment.settings, place, resume)) as steps, waiting(_tell, at_work):
        for progress in steps:
            last = time.monotonic()
            for warning in progress.warnings:
                _tell(f"warning: {warning}")
            if (row := progress.row) is not None:
                accuracy = "" if row["test_accuracy"] is None else f", accuracy {row['test_accuracy']:.3f}"
                _tell(f"event {progress.events_done} of {progress.events}: loss {row['train_loss']:.4f}{accuracy}")
            interrupts.is_patient = True
            if interrupts.ends(progress):
                break


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end a node as Ctrl-C does: at once, signing off from the server."""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)  # no Exception, or it would end the task at hand alone

    with own_signals():
        for number in SIGNALS:
            signal.signal(number, stop)
        yield
