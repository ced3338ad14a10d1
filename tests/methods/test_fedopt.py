"""Server optimisers against loops by hand and torch.optim's own, and where they are FedAvg to the bit."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll import InputError, Method, Serial, Trainer, fedadagrad, fedadam, fedavg, fedavgm, fedyogi, init, read_model
from atoll import train as go
from atoll.methods.parts.server_optimizers import Adaptive, HeavyBall, add_square, buffers_of
from atoll.support.arrays import Floats
from tests.methods.running import SEED, same_bits
from tests.methods.twins import POPULATION, RULE, START, descend, run, server, sizes

LARGE = 2.0**60


def deltas(method: Method, x: Floats, step: Callable[[Floats], Floats]) -> Iterator[Floats]:
    """Yield x after each round, in which `step` says how far it moves for the clients' mean change."""
    for event in method.schedule.events:
        ends = [descend(event, k, x) for k in event.cohort.tolist()]
        x = x + step(np.average(ends, axis=0, weights=sizes(event)) - x)
        yield x


def assert_equal(method: Method, step: Callable[[Floats], Floats]) -> None:
    for state, expected in zip(run(method), deltas(method, START, step), strict=True):
        np.testing.assert_allclose(server(state), expected, rtol=0, atol=1e-10)


def test_fedavgm_is_the_loop_by_hand() -> None:
    u = np.zeros(3)

    def step(delta: Floats) -> Floats:
        nonlocal u
        u = 0.8 * u + delta
        return 0.7 * u

    assert_equal(fedavgm(POPULATION, RULE, 10, 0.7, 0.8, 0.5), step)


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_the_adaptive_ones_are_algorithm_2_by_hand(name: str) -> None:
    """Without bias correction, tau outside the root, v from tau^2."""
    lr, beta1, beta2, tau = 0.05, 0.6, 0.95, 0.01
    m, v = np.zeros(3), np.full(3, tau**2)

    def step(delta: Floats) -> Floats:
        nonlocal m, v
        m = beta1 * m + (1 - beta1) * delta
        if name == "fedadagrad":
            v = v + delta**2
        elif name == "fedadam":
            v = beta2 * v + (1 - beta2) * delta**2
        else:
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        return lr * m / (np.sqrt(v) + tau)

    methods = {
        "fedadagrad": lambda: fedadagrad(POPULATION, RULE, 10, lr, beta1, tau, 0.5),
        "fedadam": lambda: fedadam(POPULATION, RULE, 10, lr, beta1, beta2, tau, 0.5),
        "fedyogi": lambda: fedyogi(POPULATION, RULE, 10, lr, beta1, beta2, tau, 0.5),
    }
    assert_equal(methods[name](), step)


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (HeavyBall(0.3, 0.9), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
        (
            Adaptive(0.3, 0.0, 0.0, 0.01, add_square),
            lambda p: torch.optim.Adagrad(p, lr=0.3, eps=0.01, initial_accumulator_value=1e-4),
        ),
    ],
    ids=["fedavgm", "fedadagrad"],
)
def test_they_are_pytorchs_optimisers_where_it_has_them(
    rule: HeavyBall | Adaptive, make: Callable[..., torch.optim.Optimizer]
) -> None:
    torch.manual_seed(0)
    ours, state = {"w": torch.randn(5, dtype=torch.float64)}, None
    theirs = torch.nn.Parameter(ours["w"].clone())
    optimizer = make([theirs])
    for _ in range(10):
        delta = torch.randn(5, dtype=torch.float64)
        theirs.grad = -delta
        optimizer.step()
        ours, state = rule(ours, {"w": ours["w"] + delta}, state)
        torch.testing.assert_close(ours["w"], theirs.detach(), rtol=0, atol=1e-12)


def test_they_are_fedavg_to_the_bit_in_their_limits() -> None:
    plain = run(fedavg(POPULATION, RULE, 8, 0.5))
    limits = [
        fedavgm(POPULATION, RULE, 8, 1.0, 0.0, 0.5),
        fedadam(POPULATION, RULE, 8, LARGE, 0.0, 0.0, LARGE, 0.5),
        fedyogi(POPULATION, RULE, 8, 2 * LARGE, 0.0, 0.0, LARGE, 0.5),
        fedadagrad(POPULATION, RULE, 8, 2 * LARGE, 0.0, LARGE, 0.5),
    ]
    for method in limits:
        assert all(np.array_equal(server(a), server(b)) for a, b in zip(run(method), plain, strict=True))


def test_what_is_no_parameter_is_averaged() -> None:
    """A step of Adam could make a running variance negative."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1)).double()
    assert buffers_of(module) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    method = fedadam(POPULATION, RULE, 1, 0.3, fraction=1.0, module=module)
    start = read_model(module)
    both = []
    for each in (method, fedavg(POPULATION, RULE, 1, 1.0)):
        (step,) = go(each, Serial(Trainer(module, POPULATION, RULE, SEED)), init(each, start))
        assert step.state.server is not None
        both.append(step.state.server)
    assert [name for name in start if both[0][name].equal(both[1][name])] == sorted(
        buffers_of(module), key=list(start).index
    )


def test_a_server_rule_needs_a_server() -> None:
    method = fedavgm(POPULATION, RULE, 2)
    with pytest.raises(InputError, match=r"server_rule: the schedule has no server's model"):
        replace(method, schedule=replace(method.schedule, has_server=False))


def test_what_the_server_keeps_is_the_same_however_often_it_is_run() -> None:
    same_bits(run(fedadam(POPULATION, RULE, 4)), run(fedadam(POPULATION, RULE, 4)))
