"""Compare FedEM, FedRC and FedSoft with their authors' code, run as it is, in single precision on full batches.

Run:  python benchmarks/soft_agreement.py METHOD DIR

METHOD is `fedem`, `fedrc` or `fedsoft`, and DIR a clone of github.com/omarfoq/FedEM (996fadd), LINs-lab/FedRC (ce79229)
or ycruan/FedSoft (e71a4ab), which is only read. Prints the largest difference of any parameter of any of three models
after any of ten rounds of six clients, all of them in each round, and where the code departs from its paper also with
that put right.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atoll import (
    Dataset,
    LocalRule,
    Method,
    Population,
    Serial,
    chain_of,
    fedem,
    fedrc,
    fedsoft,
    init,
    make_population,
    mixture,
    mixture_by_class,
    own_and_centres,
    read_model,
    train,
)
from atoll.local.rule import sgd

CLIENTS, MODELS, CLASSES, ROUNDS, STEPS, LR = 6, 3, 3, 10, 3, 0.2
SIZES = [18, 24, 30, 18, 24, 30]


def make_clients() -> Population:
    """Return clients whose labels come from one of two linear models each."""
    rng = np.random.default_rng(7)
    inputs = rng.normal(size=(sum(SIZES), 4)).astype(np.float32)
    planted, owner = rng.normal(size=(2, 4, CLASSES)), np.repeat(np.arange(CLIENTS), SIZES)
    targets = np.array(
        [(x @ planted[k % 2] + rng.normal(size=CLASSES)).argmax() for x, k in zip(inputs, owner, strict=True)]
    )
    data = Dataset("planted", inputs, targets, inputs[:3], targets[:3], classes=CLASSES)
    return make_population(data, [np.flatnonzero(owner == k) for k in range(CLIENTS)])


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def in_atoll(method: Method, module: nn.Module, population: Population) -> Iterator[list[Tensor]]:
    """Yield the parameters of each of the models after each round."""
    executor = Serial(chain_of(method, deepcopy(module), population, 0).for_executors())
    for step in train(method, executor, init(method, read_model(module))):
        model = step.state.server or {}
        yield [vector({n: t for n, t in model.items() if n.startswith(f"components.{k}.")}) for k in range(MODELS)]


def vector(model: dict[str, Tensor]) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.values()])


class Held(torch.utils.data.Dataset[Any]):
    """One client's samples, with what FedEM's and FedRC's clients ask of a data set."""

    def __init__(self, population: Population, client: int, indexed: bool) -> None:
        rows = population.samples(client)
        self.x, self.y = torch.from_numpy(population.data.inputs[rows]), torch.from_numpy(population.data.targets[rows])
        self.targets, self.indexed = self.y.tolist(), indexed

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Any:
        return (self.x[row], self.y[row], row) if self.indexed else (self.x[row], self.y[row])


def stand_in(**modules: dict[str, Any]) -> None:
    """Put modules in the place of those that need packages of other years and are not used here."""
    for name, members in modules.items():
        made = ModuleType(name.replace("__", "."))
        vars(made).update(members)
        sys.modules[made.__name__] = made


def mixed(population: Population, kind: str, resets: bool = True) -> Iterator[list[Tensor]]:
    """Run `MixtureClient` or `FedRC`, aggregate as `CentralizedAggregator` does, and exchange labels' weights."""
    import client as clients
    from learners.learner import Learner
    from learners.learners_ensemble import LearnersEnsemble
    from utils.torch_utils import average_learners, copy_model

    def ensemble() -> Any:
        nets = [network(seed) for seed in range(MODELS)]
        loss = nn.CrossEntropyLoss(reduction="none")
        each = [
            Learner(net, loss, lambda *_: torch.zeros(1), "cpu", torch.optim.SGD(net.parameters(), LR)) for net in nets
        ]
        return LearnersEnsemble(each, torch.full((MODELS,), 1 / MODELS), *([] if kind == "MixtureClient" else ["cpu"]))

    held = [Held(population, k, indexed=True) for k in range(CLIENTS)]
    loaders = [torch.utils.data.DataLoader(each, batch_size=len(each)) for each in held]
    extra = {} if kind == "MixtureClient" else {"class_number": CLASSES}
    each = [getattr(clients, kind)(ensemble(), one, one, one, None, STEPS, **extra) for one in loaders]
    server, of_class = ensemble(), np.zeros((MODELS, CLASSES))
    for _ in range(ROUNDS):
        for one in each:
            one.step()
        weights = torch.tensor([one.n_train_samples for one in each]) / sum(SIZES)
        for k in range(MODELS):
            average_learners([one.learners_ensemble[k] for one in each], server[k], weights=weights)
            for one in each:
                copy_model(one.learners_ensemble[k].model, server[k].model)
        if kind == "FedRC":  # as `run_experiment.py` does, which adds to the last round's shares
            of_class = (0 if resets else of_class) + sum(one.labels_learner_weights.numpy() for one in each)
            of_class = of_class / of_class.sum(axis=1, keepdims=True)
            for one in each:
                one.update_labels_weights(torch.from_numpy(of_class).float())
        yield [vector(dict(server[k].model.named_parameters())) for k in range(MODELS)]


def soft(population: Population) -> Iterator[list[Tensor]]:
    """Run `Server` without selection, with clients that take the argument that it calls them with."""
    stand_in(utils={"logger": None})
    from clients import Client
    from servers import Server

    class Solver:
        batch_size, local_epoch, lr, classification, sequence, num_classes = 100, STEPS, LR, True, False, CLASSES
        optimizer_type, lr_scheduler_type, lr_step, lr_gamma = torch.optim.SGD, torch.optim.lr_scheduler.StepLR, 1, 1.0
        criterion, estimate_criterion = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")
        reg_weight, count_smoother, do_selection, estimation_interval = 0.7, 0.0001, False, 1

    class TakesAnArgument(Client):
        def estimate_importance_weights(self, _: str) -> None:
            super().estimate_importance_weights()

    seeds = iter(range(MODELS + 1))
    each = [TakesAnArgument(k, Held(population, k, indexed=False), Solver()) for k in range(CLIENTS)]
    server = Server(lambda: network(next(seeds)), each, MODELS, None, Solver())
    for _ in range(ROUNDS):
        server.run(1)
        yield [vector(dict(one.named_parameters())) for one in server.cluster_vec]


def furthest(ours: Iterator[list[Tensor]], theirs: Iterator[list[Tensor]]) -> float:
    pairs = [(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=["fedem", "fedrc", "fedsoft"])
    parser.add_argument("folder", type=Path)
    told = parser.parse_args()
    warnings.filterwarnings("ignore", message="The use of `x.T`")
    sys.path.insert(0, str(told.folder))
    population, rule = make_clients(), LocalRule(sgd, LR, STEPS, "full")
    seeds = iter(range(MODELS + 1))
    make: Callable[[], nn.Module] = lambda: network(next(seeds))  # noqa: E731
    if told.method == "fedsoft":
        module: nn.Module = own_and_centres(make, MODELS)
        method = fedsoft(population, rule, ROUNDS, module, MODELS, 0.7, fraction=1.0)
        print(f"fedsoft, its call put right: {furthest(in_atoll(method, module, population), soft(population)):.1e}")
        return
    by_class = told.method == "fedrc"
    module = mixture_by_class(make, CLASSES, MODELS) if by_class else mixture(make, clusters=MODELS)
    method = (fedrc if by_class else fedem)(population, rule, ROUNDS, module, MODELS, 1.0)
    stand_in(models={"Classifier": None}, utils__optim={"get_optimizer": None})
    kind = "FedRC" if by_class else "MixtureClient"
    for resets in (False, True) if by_class else (True,):
        theirs = mixed(population, kind, resets)
        note = ", as it is" if not resets or not by_class else ", without the last round's shares"
        print(f"{told.method}{note}: {furthest(in_atoll(method, module, population), theirs):.1e}")


if __name__ == "__main__":
    main()
