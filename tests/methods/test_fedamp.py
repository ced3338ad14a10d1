"""FedAMP (Huang et al. 2021) against a loop by hand of its two steps, its limit, and what it refuses."""

import numpy as np
import pytest

from atoll import InputError, LocalRule, Trainer, fedamp
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from tests.by_hand import FIRST, POPULATION, run, starts
from tests.methods.running import SEED, equal
from tests.methods.twins import LR, RULE
from tests.problems import linear_module


def test_it_is_the_loop_by_hand() -> None:
    penalty, alpha, sigma, clients = 2.0, 0.4, 3.0, len(POPULATION)
    method = fedamp(POPULATION, RULE, 8, penalty, alpha, sigma)
    draws, u = Trainer(linear_module(), POPULATION, RULE, SEED), [FIRST] * clients
    for event, state in zip(method.schedule.events, run(method), strict=True):
        w = list(u)
        for k in range(clients):
            for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, k, {})):
                x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
                gradient = x.T @ (x @ w[k] - y) / len(rows)
                w[k] = w[k] - LR * 0.9**event.round * (gradient + penalty / alpha * (w[k] - u[k]))
        for i in range(clients):
            xi = [alpha / sigma * np.exp(-((w[i] - w[j]) ** 2).sum() / sigma) for j in range(clients)]
            xi[i] = 1 - (sum(xi) - xi[i])
            u[i] = sum(share * each for share, each in zip(xi, w, strict=True))
        np.testing.assert_allclose(starts(state), u, rtol=0, atol=1e-10)


def test_far_apart_clients_train_alone() -> None:
    """Their weights for each other vanish, so each goes on from its own model."""
    for state in run(fedamp(POPULATION, RULE, 6, 0.0, 1e-9, 1e-8))[1:]:
        assert all(equal(own, state.clients[k]) for k, own in enumerate(state.starts))


def test_a_negative_weight_and_a_second_penalty_are_refused() -> None:
    with pytest.raises(InputError, match=r"method\.alpha = 2: must be at most method\.sigma / 7 = 1\.42857, so that"):
        fedamp(POPULATION, RULE, 2, alpha=2.0, sigma=10.0)
    with pytest.raises(InputError, match=r"local\.proximal = 0\.1: cannot be used with method\.name = 'fedamp'"):
        fedamp(POPULATION, LocalRule(sgd, LR, proximal=0.1), 2)
