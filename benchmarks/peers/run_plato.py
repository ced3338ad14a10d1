"""Asynchronous events in Plato: its server and a process for each client, which talk over a socket on this machine.

Called with "asynchronous" and a case, whose clusters are clients. Its simulated clock decides who is merged next, by
how long training took; a round is as many merges as in `run_flgo.py`. Its processes load this file too.
"""

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from shared import ROUNDS, read_case, work
from torch import nn
from torch.utils.data import ConcatDataset
from torch_models import MODELS, copies, datasets, distance

if len(sys.argv) == 3 and sys.argv[1] == "asynchronous":  # its processes find the case here, and read the settings
    os.environ["CASE"] = sys.argv[2]
    os.environ["FOLDER"] = tempfile.mkdtemp()
    sys.argv[1:] = ["-c", f"{os.environ['FOLDER']}/settings.toml", "-b", os.environ["FOLDER"], "--cpu"]
case = read_case(os.environ["CASE"])


def settings(port: int) -> str:
    return f"""
[clients]
type = "simple"
total_clients = {case.clusters}
per_round = {case.clusters}
do_test = false

[server]
address = "127.0.0.1"
port = {port}
do_test = false
synchronous = false
simulate_wall_time = true
minimum_clients_aggregated = 1
staleness_bound = {ROUNDS}

[data]
datasource = "own"
sampler = "iid"
partition_size = {case.samples}
random_seed = 1

[trainer]
type = "basic"
rounds = {ROUNDS}
epochs = 1
batch_size = {case.batch_size}
optimizer = "SGD"
model_name = "{case.model}"

[algorithm]
type = "fedavg"

[parameters.optimizer]
lr = {case.lr}
momentum = 0.0
weight_decay = 0.0
"""


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


if __name__ == "__main__":
    Path(os.environ["FOLDER"], "settings.toml").write_text(settings(free_port()), encoding="utf-8")

from plato.clients import simple  # noqa: E402
from plato.datasources import base  # noqa: E402
from plato.servers import fedavg  # noqa: E402
from plato.servers.strategies.base import AggregationStrategy  # noqa: E402


class Source(base.DataSource):
    """All clients' samples, of which each takes a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.trainset: Any = ConcatDataset(datasets(case))
        self.testset: Any = self.trainset

    def num_train_examples(self) -> int:
        return len(self.trainset)

    def num_test_examples(self) -> int:
        return len(self.testset)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return MODELS[case.model]()


class Mixing(AggregationStrategy):
    """``w <- (1 - share) w + share w_k``, as FedAsync mixes."""

    async def aggregate_deltas(self, updates: Any, deltas_received: Any, context: Any) -> Any:
        raise NotImplementedError

    async def aggregate_weights(self, updates: Any, baseline_weights: Any, weights_received: Any, context: Any) -> Any:
        share, weights = 1 / case.clusters, baseline_weights
        for received in weights_received:
            weights = {name: (1 - share) * tensor + share * received[name] for name, tensor in weights.items()}
        return weights


class Server(fedavg.Server):
    """Merges, and waits when a round's events are done."""

    pace: work.WorkRate
    merges = 0

    async def wrap_up(self) -> None:
        self.merges += len(self.updates)
        if self.merges >= case.clusters * case.cohorts:
            self.merges -= case.clusters * case.cohorts
            if not self.pace.next_round():
                os._exit(0)  # the race ends its processes
        await super().wrap_up()


def main() -> None:
    server = Server(model=make_model, datasource=Source, aggregation_strategy=Mixing())
    first = copies(make_model())
    server.pace = work.WorkRate(
        sum(tensor.numel() for tensor in first), lambda: distance(first, copies(server.require_trainer().model))
    )
    server.pace.next_round()
    server.run(simple.Client(model=make_model, datasource=Source))


if __name__ == "__main__":
    main()
