"""FedRC, FedEM, FedSoft, IFCA and FedAvg where labels, inputs and the meaning of labels differ at once.

Run:  python benchmarks/three_shifts.py [--seeds N] [--rounds T]

The three shifts of Guo et al. 2024, at a small scale: 18 clients of scikit-learn's digits, each with labels from a
Dirichlet distribution (alpha 0.4), inputs of one of three contrasts with noise, and one of three concepts, in which the
labels are permuted. A client's model is tested on all test images, undisturbed, with the labels of its concept: whoever
clusters by labels or inputs knows only some of them. Prints the mean accuracy over clients and seeds with the standard
deviation over seeds, and the share of pairs of clients with one concept whose heaviest model is the same, less that of
pairs with different concepts.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from atoll import (
    Dataset,
    LocalRule,
    Method,
    Population,
    Serial,
    State,
    chain_of,
    fedavg,
    fedem,
    fedrc,
    fedsoft,
    ifca,
    init,
    load_model,
    make_population,
    mixture,
    mixture_by_class,
    own_and_centres,
    read_model,
    train,
)
from atoll.local.rule import sgd

CLIENTS, SAMPLES, CONCEPTS, TESTS = 18, 80, 3, 360
RULE = LocalRule(sgd, 0.2, 8, 20)


@dataclass(frozen=True)
class Problem:
    """The clients, each one's concept, and the tests: undisturbed inputs, and the labels of each concept."""

    population: Population
    concepts: list[int]
    inputs: Tensor
    labels: list[Tensor]


def make_problem(seed: int) -> Problem:
    """Draw the clients' shifts and samples."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    order = rng.permutation(len(digits))
    images, digits = (images[order] / 16).astype(np.float32), digits[order]
    tests, pool = np.arange(TESTS), np.arange(TESTS, len(digits))
    meaning = [np.arange(10), *(rng.permutation(10) for _ in range(CONCEPTS - 1))]
    concepts = [k % CONCEPTS for k in range(CLIENTS)]
    inputs, targets = [], []
    for k, concept in enumerate(concepts):
        chances = rng.dirichlet(np.full(10, 0.4))[digits[pool]]
        rows = rng.choice(pool, SAMPLES, p=chances / chances.sum())
        disturbed = images[rows] * (0.5, 0.75, 1.0)[k // CONCEPTS % 3] + 0.1 * rng.normal(size=(SAMPLES, 64))
        inputs.append(disturbed.astype(np.float32))
        targets.append(meaning[concept][digits[rows]])
    data = Dataset("shifted", np.concatenate(inputs), np.concatenate(targets), images[tests], digits[tests], classes=10)
    population = make_population(data, np.split(np.arange(CLIENTS * SAMPLES), CLIENTS))
    labels = [torch.from_numpy(each[digits[tests]]) for each in meaning]
    return Problem(population, concepts, torch.from_numpy(images[tests]), labels)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))


METHODS: dict[str, tuple[Callable[..., Method], Callable[[], nn.Module]]] = {
    "fedavg": (lambda p, rounds, module, seed: fedavg(p, RULE, rounds, 1.0, seed=seed), network),
    "ifca": (lambda p, rounds, module, seed: ifca(p, RULE, rounds, CONCEPTS, fraction=1.0, seed=seed), network),
    "fedem": (
        lambda p, rounds, module, seed: fedem(p, RULE, rounds, module, CONCEPTS, 1.0, seed=seed),
        lambda: mixture(network, clusters=CONCEPTS),
    ),
    "fedsoft": (
        lambda p, rounds, module, seed: fedsoft(p, RULE, rounds, module, CONCEPTS, fraction=1.0, seed=seed),
        lambda: own_and_centres(network, CONCEPTS),
    ),
    "fedrc": (
        lambda p, rounds, module, seed: fedrc(p, RULE, rounds, module, CONCEPTS, 1.0, seed=seed),
        lambda: mixture_by_class(network, 10, CONCEPTS),
    ),
}


def run(name: str, problem: Problem, rounds: int, seed: int) -> tuple[float, float]:
    """Return the clients' mean accuracy, and how much better they are grouped by concept than at random."""
    make, make_module = METHODS[name]
    torch.manual_seed(seed)
    module = make_module()
    method = make(problem.population, rounds, module, seed)
    models = [read_model(make_module()) for _ in range(method.starts)] if method.starts > 1 else [read_model(module)]
    executor = Serial(chain_of(method, module, problem.population, seed).for_executors())
    for step in train(method, executor, init(method, *models)):
        state = step.state
    losses = executor.losses(state.starts, np.arange(CLIENTS), 0)
    own = [_model_of(state, k, int(losses[k].argmin())) for k in range(CLIENTS)]
    heaviest = [_heaviest(module, model, problem.population, k) for k, model in enumerate(own)]
    heaviest = [int(losses[k].argmin()) if each is None else each for k, each in enumerate(heaviest)]
    hits = []
    for k, model in enumerate(own):
        load_model(module.eval(), model)
        with torch.no_grad():
            hits.append(float((module(problem.inputs).argmax(1) == problem.labels[problem.concepts[k]]).float().mean()))
    together = {same: [] for same in (True, False)}  # type: dict[bool, list[bool]]
    for i, j in combinations(range(CLIENTS), 2):
        together[problem.concepts[i] == problem.concepts[j]].append(heaviest[i] == heaviest[j])
    return float(np.mean(hits)), float(np.mean(together[True]) - np.mean(together[False]))


def _model_of(state: State, client: int, cluster: int) -> Any:
    """Return what a client predicts with: its own part over the server's model, or its cluster's."""
    return {**(state.starts[cluster] if state.server is None else state.server), **state.clients.get(client, {})}


@torch.no_grad()
def _heaviest(module: nn.Module, model: Any, population: Population, client: int) -> int | None:
    """Return the component with a client's largest share or, without shares, the least loss; None: there are none."""
    if "shares" in model or not hasattr(module, "components"):
        return int(model["shares"].argmax()) if "shares" in model else None
    load_model(module.eval(), model)
    rows = population.samples(client)
    x, y = torch.from_numpy(population.data.inputs[rows]), torch.from_numpy(population.data.targets[rows])
    return int(
        np.argmin(
            [float(nn.functional.cross_entropy(each(x), y)) for each in module.get_submodule("components").children()]
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    told = parser.parse_args()
    print("| Method | Accuracy | Grouped by concept |\n|---|---|---|")
    for name in METHODS:
        found = np.array([run(name, make_problem(seed), told.rounds, seed) for seed in range(told.seeds)])
        mean, spread = found.mean(axis=0), found.std(axis=0, ddof=1)
        print(f"| `{name}` | {mean[0]:.1%} ± {spread[0]:.1%} | {mean[1]:.2f} ± {spread[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
