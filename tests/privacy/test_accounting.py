"""Epsilon is that of compositions written by hand with dp-accounting's events, and of textbooks."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from atoll import Experiment, Settings
from atoll.privacy.accounting import epsilon_of, epsilon_of_all, event_of, most_releases
from atoll.privacy.mechanism import Cost, Mechanism, response_noise
from atoll.schedules.events import Schedule
from tests.tiers import thinned

dp = pytest.importorskip("dp_accounting")

DELTA = 1e-5


def by_hand(events: list[object], relation: object, delta: float = DELTA) -> float:
    """Compose events one by one in the default steps of dp-accounting."""
    accountant = dp.pld.PLDAccountant(relation)
    for event in events:
        accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def gaussian(mu: float, delta: float = DELTA) -> float:
    """Return epsilon of mu-Gaussian differential privacy in closed form (Balle and Wang 2018; Dong et al. 2022)."""

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 0, 700, xtol=1e-12))


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    import dp_accounting.pld  # noqa: F401


@pytest.mark.parametrize(("noise", "releases"), [(50.0, 1), (8.0, 4), (2.0, 3), (1.0, 10), (0.7, 30)])
def test_gaussians_are_the_textbooks(noise: float, releases: int) -> None:
    """n releases with noise z are one with z / sqrt(n); with replacement the sensitivity is twice as great."""
    known = gaussian(math.sqrt(releases) / noise)
    assert 0 <= epsilon_of(Cost((noise,)), releases, DELTA) - known < 1e-6 * max(1, known)
    twice = gaussian(2 * math.sqrt(releases) / noise)
    replaced = epsilon_of(Cost((noise,), "replace"), releases, DELTA)
    assert abs(replaced - twice) < (1e-6 if twice < 60 else 1e-4)


@pytest.mark.parametrize("noise", [0.93, 1e-3])  # e^epsilon is too large a number with both
@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_with_next_to_no_noise_epsilon_is_a_bound(noise: float, adjacency: Any) -> None:
    """Of Gaussians the mean loss and a few deviations, of choices all they can cost."""
    releases, choice = 1000, (response_noise(4, 2.0), 4)
    mu = math.sqrt(releases) * (2 if adjacency == "replace" else 1) / noise
    plain = epsilon_of(Cost((noise,), adjacency), releases, DELTA)
    assert mu**2 / 2 + mu * norm.isf(DELTA) < plain < mu**2 / 2 + 5 * mu
    assert epsilon_of(Cost((noise,), adjacency, choice), releases, DELTA) == pytest.approx(plain + 2 * releases)


@pytest.mark.parametrize(("clusters", "epsilon"), [(2, 0.5), (4, 1.0), (4, 3.0)])
def test_randomised_response_is_the_textbooks(clusters: int, epsilon: float) -> None:
    """P(own) / P(other) = e^epsilon (Kairouz et al. 2016): without delta, that is what a choice between two costs."""
    for adjacency in ("replace", "zero-out"):
        cost = Cost((1e6,), adjacency, (response_noise(clusters, epsilon), clusters))
        assert epsilon_of(cost, 1, 1e-9) == pytest.approx(epsilon, abs=1e-3)
    uniform = response_noise(clusters, epsilon)
    assert (1 - uniform + uniform / clusters) / (uniform / clusters) == pytest.approx(math.exp(epsilon))


def test_many_choices_compose() -> None:
    """Of n binary responses the privacy loss is epsilon (2 i - n), i of them true: an exact sum for delta."""
    each, releases = 1.0, 12
    cost = Cost((1e6,), "zero-out", (response_noise(2, each), 2))
    found, true = epsilon_of(cost, releases, DELTA), math.exp(each) / (1 + math.exp(each))
    losses = each * (2 * np.arange(releases + 1) - releases)
    likely = binom.pmf(np.arange(releases + 1), releases, true)

    def delta(epsilon: float) -> float:
        return float((likely * np.maximum(1 - np.exp(epsilon - losses), 0)).sum())

    exact = float(brentq(lambda epsilon: delta(epsilon) - DELTA, 0, releases * each))
    assert each < exact < releases * each
    assert found == pytest.approx(exact, abs=0.02)
    assert found >= exact


def test_counts_are_composed_with_sums() -> None:
    """A vector with noise z and a count with noise y are one Gaussian of 1 / z^2 + 1 / y^2."""
    known = gaussian(math.sqrt(3 * (1 / 4 + 1 / 25)))
    assert epsilon_of(Cost((2.0, 5.0)), 3, DELTA) == pytest.approx(known, abs=1e-5)


def test_a_choice_costs_the_same_whatever_the_adjacency() -> None:
    """And a Gaussian beside it what it costs alone."""
    response = (response_noise(2, 1e-9), 2)
    alone, beside = Cost((2.0,)), Cost((2.0,), "zero-out", response)
    assert epsilon_of(beside, 3, DELTA) == pytest.approx(epsilon_of(alone, 3, DELTA), abs=2e-3)
    drawn = Mechanism("client", 1.0, 2.0, DELTA, identity_epsilon=1.5, identity="exponential").cost(4, True, False)
    assert drawn.response == (pytest.approx(2 / (1 + math.exp(1.5))), 2)


def test_no_release_costs_nothing_and_no_noise_everything() -> None:
    assert epsilon_of(Cost((1.0,)), 0, DELTA) == 0
    assert epsilon_of(Cost((0.0,)), 1, DELTA) == math.inf
    assert epsilon_of(Cost((1.0, 0.0)), 1, DELTA) == math.inf
    assert epsilon_of_all(((Cost((1.0,)), 3), (Cost((0.0,)), 1)), DELTA) == math.inf
    assert epsilon_of_all(((Cost((1.0,)), 3), (Cost((0.0,)), 0)), DELTA) == epsilon_of(Cost((1.0,)), 3, DELTA)


def test_the_most_releases_are_the_last_within() -> None:
    cost = Cost((3.0,))
    found = most_releases(cost, DELTA, 4.0, 100)
    assert epsilon_of(cost, found, DELTA) <= 4.0 < epsilon_of(cost, found + 1, DELTA)
    assert most_releases(cost, DELTA, 0.01, 100) == 0
    assert most_releases(cost, DELTA, 4.0, 3) == 3


FLAT = {"rounds": 3, "data.clients": 24, "model.name": "linear", "local.steps": 1, "clustering.clusters": 3}
SERVER = {"privacy.trust": "server", "privacy.clip": 1.0, "privacy.noise": 2.0}
NETWORK = {"rounds": 12, "local.steps": 2, "method.intra_rounds": 2, "network.bandwidth_hz": 1e4}
AGGREGATOR = SERVER | {"privacy.trust": "aggregator"}
CHOOSING = {"data.partition": "rotated", "method.clusters": 4, "method.fraction": 0.5, "privacy.count_noise": 6.0}

SCHEDULES = {
    "fedavg": FLAT | SERVER | {"method.name": "fedavg", "method.fraction": 0.4},
    "fedcluster": FLAT | SERVER | {"method.name": "fedcluster", "method.fraction": 0.5},
    "fedavgm": FLAT | SERVER | {"method.name": "fedavgm", "method.fraction": 0.4},
    "fedadam": FLAT | SERVER | {"method.name": "fedadam", "method.fraction": 0.4},
    "fedat": FLAT
    | SERVER
    | {"rounds": 9, "method.name": "fedat", "method.tiers": 3, "method.fraction": 0.5, "privacy.adjacency": "replace"},
    "adaptive": FLAT
    | SERVER
    | {"method.name": "fedcluster", "method.fraction": 0.5, "privacy.quantile": 0.5, "privacy.quantile_noise": 3.0},
    "censyn": FLAT | AGGREGATOR | NETWORK | {"method.name": "hierarchical", "method.pattern": "censyn"},
    "cenasy": FLAT | AGGREGATOR | NETWORK | {"method.name": "hierarchical", "method.pattern": "cenasy"},
    "decasy": FLAT | AGGREGATOR | NETWORK | {"method.name": "hierarchical", "method.pattern": "decasy"},
    "hierfavg": FLAT | AGGREGATOR | NETWORK | {"method.name": "hierfavg"},
    "moving": FLAT
    | AGGREGATOR
    | NETWORK
    | {
        "method.name": "hierarchical",
        "method.pattern": "cenasy",
        "clustering.method": "comaw",
        "network.metres_per_round": 20.0,
        "network.recluster_every": 4,
        "rounds": 24,
    },
    "ifca": FLAT | SERVER | CHOOSING | {"method.name": "ifca"},
    "ifca gradients": FLAT | SERVER | CHOOSING | {"method.name": "ifca", "method.option": "gradients"},
    "cfl-mgd": FLAT | SERVER | CHOOSING | {"method.name": "cfl-mgd", "method.option": "gradients"},
    "fedavg local": FLAT | SERVER | {"method.name": "fedavg", "method.fraction": 0.4, "privacy.trust": "client"},
    "cenasy local": FLAT | NETWORK | SERVER | {"method.name": "hierarchical", "privacy.trust": "client"},
    "ifca local": FLAT
    | SERVER
    | {
        "method.name": "ifca",
        "method.clusters": 4,
        "method.fraction": 0.5,
        "data.partition": "rotated",
        "privacy.trust": "client",
        "privacy.identity_epsilon": 1.5,
        "privacy.adjacency": "replace",
    },
}


def settings_of(flat: dict[str, object]) -> Settings:
    """Return settings of a table with dotted keys, without what no function that they name takes."""
    table: dict[str, Any] = {}
    for path, value in flat.items():
        section, _, key = path.partition(".")
        if key:
            table.setdefault(section, {})[key] = value
        else:
            table[section] = value
    return Settings(**table)


def by_names(flat: dict[str, object]) -> dict[str, object]:
    """Leave out `privacy.count_noise` where models are divided by the cohort and no momentum travels."""
    needless = flat.get("method.option") == "gradients" and flat["method.name"] == "ifca"
    return {key: value for key, value in flat.items() if not (needless and key == "privacy.count_noise")}


@pytest.mark.parametrize("name", thinned(SCHEDULES, ("fedcluster", "cenasy")))
def test_each_schedule_costs_what_its_events_do(name: str) -> None:
    """Written by hand: every average that a client's model enters is a Gaussian mechanism, whatever its cluster."""
    flat = by_names(SCHEDULES[name])
    private = Experiment(settings_of(flat)).planned.private
    assert private is not None
    schedule, plan = private.plan.schedule, private.plan
    worst, events = worst_of(schedule, 24), []
    assert worst > 1, "once tells nothing of composition"
    z, adjacency = 2.0, flat.get("privacy.adjacency", "zero-out")
    for _ in range(worst):
        events.append(dp.GaussianDpEvent(z))
        if "privacy.count_noise" in flat:
            events.append(dp.GaussianDpEvent(6.0))
        if "privacy.quantile_noise" in flat:
            events.append(dp.GaussianDpEvent(3.0 / 0.5))  # a client counts as 1/2 or -1/2
        if "privacy.identity_epsilon" in flat:
            events.append(dp.RandomizedResponseDpEvent(4 / (math.exp(1.5) + 3), 4))
    relation = dp.NeighboringRelation.REPLACE_ONE if adjacency == "replace" else dp.NeighboringRelation.REPLACE_SPECIAL
    composed = dp.pld.PLDAccountant(relation)
    composed.compose(dp.ComposedDpEvent(events))
    assert plan.epsilon_after(len(schedule)) == pytest.approx(composed.get_epsilon(DELTA), abs=1e-6)
    assert plan.of_clusters().max() == plan.epsilon_after(len(schedule))


def worst_of(schedule: Schedule, clients: int) -> int:
    """Count, the slow way, the averages that each client's model enters; return the most."""
    seen = [0] * clients
    for event in schedule.events:
        for _ in range(event.intra_rounds):
            for client in event.cohort.tolist():
                seen[client] += 1
    return max(seen)


def test_twice_the_sensitivity_is_another_epsilon() -> None:
    """A deliberate error, factor 2 in sensitivity, does not pass the comparison that the schedules are held to."""
    right = by_hand([dp.GaussianDpEvent(2.0)] * 3, dp.NeighboringRelation.REPLACE_SPECIAL)
    assert epsilon_of(Cost((2.0,)), 3, DELTA) == pytest.approx(right, abs=1e-6)
    assert epsilon_of(Cost((1.0,)), 3, DELTA) != pytest.approx(right, abs=0.5)
    assert epsilon_of(Cost((4.0,)), 3, DELTA) != pytest.approx(right, abs=0.5)


def test_events_are_dp_accountings() -> None:
    event = event_of(Cost((2.0, 5.0), "replace", (0.3, 4)), 7, replaced=True)
    assert event == dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 7),
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(5.0), 7),
            *[dp.RandomizedResponseDpEvent(0.3, 4)] * 7,
        ]
    )


def test_disjoint_clusters_compose_in_parallel_and_a_client_that_moves_pays_on() -> None:
    fixed = Experiment(settings_of(SCHEDULES["cenasy"])).planned.private
    assert fixed is not None
    plan = fixed.plan
    works = np.bincount([c for event in plan.schedule.events for c in event.active], minlength=3)
    alone = [plan.epsilon(2 * int(count)) for count in works]  # T' = 2 averages a work, of its own clients alone
    assert plan.of_clusters() == pytest.approx(alone)
    assert sum(alone) > plan.of_clusters().max()
    moving = Experiment(settings_of(SCHEDULES["moving"])).planned.private
    assert moving is not None
    counts = np.zeros(24, int)
    for event in moving.plan.schedule.events:
        counts[event.cohort] += 2
    assert moving.plan.releases.tolist() == counts.tolist()
    movers = [k for k in range(24) if sum(k in own for own in moving.plan.members) > 1]
    assert movers, "nobody moved, so nothing was tried"
    for cluster, own in enumerate(moving.plan.members):
        assert moving.plan.of_clusters()[cluster] == moving.plan.epsilon(int(counts[own].max(initial=0)))


def test_over_rounds_ends_at_the_total() -> None:
    private = Experiment(settings_of(SCHEDULES["fedcluster"])).planned.private
    assert private is not None
    rounds, epsilons = private.plan.over_rounds()
    assert rounds.tolist() == [0, 1, 2, 3]
    assert (np.diff(epsilons, axis=0) >= 0).all()
    assert epsilons[-1] == pytest.approx(private.plan.of_clusters())
