"""Measure how many events per second Atoll, FLGo and Plato train, in turn with the plain loop.

Run:  python benchmarks/events.py --envs DIR [--only TEXT] [--rounds 5]

An asynchronous event is one client's work and its merge, ``w <- (1 - 1/10) w + w_k / 10``: 10 clients of the same
speed, each of which starts again from the model it was merged into. A hierarchical event is the work of all six edge
servers, several averages over six clients each, and their mean. FLGo and Plato (asynchronous only) are installed below
--envs. Nothing is evaluated.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench import Case, Contender, RaceResult, own_contenders, race
from bench.contenders import EXECUTORS, MATRIX_PRODUCT, PLAIN, Round, make_module, make_plain_client, make_trainer
from bench.work import WorkRate
from rich.console import Console
from rich.table import Table
from speed import TORCH, Peer, make_environment, peer_contender
from torch import nn

from atoll import Clustering, LocalRule, Population, init, train
from atoll.aggregation.reductions import update_norm
from atoll.engine.method import Method
from atoll.local.models import Model
from atoll.local.weights import read_model
from atoll.methods.papers.hierarchical import hierarchical
from atoll.network.network import Network
from atoll.support.process import keep_freed_memory

FLGO = Peer("FLGo", ((TORCH, "flgo==0.4.4"),), "run_flgo.py")
# Newer versions of Lightly have dropped a loss that Plato names.
PLATO = Peer(
    "Plato", ((TORCH, "lightly==1.5.22", "plato-learn==1.4.3"),), "run_plato.py", pythons=("python3.13", "python3.14")
)
PEERS = {"asynchronous": (FLGO, PLATO), "hierarchical": (FLGO,)}
OWN = (PLAIN, "serial", "cores")
EVENTS = 20_000  # more than are ever asked for
CASES = {
    "asynchronous": [
        Case("mlp", 1, clusters=10, cohorts=5),
        Case("mlp", 1, steps=1, clusters=10, cohorts=20),
        Case("cnn", 1, steps=5, clusters=10, cohorts=2),
    ],
    "hierarchical": [Case("mlp", 6, steps=5, clusters=6, cohorts=5), Case("cnn", 6, steps=5, clusters=6, cohorts=2)],
}


def events_of(kind: str, case: Case) -> int:
    """Return the events of a round."""
    return case.clusters * case.cohorts if kind == "asynchronous" else 1


def contenders_for(kind: str, case: Case) -> list[Contender]:
    """Return Atoll's own and the matrix product; what trains asynchronously is this script."""
    own = [each for each in own_contenders(case) if each.name in (*OWN, MATRIX_PRODUCT)]
    if kind == "hierarchical":
        return own
    command = sys.executable, str(Path(__file__).resolve()), "--serve"
    return [each if each.name == MATRIX_PRODUCT else replace(each, command=(*command, each.name)) for each in own]


def serve(name: str, case: Case) -> None:
    """Train a round of asynchronous events whenever told to, until there are no more."""
    module = make_module(case)
    first = model = read_model(module)
    train_round = make_plain_events(case, module) if name == PLAIN else make_events(name, case, module)
    pace = WorkRate(sum(tensor.numel() for tensor in first.values()), lambda: update_norm(model, first))
    while pace.next_round():
        model = train_round(model)


def make_plain_events(case: Case, module: nn.Module) -> Round:
    """Return the events as a user would write them in PyTorch."""
    train_client = make_plain_client(case, module)
    share = 1 / case.clusters
    starts = [read_model(module)] * case.clusters

    def train_round(start: Model) -> Model:
        server = start
        for client in [*range(case.clusters)] * case.cohorts:
            trained = train_client(client, starts[client])
            server = {key: (1 - share) * tensor + share * trained[key] for key, tensor in server.items()}
            starts[client] = server
        return server

    return train_round


def make_events(name: str, case: Case, module: nn.Module) -> Round:
    """Return the events as a run trains them."""
    keep_freed_memory()
    trainer = make_trainer(case, module)
    method = one_by_one(case, trainer.population, trainer.rule)
    steps = train(method, EXECUTORS[name](trainer), init(method, read_model(module)))

    def train_round(start: Model) -> Model:
        for _ in range(events_of("asynchronous", case)):
            step = next(steps)
        assert step.state.server is not None
        return step.state.server

    return train_round


def one_by_one(case: Case, population: Population, rule: LocalRule) -> Method:
    """Return CenAsy with as many clusters of one client each, all of the same speed."""
    count = case.clusters
    nothing = np.zeros((count, count))
    network = Network(np.ones(count), nothing, nothing[0], nothing, ((),) * count)
    alone = Clustering(np.arange(count), count)
    return hierarchical(population, alone, network, rule, EVENTS * case.steps, "cenasy", intra_rounds=1)


def show(title: str, events: int, results: Sequence[RaceResult]) -> Table:
    table = Table("", "events a second", "times the plain loop's speed", "peak memory", title=title, box=None)
    for each in results:
        if each.failure:
            table.add_row(each.contender, f"skipped: {each.failure}")
        elif each.contender != MATRIX_PRODUCT:
            rate = events / statistics.median(each.seconds)
            table.add_row(
                each.contender, f"{rate:.3g}", f"{each.speed:.2f}", f"{(each.memory_bytes or 0) / 1e6:.0f} MB"
            )
    return table


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Case(**json.loads(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=Path, required=True, help="folder of their virtual environments")
    parser.add_argument(
        "--only", default="", help="only cases with this in their name, such as 'mlp' or 'hierarchical'"
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each contender")
    given = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    reasons = {peer.name: make_environment(peer, given.envs) for peer in PEERS["asynchronous"]}
    for kind, cases in CASES.items():
        able = [peer_contender(peer, given.envs) for peer in PEERS[kind] if not reasons[peer.name]]
        theirs = [replace(each, command=(*each.command, kind)) for each in able]
        for case in cases:
            title = f"{kind}: {case.model}, {case.clusters} x {case.clients} clients, {case.steps} steps"
            if given.only not in title:
                continue
            results = race(case, [*contenders_for(kind, case), *theirs], given.rounds)
            results += [
                RaceResult(title, peer.name, failure=why) for peer in PEERS[kind] if (why := reasons[peer.name])
            ]
            console.print(show(title, events_of(kind, case), results))


if __name__ == "__main__":
    main()
