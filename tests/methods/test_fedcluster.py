"""FedCluster, FedAvg and centralised SGD against a slow twin written by hand in NumPy from Algorithm 1.

The twin shares with the engine only the population and the random draws (seeds.generator); gradients, optimisers,
weights, cohorts and merges are written out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from atoll import (
    LocalRule,
    Method,
    Population,
    Serial,
    Trainer,
    centralized,
    fedavg,
    fedcluster,
    init,
    read_model,
    train,
)
from atoll.clustering.clustering import Clustering
from atoll.local.rule import adam, momentum, sgd
from atoll.support.arrays import Floats
from atoll.support.seeds import generator
from tests.problems import as_vector, classification, linear_module, network, quadratics

Gradient = Callable[[Floats, Floats, Any], Floats]


def squared_gradient(w: Floats, x: Floats, y: Floats) -> Floats:
    return x.T @ (x @ w - y) / len(y)


def network_gradient(w: Floats, x: Floats, y: Any) -> Floats:
    """Cross-entropy of softmax(V tanh(U x + a) + b), by hand; w holds U [5, 4], a, V [3, 5], b."""
    U, a, V, b = np.split(w, np.cumsum([20, 5, 15]))
    U, V = U.reshape(5, 4), V.reshape(3, 5)
    h = np.tanh(x @ U.T + a)
    logits = h @ V.T + b
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ V) * (1 - h**2)
    return np.concatenate([(back.T @ x).ravel(), back.sum(axis=0), (p.T @ h).ravel(), p.sum(axis=0)])


@dataclass
class Sgd:
    def step(self, w: Floats, g: Floats, lr: float) -> Floats:
        return w - lr * g


@dataclass
class HeavyBall:
    u: Any = 0.0

    def step(self, w: Floats, g: Floats, lr: float) -> Floats:
        self.u = 0.5 * self.u + g
        return w - lr * self.u


@dataclass
class Adam:
    m: Any = 0.0
    v: Any = 0.0
    t: int = field(default=0)

    def step(self, w: Floats, g: Floats, lr: float) -> Floats:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g**2
        return w - lr * (self.m / (1 - 0.9**self.t)) / (np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8)


def twin(
    population: Population,
    clusters: list[list[int]],
    rule: LocalRule,
    optimizer: type,
    gradient: Gradient,
    W: Floats,
    rounds: int,
    fraction: float,
    order: str,
    seed: int,
) -> Floats:
    x, y = population.data.inputs, population.data.targets
    cycle = 0
    for j in range(rounds):
        turns = range(len(clusters)) if order == "fixed" else generator(seed, "order", j).permutation(len(clusters))
        for K in turns:
            members = np.array(clusters[K])
            size = max(1, round(fraction * len(members)))
            cohort = members
            if size < len(members):
                picked = generator(seed, "cohort", cycle).choice(len(members), size, replace=False)
                cohort = np.sort(members[picked])
            n = [len(population.samples(k)) for k in cohort]
            returned: list[Floats] = []
            for k in cohort:
                own = population.samples(k)
                batches = generator(seed, "batches", cycle, 0, int(k)).integers(len(own), size=(STEPS, BATCH))
                w, state = W.copy(), optimizer()
                for t in range(rule.steps):
                    rows = own[batches[t]]
                    g = gradient(w, x[rows], y[rows]) + rule.proximal * (w - W)
                    w = state.step(w, g, rule.lr * rule.lr_decay**j)
                returned.append(w)
            W = np.average(returned, axis=0, weights=n)
            cycle += 1
    return W


RULES = {
    "sgd": (sgd, Sgd, 0.05, 0.0, 1.0),
    "momentum": (partial(momentum, momentum=0.5), HeavyBall, 0.03, 0.0, 1.0),
    "adam": (adam, Adam, 0.02, 0.0, 1.0),
    "fedprox": (sgd, Sgd, 0.05, 0.1, 1.0),
    "proximal momentum, decaying": (partial(momentum, momentum=0.5), HeavyBall, 0.03, 0.3, 0.9),
}
CLUSTERS = [[1, 4], [0, 3, 5], [2]]
PROBLEMS = {
    "quadratics": (quadratics(), linear_module(), squared_gradient),
    "network": (classification(), network(), network_gradient),
}


STEPS, BATCH = 4, 3


def make_rule(name: str) -> tuple[LocalRule, type]:
    make, by_hand, lr, mu, decay = RULES[name]
    return LocalRule(make, lr, STEPS, BATCH, mu, decay), by_hand  # type: ignore[arg-type]


def clustering_of(clusters: list[list[int]], clients: int) -> Clustering:
    labels = np.full(clients, -1)
    for c, members in enumerate(clusters):
        labels[members] = c
    return Clustering(labels, len(clusters))


def train_to_end(method: Method, population: Population, module: Any, rule: LocalRule, seed: int) -> Floats:
    executor = Serial(Trainer(module, population, rule, seed))
    state = init(method, read_model(module))
    for step in train(method, executor, state):
        state = step.state
    assert state.server is not None
    return as_vector(state.server)


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> Iterator[tuple[Population, Any, Gradient]]:
    population, module, gradient = PROBLEMS[request.param]
    twin_start = as_vector(read_model(module))
    yield population, module, gradient
    # Training uses the module as scratch space; the next test starts from the same model.
    offset = 0
    for parameter in module.parameters():
        part = twin_start[offset : offset + parameter.numel()]
        parameter.data = parameter.data.new_tensor(part).reshape(parameter.shape)
        offset += parameter.numel()


@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize(("fraction", "order"), [(1.0, "fixed"), (0.6, "reshuffled")])
def test_fedcluster_equals_its_twin(problem: Any, rule_name: str, fraction: float, order: Any) -> None:
    population, module, gradient = problem
    rule, by_hand = make_rule(rule_name)
    start = as_vector(read_model(module))
    expected = twin(population, CLUSTERS, rule, by_hand, gradient, start, 3, fraction, order, seed=7)
    method = fedcluster(population, clustering_of(CLUSTERS, 6), rule, 3, fraction, order, seed=7)
    found = train_to_end(method, population, module, rule, seed=7)
    assert np.abs(found - start).max() > 1e-3  # it moved
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule_name", RULES)
def test_fedavg_equals_its_twin(problem: Any, rule_name: str) -> None:
    population, module, gradient = problem
    rule, by_hand = make_rule(rule_name)
    start = as_vector(read_model(module))
    expected = twin(population, [list(range(6))], rule, by_hand, gradient, start, 4, 0.5, "fixed", seed=3)
    found = train_to_end(fedavg(population, rule, 4, 0.5, seed=3), population, module, rule, seed=3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_fedavg_is_fedcluster_with_one_cluster_to_the_bit(problem: Any) -> None:
    population, module, _ = problem
    rule, _ = make_rule("momentum")
    start = read_model(module)
    one = fedcluster(population, clustering_of([list(range(6))], 6), rule, 4, 0.5, "reshuffled", seed=3)
    first = train_to_end(one, population, module, rule, seed=3)
    module.load_state_dict(start)
    second = train_to_end(fedavg(population, rule, 4, 0.5, seed=3), population, module, rule, seed=3)
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("rule_name", ["sgd", "momentum", "adam"])
def test_centralized_is_one_long_run_on_the_pooled_data(problem: Any, rule_name: str) -> None:
    population, module, gradient = problem
    pooled = population.pooled()
    rule, by_hand = make_rule(rule_name)
    start = as_vector(read_model(module))
    w, state = start.copy(), by_hand()  # the optimiser's state is kept over all rounds
    for j in range(3):
        for rows in generator(5, "batches", j, 0, 0).integers(len(pooled.indices), size=(STEPS, BATCH)):
            samples = pooled.indices[rows]
            w = state.step(w, gradient(w, pooled.data.inputs[samples], pooled.data.targets[samples]), rule.lr)
    method = centralized(pooled, rule, 3, seed=5)
    found = train_to_end(method, pooled, module, method.rule, seed=5)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-10)
