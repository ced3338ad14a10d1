"""FedUC's bound against a hand-written direct evaluation, and the theorems against gradient descent on quadratics."""

from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import networkx as nx
import numpy as np
import pytest

from atoll.clustering.feduc.bound import Bound, evaluate
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem, check
from atoll.network.completion import event_seconds
from atoll.network.network import Network
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError


def random_problem(
    pattern: Pattern,
    seed: int,
    clients: int = 12,
    aggregators: int = 5,
    graph: "nx.Graph[int] | None" = None,
    **settings: Any,
) -> tuple[Problem, Ids]:
    """A problem in which every constant matters, and labels with clients not assigned and an aggregator without any."""
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(aggregators, 0.5, seed=seed) if graph is None else graph
    exchange = rng.uniform(0.1, 1, (aggregators, aggregators))
    network = Network(
        compute_seconds=rng.uniform(0.1, 2, clients),
        upload_seconds=rng.uniform(0.1, 1, (clients, aggregators)),
        transfer_seconds=rng.uniform(0.1, 3, aggregators),
        exchange_seconds=exchange * (1 - np.eye(aggregators)),
        neighbours=tuple(tuple(sorted(graph[j])) for j in range(aggregators)),
    )
    optimal = rng.uniform(0, 0.3, clients)
    problem = Problem(
        pattern=pattern,
        network=network,
        sizes=rng.integers(1, 50, clients).astype(float),
        deviations=rng.normal(size=(clients, 3)),
        limits=np.full(aggregators, np.inf),
        steps=int(rng.integers(1, 40)) * 6,
        intra_rounds=3,
        local_steps=2,
        lr=float(rng.choice([0.001, 0.05, 0.4])),
        mu=float(rng.choice([0.1, 1.0, 2.0])),
        smoothness=3.0,
        initial_gap=1.7,
        optimal_losses=optimal,
        noise=rng.uniform(0, 2, clients),
        cluster_optimum=0.4,
    )
    labels = rng.integers(-1, aggregators - (aggregators > 2), clients)
    labels[:2] = 0
    return replace(problem, **settings), labels


def direct(problem: Problem, labels: Ids) -> dict[str, Any]:
    """The formulas, client by client and power by power."""
    network, total = problem.network, 0.0
    held = [0.0] * network.aggregators
    for i, j in enumerate(labels):
        if j >= 0:
            held[j] += problem.sizes[i]
            total += problem.sizes[i]
    gamma, xi, completion, events = ([0.0] * network.aggregators for _ in range(4))
    eta, L = problem.lr, problem.smoothness
    for j in range(network.aggregators):
        members = [i for i in range(network.clients) if labels[i] == j]
        if not members:
            continue
        mean, excess, noise = np.zeros(problem.deviations.shape[1]), problem.cluster_optimum, 0.0
        for i in members:
            phi = problem.sizes[i] / held[j]
            mean += phi * problem.deviations[i]
            excess -= phi * (0 if problem.optimal_losses is None else problem.optimal_losses[i])
            noise += phi * (0 if problem.noise is None else problem.noise[i])
        xi[j] = sum(value**2 for value in mean)
        gamma[j] = eta / 2 * xi[j] + 2 * L**2 * eta**2 * excess + L * eta**2 * noise
        for _, i in sorted((network.compute_seconds[i], i) for i in members):
            completion[j] = max(completion[j], network.compute_seconds[i]) + network.upload_seconds[i, j]
        links = [network.exchange_seconds[j, other] for other in network.neighbours[j]]
        transfer = network.transfer_seconds[j] if "cen" in problem.pattern else max(links, default=0.0)
        events[j] = problem.intra_rounds * completion[j] + transfer

    used = [j for j in range(network.aggregators) if held[j]]
    beta = [held[j] / total for j in range(network.aggregators)]
    psi, tau_max, seconds = [0.0] * network.aggregators, 0.0, max(events)
    if "asy" in problem.pattern:
        clock = {j: 1 / events[j] for j in used}
        seconds = 1 / sum(clock.values())
        given = clock if problem.frequencies is None else dict(enumerate(problem.frequencies))
        tau_max = (sum(given.values()) - min(given.values())) / min(given.values())
        tau_max = tau_max if problem.tau_max is None else problem.tau_max
        for j in given:
            psi[j] = given[j] / sum(given.values())
    else:
        for j in used:
            psi[j] = 1 / len(used)

    H, rho = problem.intra_rounds * problem.local_steps, 1 - problem.mu * eta
    R = problem.steps / H if problem.seconds is None else problem.seconds / seconds
    T = R * H
    S = np.zeros((network.aggregators, network.aggregators))
    for j in used:
        near = [other for other in (j, *network.neighbours[j]) if held[other]]
        for other in near:
            S[j, other] = held[other] / sum(held[k] for k in near)
    Delta = [(1 - rho**H) / (1 - rho) * value for value in gamma]
    if problem.pattern == "censyn":
        kappa = rho**T
        delta = (1 - rho**T) / (problem.mu * eta) * sum(b * g for b, g in zip(beta, gamma, strict=True))
    elif problem.pattern == "cenasy":
        met = sum(psi[j] * beta[j] for j in used)
        kappa = (1 - (1 - rho**H) * met) ** (R / (1 + tau_max))
        delta = sum(psi[j] * beta[j] * gamma[j] for j in used) / (problem.mu * eta * met)
    elif problem.pattern == "decsyn":
        kappa, delta = rho**T, 0.0
        for r in range(int(np.ceil(R))):
            counted = 1.0 if r + 1 <= R else (1 - rho ** (T - r * H)) / (1 - rho**H)
            delta += counted * rho ** (r * H) * float(beta @ np.linalg.matrix_power(S, r + 1) @ Delta)
    else:
        kappa = sum(beta[j] * rho ** (psi[j] * T / (1 + tau_max)) for j in used)
        delta = sum(beta[j] * (1 - rho ** (psi[j] * T)) / (1 - rho**H) * (S[j] @ Delta) for j in used)
    return {
        "kappa": kappa,
        "delta": delta,
        "bound": kappa * problem.initial_gap + delta,
        "beta": beta,
        "gamma": gamma,
        "xi": xi,
        "psi": psi,
        "tau_max": tau_max,
        "completion_seconds": completion,
        "event_seconds": events,
        "steps": T,
        "virtual_seconds": R * seconds,
    }


def assert_equal(found: Bound, expected: dict[str, Any]) -> None:
    assert set(vars(found)) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-10, atol=1e-300, err_msg=name)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(15))
def test_bound_is_the_formulas(pattern: Pattern, seed: int) -> None:
    problem, labels = random_problem(pattern, seed)
    for each in (
        problem,
        replace(problem, optimal_losses=None, noise=None, local_steps=1),
        replace(problem, frequencies=np.arange(1.0, 6.0), tau_max=2.5),
        replace(problem, frequencies=np.arange(6.0, 1.0, -1.0)),
        replace(problem, seconds=37.3),
        replace(problem, seconds=0.05),  # less than one aggregation
    ):
        assert_equal(evaluate(each, labels), direct(each, labels))


def test_cenasy_where_a_merge_takes_more_than_half_of_the_gap() -> None:
    """Where the aggregators' xi is so large that what is left of the gap is the smaller part, and merges differ."""
    problem, labels = random_problem("cenasy", 0, aggregators=2, lr=0.4, mu=1.0, frequencies=np.array([9.0, 1.0]))
    labels[:], labels[0] = 0, 1
    assert_equal(evaluate(problem, labels), direct(problem, labels))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_client_is_enough(pattern: Pattern) -> None:
    problem, labels = random_problem(pattern, 3)
    labels[:] = -1
    labels[7] = 4
    assert_equal(evaluate(problem, labels), direct(problem, labels))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_events_are_those_of_the_network(pattern: Pattern) -> None:
    problem, labels = random_problem(pattern, 0)
    downloads = np.random.default_rng(1).uniform(0.1, 1, problem.network.upload_seconds.shape)
    for network in (problem.network, replace(problem.network, download_seconds=downloads)):
        np.testing.assert_allclose(
            evaluate(replace(problem, network=network), labels).event_seconds,
            event_seconds(network, labels, pattern, problem.intra_rounds),
            rtol=1e-14,
        )


def test_decsyn_on_a_long_path_over_many_aggregations() -> None:
    """Slow mixing: every power of S counts."""
    problem, _ = random_problem("decsyn", 1, 40, 20, nx.path_graph(20), steps=6 * 700, lr=0.001, mu=0.1)
    labels = np.arange(40) % 20
    assert_equal(evaluate(problem, labels), direct(problem, labels))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("mu", "lr"), [(1e-9, 1e-4), (9.9999, 0.1)])
def test_nothing_cancels_at_the_ends_of_the_range(pattern: Pattern, mu: float, lr: float) -> None:
    """With one aggregator all four are geometric sums, here in fifty digits."""
    problem, _ = random_problem(pattern, 0, aggregators=1, mu=mu, lr=lr, steps=600)
    found = evaluate(problem, np.zeros(12, np.int64))
    with localcontext() as context:
        context.prec = 50
        drop = Decimal(mu * lr)
        kappa = (1 - drop) ** 600
        sum_ = 1 / drop if pattern == "cenasy" else (1 - kappa) / drop
    assert found.kappa == pytest.approx(float(kappa), rel=1e-10 if mu < 1 else 1e-5, abs=0)
    assert found.delta == pytest.approx(float(sum_) * found.gamma[0], rel=1e-11)


class Quadratics:
    """Clients with ``f_i(w) = (w - c_i)' A_i (w - c_i) / 2`` and different A_i."""

    def __init__(self, seed: int, clients: int = 12, width: int = 4) -> None:
        rng = np.random.default_rng(seed)
        turns = [np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(clients)]
        self.hessians = np.stack([q @ np.diag(rng.uniform(1, 1.3, width)) @ q.T for q in turns])
        self.centres = 0.3 * rng.normal(size=(clients, width)) + 2
        self.mu = float(np.linalg.eigvalsh(self.hessians).min())
        self.smoothness = float(np.linalg.eigvalsh(self.hessians).max())

    def mean(self, shares: Floats) -> tuple[Floats, Floats]:
        """A and b of the weighted mean loss's gradient A w - b."""
        steep = np.einsum("i,ijk->jk", shares, self.hessians)
        return steep, np.einsum("i,ijk,ik->j", shares, self.hessians, self.centres)

    def loss(self, shares: Floats, w: Floats) -> float:
        return float(
            sum(p * (w - c) @ a @ (w - c) / 2 for p, a, c in zip(shares, self.hessians, self.centres, strict=True))
        )

    def least(self, shares: Floats) -> float:
        return self.loss(shares, np.asarray(np.linalg.solve(*self.mean(shares)), np.float64))


@pytest.mark.parametrize("pattern", ["censyn", "decsyn"])
@pytest.mark.parametrize("seed", range(4))
def test_gradient_descent_stays_below_the_bound(pattern: Pattern, seed: int) -> None:
    """Theorems 1 and 3, with every constant known: xi_j is the maximum met on the way."""
    quadratics = Quadratics(seed)
    problem, _ = random_problem(pattern, seed, graph=nx.cycle_graph(5), intra_rounds=4, local_steps=1)
    labels = np.arange(12) % 5
    lr = 0.3 * quadratics.mu / (2 * quadratics.smoothness**2)
    shares = problem.sizes / problem.sizes.sum()
    beta = np.bincount(labels, shares)
    phi = np.where(labels == np.arange(5)[:, None], shares, 0) / beta[:, None]
    near = (nx.to_numpy_array(nx.cycle_graph(5)) + np.eye(5)) * beta
    mix = near / near.sum(axis=1, keepdims=True) if pattern == "decsyn" else np.tile(beta, (5, 1))
    whole, own = quadratics.mean(shares), [quadratics.mean(row) for row in phi]

    models, xi, errors = np.zeros((5, 4)), np.zeros(5), []
    least = quadratics.least(shares)
    gap = quadratics.loss(shares, models[0]) - least
    for _ in range(40):
        for _ in range(4):
            gradients = np.stack([a @ w - b for (a, b), w in zip(own, models, strict=True)])
            toward = models @ whole[0] - whole[1]
            xi = np.maximum(xi, ((gradients - toward) ** 2).sum(axis=1))
            models = models - lr * gradients
        models = mix @ models
        errors.append(quadratics.loss(shares, beta @ models) - least)

    problem = replace(
        problem,
        deviations=np.sqrt(xi[labels])[:, None] * np.eye(5)[labels],
        lr=lr,
        mu=quadratics.mu,
        smoothness=quadratics.smoothness,
        initial_gap=gap,
        optimal_losses=None,
        noise=None,
        cluster_optimum=max(quadratics.least(row) for row in phi),
    )
    bounds = [evaluate(replace(problem, steps=4 * r), labels) for r in range(1, 41)]
    np.testing.assert_allclose(bounds[-1].xi, xi)
    assert all(error <= found.bound for error, found in zip(errors, bounds, strict=True))
    assert errors[0] > bounds[-1].bound  # the bound says something, and needs its kappa


BAD: dict[str, dict[str, Any]] = {
    "method.pattern = 'ring'": {"pattern": "ring"},
    "rounds = 0: must be at least 1": {"steps": 0},
    "rounds = 13: must be a multiple of method.intra_rounds x local.steps = 6": {"steps": 13},
    "method.intra_rounds = 0": {"intra_rounds": 0},
    "local.steps = 0": {"local_steps": 0},
    "local.lr = nan: must be positive": {"lr": float("nan")},
    "local.lr = 0": {"lr": 0.0},
    "clustering.mu = 3.0: must be positive and less than 1 / local.lr = 2": {"mu": 3.0, "lr": 0.5},
    "clustering.mu = 2.0: must be positive and less than 1 / local.lr = 2": {"mu": 2.0, "lr": 0.5},
    "clustering.mu = 0.0": {"mu": 0.0},
    "clustering.smoothness = -1.0": {"smoothness": -1.0},
    "clustering.initial_gap = -0.1": {"initial_gap": -0.1},
    "clustering.cluster_optimum = 0.0: must be at least the mean optimal loss": {"cluster_optimum": 0.0},
    "clustering.tau_max = -1.0": {"tau_max": -1.0},
    "clustering.seconds = inf": {"seconds": float("inf")},
    "samples of client 0 = 0.0: must be positive": {"sizes": np.arange(12.0)},
    r"samples of client: shape \[3\]: must be \[12\]": {"sizes": np.ones(3)},
    r"deviations of client: shape \[12\]": {"deviations": np.ones(12)},
    "deviations of client 5 = .* must be finite": {"deviations": np.where(np.arange(12) == 5, np.nan, 1.0)[:, None]},
    "time limit of aggregator 0 = nan": {"limits": np.full(5, np.nan)},
    "optimal loss of client 0 = inf": {"optimal_losses": np.full(12, np.inf)},
    "noise of client 0 = -1.0: must be at least 0": {"noise": np.full(12, -1.0)},
    "frequency of aggregator 0 = 0.0: must be positive": {"frequencies": np.arange(5.0)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_numbers_are_named(message: str) -> None:
    problem, labels = random_problem("cenasy", 0)
    check(problem)
    with pytest.raises(InputError, match=message):
        check(replace(problem, **BAD[message]))
    with pytest.raises(InputError, match=message):
        evaluate(replace(problem, **BAD[message]), labels)


def test_frequencies_of_the_network_are_no_matter_in_synchronous_patterns() -> None:
    problem, labels = random_problem("censyn", 0, seconds=9.0)
    own = replace(problem, network=replace(problem.network, frequencies=np.arange(1.0, 6.0)))
    assert evaluate(own, labels).bound == evaluate(problem, labels).bound


def test_bad_labels_are_refused() -> None:
    problem, labels = random_problem("censyn", 0)
    for bad in (labels[:-1], np.full(12, 5), np.full(12, -2), np.full(12, -1)):
        with pytest.raises(InputError, match="labels"):
            evaluate(problem, bad)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_clock_that_stands_still(pattern: Pattern) -> None:
    problem, labels = random_problem(pattern, 0)
    seconds = {name: value for name, value in vars(problem.network).items() if "seconds" in name and value is not None}
    zero = {name: np.zeros_like(value) for name, value in seconds.items()}
    problem = replace(problem, network=replace(problem.network, **zero))
    for each in (problem, replace(problem, seconds=3.0)):
        if pattern.endswith("syn") and each.seconds is None:
            assert evaluate(each, labels).virtual_seconds == 0
        else:
            with pytest.raises(InputError, match="network: an event of aggregator 0 takes 0 seconds"):
                evaluate(each, labels)
