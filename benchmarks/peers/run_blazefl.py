"""FedAvg in BlazeFL: its server handler, and clients in as many threads as there are cores."""

import os
import sys
from typing import Any

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    # Triton, which PyTorch imports with the first optimiser where it finds it, would bring the global lock back.
    sys.modules["triton"] = None  # type: ignore[assignment]

import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from shared import ROUNDS, read_case, work
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_models import copies, count, datasets, distance, make_model, wait_for


class Models:
    """Makes a model, each time a new one, as its threads ask for it."""

    def __init__(self, case: work.Case) -> None:
        self.case = case

    def select_model(self, model_name: str) -> nn.Module:
        return make_model(self.case)


class Clients:
    """Each client's samples, shuffled into batches by the generator that its thread brings."""

    def __init__(self, case: work.Case) -> None:
        self.datasets = datasets(case)

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator
    ) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.datasets[cid], batch_size, shuffle=True, generator=generator)


def main() -> None:
    case = read_case(sys.argv[-1])
    torch.manual_seed(0)
    cores = len(os.sched_getaffinity(0))
    shared: dict[str, Any] = {
        "model_selector": Models(case),
        "model_name": case.model,
        "dataset": Clients(case),
        "num_clients": case.clients,
        "device": case.device,
        "batch_size": case.batch_size,
        "seed": 0,
    }
    handler = FedAvgBaseServerHandler(global_round=ROUNDS, sample_ratio=1.0, **shared)
    trainer = FedAvgThreadPoolClientTrainer(epochs=case.epochs, lr=case.lr, num_parallels=cores, **shared)
    first = copies(handler.model)
    pace = work.WorkRate(count(handler.model), lambda: distance(first, copies(handler.model)))
    while pace.next_round():  # as the loop of its quickstart does
        sampled = handler.sample_clients()
        trainer.local_process(handler.downlink_package(), sampled)
        for package in trainer.uplink_package():
            handler.load(package)
        wait_for(case)


if __name__ == "__main__":
    main()
