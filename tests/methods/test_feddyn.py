"""FedDyn against a loop by hand in the paper's own terms, and the optimum that it ends in."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll import InputError, LocalRule, Method, fedavg, feddyn
from atoll.faults.dropouts import lose_clients
from atoll.local.rule import sgd
from atoll.methods.papers.feddyn import SubtractDrift
from atoll.methods.parts.equal_clients import SHARE
from atoll.support.arrays import Floats
from tests.methods.twins import LR, POPULATION, RULE, START, count_alike, gradients, run, server

ALPHA = 0.4


def by_hand(method: Method, theta: Floats, lost: Callable[[int, int], bool]) -> Iterator[Floats]:
    """Yield theta after each round, from the paper's h and the gradients of the L_k."""
    count = len(POPULATION)
    h, slopes = np.zeros(3), np.zeros((count, 3))
    for event in method.schedule.events:
        ends = []
        for k in (k for k in event.cohort.tolist() if not lost(event.index, k)):
            w = theta
            for gradient in gradients(event, k):
                w = w - LR * 0.9**event.round * (gradient(w) - slopes[k] + ALPHA * (w - theta))
            slopes[k] = slopes[k] - ALPHA * (w - theta)
            ends.append(w)
        if ends:
            h = h - ALPHA / count * sum(w - theta for w in ends)
            theta = np.mean(ends, axis=0) - h / ALPHA
        yield theta


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_it_is_the_loop_by_hand(fraction: float) -> None:
    method = feddyn(POPULATION, RULE, 12, ALPHA, fraction)
    for state, theta in zip(run(method), by_hand(method, START, lambda *_: False), strict=True):
        np.testing.assert_allclose(server(state), theta, rtol=0, atol=1e-10)
        assert state.server is not None
        assert set(state.server) == {"0.weight"}


def test_those_who_do_not_answer_count_for_nothing() -> None:
    method = feddyn(POPULATION, RULE, 10, ALPHA, 0.5)
    lossy = replace(method, schedule=lose_clients(method.schedule, seed=3, dropout=0.6))
    assert any(not len(event.cohort) for event in lossy.schedule.events)
    there = [set(event.cohort.tolist()) for event in lossy.schedule.events]
    for state, theta in zip(run(lossy), by_hand(method, START, lambda e, k: k not in there[e]), strict=True):
        np.testing.assert_allclose(server(state), theta, rtol=0, atol=1e-10)


@pytest.mark.more
def test_it_ends_where_the_sum_of_losses_is_least() -> None:
    """FedAvg with several local steps does not: see test_scaffold."""
    x, y = POPULATION.data.inputs, POPULATION.data.targets
    systems = [POPULATION.samples(k) for k in range(len(POPULATION))]
    hessian = sum(x[r].T @ x[r] / len(r) for r in systems)
    best = np.linalg.solve(hessian, sum(x[r].T @ y[r] / len(r) for r in systems))
    last = run(feddyn(POPULATION, LocalRule(sgd, 0.2, 5, "full"), 100, 0.5, 1.0))[-1]
    np.testing.assert_allclose(server(last), best, atol=1e-6)


def test_its_clients_go_fedavgs_way_as_alpha_goes_to_0_but_its_server_does_not() -> None:
    """After one round with everybody the paper's server has gone twice as far, whatever alpha."""
    (ours,) = run(feddyn(POPULATION, RULE, 1, 1e-300, 1.0))
    (plain,) = run(count_alike(fedavg(POPULATION, RULE, 1, 1.0)))
    np.testing.assert_allclose(server(ours), 2 * server(plain) - START, rtol=0, atol=1e-12)


def test_a_proximal_term_of_the_rules_own_is_refused() -> None:
    with pytest.raises(InputError, match=r"local\.proximal = 0\.1: .*'feddyn', whose quadratic term"):
        feddyn(POPULATION, replace(RULE, proximal=0.1), 2)


def test_buffers_do_not_drift() -> None:
    before = {name: torch.zeros(1) for name in ("w", "b")}
    merged = {name: torch.full((1,), 2.0) for name in ("w", "b")} | {SHARE: torch.tensor(1.0)}
    moved, drift = SubtractDrift(frozenset({"b"}))(before, merged, None)
    assert (float(moved["b"]), float(moved["w"]), list(drift or {})) == (2.0, 4.0, ["w"])
