"""FedAvg in PFLlib: its server and its clients, one after the other; PFLLIB names the folder that holds its checkout.

Its clients read their samples from files in every round; here they find them in memory.
"""

import os
import sys
from collections import defaultdict
from typing import Any
from unittest.mock import MagicMock

sys.path.insert(0, os.path.join(os.environ["PFLLIB"], "system"))
sys.modules["utils.dlg"] = MagicMock()  # an attack, not carried out here

import torch  # noqa: E402
from flcore.clients import clientbase  # noqa: E402
from flcore.servers import serverbase  # noqa: E402
from flcore.servers.serveravg import FedAvg  # noqa: E402
from shared import ROUNDS, read_case, work  # noqa: E402
from torch_models import copies, count, datasets, distance, make_model, wait_for  # noqa: E402


class Settings(defaultdict[str, Any]):
    """Its command line's settings as attributes; those that are not given are off."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def settings_of(case: work.Case, module: torch.nn.Module) -> Settings:
    given = {
        "model": module,
        "device": case.device,
        "num_classes": case.classes,
        "global_rounds": ROUNDS,
        "local_epochs": case.epochs,
        "batch_size": case.batch_size,
        "local_learning_rate": case.lr,
        "learning_rate_decay_gamma": 1.0,
        "num_clients": case.clients,
        "join_ratio": 1.0,
        "time_threthold": float("inf"),
        "algorithm": "FedAvg",
    }
    return Settings(int, given)


def main() -> None:
    case = read_case(sys.argv[-1])
    module = make_model(case)
    read = lambda _, client, is_train=True, few_shot=0: datasets(case)[client]  # noqa: E731
    clientbase.read_client_data = serverbase.read_client_data = read
    server = FedAvg(settings_of(case, module), 0)
    first = copies(server.global_model)
    pace = work.WorkRate(count(module), lambda: distance(first, copies(server.global_model)))
    while pace.next_round():  # as its `train` does, without its evaluations
        server.selected_clients = server.select_clients()
        server.send_models()
        for client in server.selected_clients:
            client.train()
        server.receive_models()
        server.aggregate_parameters()
        wait_for(case)


if __name__ == "__main__":
    main()
