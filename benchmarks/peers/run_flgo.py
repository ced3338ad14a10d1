"""FLGo: its asynchronous server, or edge servers below its hierarchical one. Called with which of the two, and a case.

A round is that of `make_executor_round` in `bench.contenders` when hierarchical. Asynchronous, a case's clusters
are clients, of the same speed but begun one after the other; a round is as many merges as they have cohorts to train.
"""

import json
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import flgo
import torch
from flgo.algorithm import fedasync, hierarchical
from flgo.algorithm.fedbase import BasicClient
from flgo.benchmark.base import BasicTaskPipe
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator
from flgo.simulator.base import BasicSimulator
from flgo.utils.fmodule import FModule
from shared import ROUNDS, read_case, work
from torch import Tensor
from torch_models import MODELS, copies, count, datasets, distance

sys.argv, (KIND, CASE) = sys.argv[:1], sys.argv[1:]  # it would read the rest as options of its own
case = read_case(CASE)
pace: work.WorkRate


class Module(FModule):
    """The case's model, which its averages make anew."""

    def __init__(self) -> None:
        super().__init__()
        self.body = MODELS[case.model]()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.body(inputs)
        return outputs


class Model:
    """Gives all servers the same model."""

    @staticmethod
    def init_global_module(party: Any) -> None:
        if isinstance(party, (AsynchronousServer, Server, hierarchical.EdgeServer)):
            torch.manual_seed(0)
            party.model = Module()


class TaskPipe(BasicTaskPipe):
    """Gives each client its samples; nobody evaluates."""

    def __init__(self, task_path: str) -> None:
        names = [f"client{k}" for members in case.members for k in members]
        groups = {f"client{k}": j for j, members in enumerate(case.members) for k in members}
        self.feddata: dict[str, Any] = {
            "client_names": names,
            "client_group": groups,
            "num_edge_servers": case.clusters,
        }

    def load_data(self, running_time_option: Any) -> dict[str, Any]:
        return {name: {"train": data} for name, data in zip(self.feddata["client_names"], datasets(case), strict=True)}


class OneByOne(BasicSimulator):
    """Everyone takes as long, and in each unit of time one client arrives: it is sent a model in the next one."""

    def initialize(self, *arguments: Any, **named: Any) -> None:
        self.waits = {client: place for place, client in enumerate(self.clients)}

    def update_client_responsiveness(self, client_ids: list[int], *arguments: Any, **named: Any) -> None:
        self.set_variable(client_ids, "latency", [self.waits[client] for client in client_ids])
        self.waits |= dict.fromkeys(client_ids, case.clusters - 1)


class AsynchronousServer(fedasync.Server):
    """FedAsync with a constant share of each client, ``w <- (1 - alpha) w + alpha w_k``."""

    merges = 0

    def package_handler(self, received_packages: dict[str, Any]) -> bool:
        merged = bool(super().package_handler(received_packages))
        self.merges += len(received_packages["__cid"])
        if self.merges >= case.clusters * case.cohorts:
            self.merges -= case.clusters * case.cohorts
            self.going = pace.next_round()
        return merged

    def _if_exit(self) -> bool:
        return not getattr(self, "going", True)


class Server(hierarchical.Server):
    """Averages the edge servers' models, a round whenever one is asked for."""

    def iterate(self) -> Any:
        updated = super().iterate()
        if not pace.next_round():
            sys.exit()
        return updated


def main() -> None:
    global pace
    asynchronous = KIND == "asynchronous"
    core = sys.modules["task.core"] = ModuleType("task.core")  # where it looks for these two
    core.__dict__.update(TaskPipe=TaskPipe, TaskCalculator=GeneralCalculator)
    option: dict[str, Any] = {
        "sample": "full_available" if asynchronous else "full",
        "aggregate": "uniform",
        "num_rounds": ROUNDS,
        "num_edge_rounds": case.cohorts,
        "num_steps": case.steps,
        "batch_size": case.batch_size,
        "learning_rate": case.lr,
        "proportion": 1.0,
        "train_holdout": 0.0,
        "eval_interval": -1,
        "log_level": "ERROR",
        "no_log_console": True,
        "no_tqdm": True,
    }
    if asynchronous:
        option["algo_para"] = [1 / case.clusters, 0.0, "constant"]
        algorithm = Namespace(__name__=KIND, Client=BasicClient, Server=AsynchronousServer)
    else:
        algorithm = Namespace(__name__=KIND, Client=BasicClient, Server=Server, EdgeServer=hierarchical.EdgeServer)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "info").write_text(json.dumps({"benchmark": "task"}), encoding="utf-8")
        server = flgo.init(
            *(folder, algorithm, option, Model),
            Simulator=OneByOne,
            scene="horizontal" if asynchronous else "hierarchical",
        )
        first = copies(server.model)
        pace = work.WorkRate(count(server.model), lambda: distance(first, copies(server.model)))
        pace.next_round()
        server.run()


if __name__ == "__main__":
    main()
