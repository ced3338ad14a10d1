"""Compare StoCFL with its authors' code, in single precision on full batches.

Run:  python benchmarks/stocfl_agreement.py DIR

DIR is a clone of github.com/dunzeng/StoCFL (bd6d031), which is only read. Of FedLab, on which it is built, only four
functions are used, which are written here. Prints the largest difference of any parameter of any client's cluster, or
of the global model, after any of ten rounds of six clients, all of them in each round: as the code is, and with the
global model trained by each client from the one that the round began with.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from soft_agreement import CLIENTS, LR, ROUNDS, STEPS, furthest, make_clients, network, vector
from torch import Tensor, nn

from atoll import LocalRule, Method, Population, Serial, chain_of, init, read_model, stocfl, train
from atoll.local.rule import sgd

TAU, PENALTY = 0.3, 0.4


def in_atoll(method: Method, module: nn.Module, population: Population) -> Iterator[list[Tensor]]:
    """Yield each client's cluster model, and the global one, after each round."""
    executor = Serial(chain_of(method, deepcopy(module), population, 0).for_executors())
    for step in train(method, executor, init(method, read_model(module))):
        models, labels = step.state.starts, step.state.labels
        if not step.event.regroups and labels is not None:
            own = [{name: each for name, each in model.items() if "@" not in name} for model in models]
            common = {name: each for name, each in models[0].items() if "@" in name}
            yield [*(vector(own[label]) for label in labels.tolist()), vector(common)]


class Maintainer:
    """What FedLab's `ModelMaintainer` and `SerialTrainer` are for this code."""

    def __init__(self, model: nn.Module, *_: Any) -> None:
        self._model, self.cuda = model, False

    @property
    def model_parameters(self) -> Tensor:
        return torch.cat([each.detach().flatten() for each in self._model.parameters()])


def deserialize(model: nn.Module, parameters: Tensor) -> None:
    nn.utils.vector_to_parameters(parameters.clone(), model.parameters())


def of_authors(folder: Path, population: Population, module: nn.Module, put_right: bool) -> Iterator[list[Tensor]]:
    """Yield the same of the authors' server and clients."""
    fedlab = MagicMock()
    fedlab.SerialTrainer = fedlab.ModelMaintainer = Maintainer
    fedlab.SerializationTool.serialize_model = lambda model: Maintainer(model).model_parameters
    fedlab.SerializationTool.deserialize_model = deserialize
    fedlab.Aggregators.fedavg_aggregate = lambda models: torch.stack(models).mean(dim=0)
    fedlab.evaluate.return_value = 0.0, 0.0
    places = ("core.model_maintainer", "core.client.serial_trainer", "utils", "utils.dataset", "utils.functional")
    for name in ("fedlab", "fedlab.core", "fedlab.core.client", *(f"fedlab.{each}" for each in places)):
        sys.modules[name] = fedlab
    others = ("settings", "leaf.dataloader", "leaf.pickle_dataset", "datasets", "models.cnn", "models.linear")
    for name in ("torchvision", "torchvision.transforms", "cvxopt", "leaf", "models", "fedlab.utils.dataset.slicing"):
        sys.modules[name] = MagicMock()
    sys.modules |= {name: MagicMock() for name in others}
    trainer: Any = importlib.import_module("trainer")
    trainer.tqdm = iter  # no bars
    spec = importlib.util.spec_from_file_location("stocfl_code", folder / "StoCFL-FCC+CFL.py")
    assert spec is not None
    assert spec.loader is not None
    code: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    code.os = os

    class Clients(trainer.FEMNISTTrainer):  # type: ignore[misc]
        def __init__(self, args: Any) -> None:
            Maintainer.__init__(self, deepcopy(module))
            self.args, self.client_num = args, CLIENTS
            self.optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)

        def _get_dataloader(self, client: int, batch_size: Any = None) -> Any:
            rows = population.samples(client)
            return [tuple(torch.from_numpy(each[rows]) for each in (population.data.inputs, population.data.targets))]

        def get_test_dataloader(self, client: int) -> None:
            return None

        def train(self, ids: list[int], models: list[Tensor], common: Tensor) -> Any:
            if not put_right:
                return super().train(ids, models, common)
            updated, _ = super().train(ids, models, common)
            return updated, [self._train_alone(common, self._get_dataloader(k)) for k in ids]

    with tempfile.TemporaryDirectory() as logs:
        told = {"lr": LR, "epochs": STEPS, "obep": STEPS, "obbs": None, "batch_size": None, "mu": PENALTY, "tau": TAU}
        args = SimpleNamespace(**told, com_round=1, num_per_round=CLIENTS, train=1, k=1, n=1, dir=logs)
        args.exp_logger = MagicMock()
        server = code.StandaloneServer(deepcopy(module), False, Clients(args), args)
        for _ in range(ROUNDS):
            server.main()
            yield [*(server.cluster_parameters[c] for c in server.find_client_cluster), server.gmodel]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sys.path.insert(0, str(folder))
    population, module = make_clients(), network(0)
    made = stocfl(population, LocalRule(sgd, LR, STEPS, "full"), ROUNDS, module, CLIENTS, TAU, PENALTY, 1.0)
    alike = [replace(event, weights=np.ones(len(event.cohort))) for event in made.schedule.events]
    method = replace(made, schedule=replace(made.schedule, events=tuple(alike)))
    for put_right, note in ((False, "as it is"), (True, "each client from the round's global model")):
        theirs = of_authors(folder, population, module, put_right)
        print(f"stocfl, {note}: {furthest(in_atoll(method, module, population), theirs):.1e}", flush=True)


if __name__ == "__main__":
    main()
