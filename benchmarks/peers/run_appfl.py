"""FedAvg in APPFL's simulation: its server and client agents in one process, clients one after the other."""

import sys
import tempfile
from typing import Any
from unittest.mock import MagicMock

# What it imports for images that are not trained on here asks for torchvision, which has no build for every PyTorch.
sys.modules["torchvision"] = sys.modules["piq"] = MagicMock()

import torch  # noqa: E402
import torch_models  # noqa: E402
from appfl.agent.sim_client import SimClientAgent  # noqa: E402
from appfl.agent.sim_server import SimServerAgent  # noqa: E402
from shared import ROUNDS, read_case, work  # noqa: E402
from torch_models import copies, count, datasets, distance  # noqa: E402


def accuracy(targets: Any, outputs: Any) -> float:
    """Return the accuracy, without which its trainer does not train."""
    return float((outputs.argmax(axis=1) == targets.reshape(-1)).mean())


def settings_of(case: work.Case, folder: str) -> dict[str, Any]:
    """Return one configuration for server and clients, as its simulator takes it."""
    return {
        "model_configs": {"model_path": torch_models.__file__, "model_name": case.model},
        "algorithm_configs": {
            "num_global_epochs": ROUNDS,
            "scheduler": "SyncScheduler",
            "scheduler_kwargs": {"num_clients": case.clients, "num_clients_per_round": case.clients},
            "aggregator": "FedAvgAggregator",
            "aggregator_kwargs": {"client_weights_mode": "equal"},
            "trainer": "VanillaTrainer",
            "trainer_kwargs": {
                "mode": "epoch",
                "num_local_epochs": 1,
                "optim": "SGD",
                "optim_args": {"lr": case.lr},
                "loss_fn": "CrossEntropyLoss",
                "metric_path": __file__,
                "metric_name": "accuracy",
                "train_batch_size": case.batch_size,
                "train_data_shuffle": True,
            },
        },
        "log_configs": {"logging_output_dirname": folder},
    }


def main() -> None:
    case = read_case(sys.argv[-1])
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(case, folder)
        server = SimServerAgent(settings, num_clients=case.clients)
        clients = [SimClientAgent(settings, str(k), data) for k, data in enumerate(datasets(case))]
        for agent in (server, *clients):
            # They would collect garbage at each exchange; the simulation's configuration does not reach this switch.
            agent.optimize_memory = False
        first = copies(server.model)
        pace = work.WorkRate(count(server.model), lambda: distance(first, copies(server.model)))
        while pace.next_round():  # as its synchronous driver does
            model = server.get_parameters(serial_run=True)
            futures = []
            for client in clients:
                client.load_parameters(model)
                client.train()
                sent = client.get_parameters()
                update, told = sent if isinstance(sent, tuple) else (sent, {})
                futures.append(server.global_update(client.get_id(), update, blocking=False, **told))
            for future in futures:
                future.result()


if __name__ == "__main__":
    main()
