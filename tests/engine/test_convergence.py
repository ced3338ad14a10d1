"""Every method on convex problems with known optima, and FedCluster's Theorem 1 on a quadratic with known constants."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from atoll import (
    Evaluator,
    LocalRule,
    Method,
    Population,
    Serial,
    Trainer,
    apfl,
    centralized,
    chain_of,
    fedamp,
    fedavg,
    fedcluster,
    fedem,
    fedsoft,
    init,
    mixture,
    moon,
    own_and_centres,
    perfedavg,
    pfedme,
    read_model,
    stocfl,
    train,
)
from atoll.clustering.clustering import Clustering
from atoll.local.rule import adam, momentum, sgd
from atoll.support.arrays import Floats
from examples.bounds import fedcluster_bound
from tests.problems import as_vector, linear_module, pooled_least_squares, quadratics
from tests.tiers import thinned

CLUSTERING = Clustering(np.array([0, 1, 2, 0, 1, 2]), 3)
METHODS: dict[str, Any] = {
    "fedavg": lambda p, rule, rounds: fedavg(p, rule, rounds, 1.0),
    "fedavg, half the clients": lambda p, rule, rounds: fedavg(p, rule, 2 * rounds, 0.5),
    "fedcluster": lambda p, rule, rounds: fedcluster(p, CLUSTERING, rule, rounds, 1.0),
    "fedcluster, fixed order": lambda p, rule, rounds: fedcluster(p, CLUSTERING, rule, rounds, 1.0, "fixed"),
    "centralized": lambda p, rule, rounds: centralized(p.pooled(), rule, rounds),
}
RULES = {
    "sgd": LocalRule(sgd, 0.1, 5, 4),
    "momentum": LocalRule(partial(momentum, momentum=0.5), 0.05, 5, 4),
    "adam, decaying": LocalRule(adam, 0.1, 5, 4, lr_decay=0.97),
    "fedprox": LocalRule(sgd, 0.1, 5, 4, proximal=0.1),
}
ROUNDS = {"adam, decaying": 200}  # the others arrive in half as many


def train_to_end(name: str, method: Method, population: Population, seed: int = 0) -> Floats:
    """Train the linear model: of one client with all samples, or of the clients."""
    module = linear_module()
    held = population.pooled() if name == "centralized" else population
    trainer = Trainer(module, held, method.rule, seed)
    for step in train(method, Serial(trainer), init(method, read_model(module))):
        state = step.state
    assert state.server is not None
    return as_vector(state.server)


@pytest.mark.parametrize("rule", thinned(RULES, 1))
@pytest.mark.parametrize("method", thinned(METHODS, 1))
def test_where_clients_agree_every_method_finds_the_optimum(method: str, rule: str) -> None:
    population = quadratics(noise=0.0)
    made = METHODS[method](population, RULES[rule], ROUNDS.get(rule, 100))
    trained = train_to_end(method, made, population)
    np.testing.assert_allclose(trained, pooled_least_squares(population), atol=1e-3)


OF_THEIR_OWN: dict[str, Any] = {
    "fedem": lambda p, rule, module: fedem(p, rule, 100, module, 2, 1.0),
    "fedsoft": lambda p, rule, module: fedsoft(p, rule, 100, module, 2, fraction=1.0),
    "pfedme": lambda p, rule, module: pfedme(p, rule, 100, 5.0, inner_lr=0.1, fraction=1.0),
    "apfl": lambda p, rule, module: apfl(p, rule, 200, 0.9, fraction=1.0),
    "perfedavg": lambda p, rule, module: perfedavg(p, rule, 100, inner_lr=0.1, fraction=1.0),
    "fedamp": lambda p, rule, module: fedamp(p, rule, 100),
    "stocfl": lambda p, rule, module: stocfl(p, rule, 100, module, 1, fraction=1.0),
    "moon": lambda p, rule, module: moon(p, rule, 100, 0.0, fraction=1.0),  # linear models have no features
}
MADE_OF: dict[str, Any] = {
    "fedem": lambda: mixture(linear_module, "squared", 2),
    "fedsoft": lambda: own_and_centres(linear_module, 2),
}


@pytest.mark.more
@pytest.mark.parametrize("method", OF_THEIR_OWN)
def test_where_clients_agree_models_of_their_own_find_the_optimum_too(method: str) -> None:
    """Every one of them: the server's, those of all components, centres and clusters, and the clients'."""
    population, module = quadratics(noise=0.0), MADE_OF.get(method, linear_module)()
    made = OF_THEIR_OWN[method](population, RULES["sgd"], module)
    trainer = chain_of(made, module, population, 0).for_executors()
    for step in train(made, Serial(trainer), init(made, read_model(module))):
        state = step.state
    assert len(state.clients) == len(population)
    kept = [] if method == "stocfl" else state.clients.values()  # its clients keep their first updates
    parts = [*state.starts, *kept, *([] if state.server is None else [state.server])]
    found = [tensor for part in parts for name, tensor in part.items() if name.endswith("weight")]
    best = pooled_least_squares(population)
    assert found
    for tensor in found:
        np.testing.assert_allclose(tensor.numpy().ravel(), best, atol=1e-3)


def optimum(population: Population, method: str) -> Floats:
    """The minimiser that a method aims at.

    FedCluster visits every cluster equally often, so it aims at the unweighted mean of the clusters' losses. (The
    proof of Theorem 1 takes that mean for the union's loss, which it is when all clusters hold equally much.)
    """
    if "fedcluster" not in method:
        return pooled_least_squares(population)
    x, y = population.data.inputs, population.data.targets
    weights = np.zeros(len(y))
    for c in range(3):
        rows = np.concatenate([population.samples(int(k)) for k in CLUSTERING.members(c)])
        weights[rows] = 1 / len(rows)
    root = np.sqrt(weights)
    return np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]


@pytest.mark.parametrize("method", thinned(METHODS, ("centralized",)))
def test_where_clients_differ_every_method_gets_as_near_as_its_step_allows(method: str) -> None:
    """With a constant step the distance to the optimum falls with the step, at about its order."""
    population = quadratics(noise=0.5)
    best = optimum(population, method)

    def distance(lr: float) -> float:
        made = METHODS[method](population, LocalRule(sgd, lr, 2, "full"), int(12 / lr))
        return float(np.linalg.norm(train_to_end(method, made, population) - best))

    coarse, fine = distance(0.16), distance(0.04)
    if method == "centralized":
        assert fine < 1e-6  # full batches of the union: gradient descent itself
    elif method in ("fedavg, half the clients", "fedcluster"):
        assert fine < 0.1  # who is drawn, or which cluster is last, is noise that a constant step does not average out
    else:
        assert fine < 0.05
        assert fine < 0.4 * coarse


def test_theorem_1_bounds_the_gradients_met() -> None:
    """L, G, s_k and H_cluster of a least-squares problem are known or measured along the run; the bound must hold."""
    population = quadratics(clients=6, samples=12, noise=0.4)
    x, y = population.data.inputs, population.data.targets
    scale = 0.08  # small inputs give the small L and G that the theorem's conditions ask for
    population = replace(population, data=replace(population.data, inputs=x * scale))
    x = x * scale
    T, E, M = 120, 2, 3
    L = float((x**2).sum(axis=1).max())
    rule = LocalRule(sgd, (T * M * E) ** -0.5, E, 1)
    method = fedcluster(population, CLUSTERING, rule, T, 1.0)
    module = linear_module()
    at = [as_vector(read_model(module))]
    evaluator, start = Evaluator(population, module), read_model(module)
    gap = evaluator.score(start).train_loss - float(np.mean((x @ pooled_least_squares(population) - y) ** 2)) / 2
    for step in train(method, Serial(Trainer(module, population, rule, 0)), init(method, start)):
        assert step.state.server is not None
        at.append(as_vector(step.state.server))

    def sample_gradients(w: Floats) -> Floats:
        return x * (x @ w - y)[:, None]

    p, q = population.shares, np.bincount(CLUSTERING.labels, population.shares)
    squares, G2, variances, h_cluster = [], 0.0, np.zeros(6), 0.0
    for e, w in enumerate(at):
        g = sample_gradients(w)
        local = np.stack([g[population.samples(k)].mean(axis=0) for k in range(6)])
        if e % M == 0 and e < T * M:
            squares.append((p @ local) @ (p @ local))
        G2 = max(G2, max((g[population.samples(k)] ** 2).sum(axis=1).mean() for k in range(6)))
        spread = [((g[population.samples(k)] - local[k]) ** 2).sum(axis=1).mean() for k in range(6)]
        variances = np.maximum(variances, spread)
        of_cluster = np.stack([p[CLUSTERING.members(c)] @ local[CLUSTERING.members(c)] / q[c] for c in range(M)])
        h_cluster = max(h_cluster, float(q @ ((of_cluster - p @ local) ** 2).sum(axis=1)))
    theorem = fedcluster_bound(
        population,
        CLUSTERING,
        rounds=T,
        steps=E,
        smoothness=L,
        gradient_bound=1.5 * G2**0.5,  # local models stray a little from the ones measured
        gap=gap,
        h_cluster=h_cluster,
        variances=variances.tolist(),
    )
    assert theorem.lr == pytest.approx(rule.lr)
    assert theorem.unmet == ()
    assert 0 < np.mean(squares) <= theorem.bound
    assert theorem.bound < 1e3 * np.mean(squares)  # and it says something


def test_theorem_1_by_hand() -> None:
    population = quadratics(clients=2, samples=4)  # 4 and 5 samples
    clustering = Clustering(np.array([0, 1]), 2)
    found = fedcluster_bound(
        population, clustering, rounds=8, steps=2, smoothness=2.0, gradient_bound=10.0, gap=3.0, h_cluster=0.5,
        variances=[9.0, 18.0],
    )  # fmt: skip
    noise = (4 / 9) ** 2 * 9 / (4 / 9) + (5 / 9) ** 2 * 18 / (5 / 9)  # 4 + 10
    assert found.constant == pytest.approx(2 * 3 + 4 * 2 * (0.5 + noise))
    assert found.lr == pytest.approx(32**-0.5)
    assert found.bound == pytest.approx(2 * found.constant / 32**0.5)
    assert len(found.unmet) == 2
