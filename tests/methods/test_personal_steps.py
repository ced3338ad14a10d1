"""pFedMe, APFL and Per-FedAvg (2020) against loops by hand, their limits, and what they refuse."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import (
    Clock,
    Experiment,
    InputError,
    LocalRule,
    Method,
    Serial,
    State,
    Trainer,
    alone,
    apfl,
    fedavg,
    make_runs,
    perfedavg,
    pfedme,
    read_model,
    weigh_equally,
)
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.methods.papers.pfedme import TowardMean
from atoll.methods.parts.server_optimizers import buffers_of
from atoll.schedules.events import Event
from atoll.support.arrays import Floats
from tests.methods.running import SEED, equal, states_of, trainer_of
from tests.problems import as_vector, linear_module, quadratics

POPULATION, LR, STEPS = quadratics(clients=6), 0.05, 4
RULE = LocalRule(sgd, LR, STEPS, batch_size=2, lr_decay=0.9)
FIRST = as_vector(read_model(linear_module()))


def serial(method: Method) -> list[State]:
    return states_of(method, Serial(trainer_of(method, linear_module(), POPULATION)), linear_module())


def gradient(rows: Any, w: Floats) -> Floats:
    x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
    return np.asarray(x.T @ (x @ w - y) / len(rows))


def rows_of(event: Event, client: int, steps: int = STEPS) -> Any:
    draws = Trainer(linear_module(), POPULATION, LocalRule(sgd, LR, steps, batch_size=2), SEED)
    return draws.draw_rows(ClientTask(event.index, event.round, 0, 0, client, {}))


def compare(method: Method, expected: Any) -> None:
    """Compare the server's model and the clients' own with the loop's, after every round."""
    for state, (w, own) in zip(serial(method), expected, strict=True):
        assert state.server is not None
        np.testing.assert_allclose(as_vector(state.server), w, rtol=0, atol=1e-10)
        assert state.clients.keys() == own.keys()
        for client, kept in state.clients.items():
            np.testing.assert_allclose(as_vector(dict(kept)), own[client], rtol=0, atol=1e-10)


def test_pfedme_is_the_loop_by_hand() -> None:
    penalty, inner, inner_lr, beta = 2.0, 3, 0.04, 1.5
    method = pfedme(POPULATION, RULE, 8, penalty, inner, inner_lr, beta, 0.5)

    def by_hand() -> Any:
        w, own = FIRST, {}
        for event in method.schedule.events:
            eta, trained = LR * 0.9**event.round, []
            for k in event.cohort.tolist():
                local = theta = w
                for rows in rows_of(event, k):
                    for _ in range(inner):
                        theta = theta - inner_lr * (gradient(rows, theta) + penalty * (theta - local))
                    local = local - eta * penalty * (local - theta)
                trained.append(local)
                own[k] = theta
            w = (1 - beta) * w + beta * np.mean(trained, axis=0)
            yield w, dict(own)

    compare(method, by_hand())


def test_apfl_is_the_loop_by_hand() -> None:
    alpha = 0.3
    method = apfl(POPULATION, RULE, 8, alpha, 0.5)

    def by_hand() -> Any:
        w, own = FIRST, {}
        v = [FIRST] * len(POPULATION)
        for event in method.schedule.events:
            eta, trained = LR * 0.9**event.round, []
            for k in event.cohort.tolist():
                local = w
                for rows in rows_of(event, k):
                    of_mixed = gradient(rows, alpha * v[k] + (1 - alpha) * local)
                    local = local - eta * gradient(rows, local)
                    v[k] = v[k] - eta * alpha * of_mixed
                trained.append(local)
                own[k] = alpha * v[k] + (1 - alpha) * local
            w = np.mean(trained, axis=0)
            yield w, dict(own)

    compare(method, by_hand())


@pytest.mark.parametrize("variant", ["first-order", "hessian-free"])
def test_perfedavg_is_the_loop_by_hand(variant: Any) -> None:
    """A quadratic's Hessian is exact, so the hessian-free variant takes the step with it."""
    alpha = 0.2
    method = perfedavg(POPULATION, RULE, 8, variant, alpha, 1e-3, 0.5)

    def by_hand() -> Any:
        w, own = FIRST, {}
        for event in method.schedule.events:
            trained = []
            for k in event.cohort.tolist():
                local, drawn = w, rows_of(event, k, 3 * STEPS)
                for first, second, third in zip(
                    drawn[:STEPS], drawn[STEPS : 2 * STEPS], drawn[2 * STEPS :], strict=True
                ):
                    step = gradient(first, local - alpha * gradient(second, local))
                    if variant == "hessian-free":
                        x = POPULATION.data.inputs[third]
                        step = step - alpha * x.T @ x @ step / len(third)
                    local = local - LR * 0.9**event.round * step
                trained.append(local)
                own[k] = w - alpha * gradient(POPULATION.samples(k), w)
            w = np.mean(trained, axis=0)
            yield w, dict(own)

    compare(method, by_hand())


def same_servers(ours: Method, theirs: Method) -> None:
    for one, other in zip(serial(ours), serial(weigh_equally(theirs)), strict=True):
        assert equal(one.server, other.server)


def test_pfedme_whose_local_models_are_its_personal_ones_is_fedavg_to_the_bit() -> None:
    """With eta * lambda = 1 and one inner step, whose pull is zero: the rate is the inner one."""
    rule = LocalRule(sgd, 0.5, STEPS, batch_size=2)
    same_servers(
        pfedme(POPULATION, rule, 6, 2.0, 1, LR, 1.0, 0.5), fedavg(POPULATION, LocalRule(sgd, LR, STEPS, 2), 6, 0.5)
    )


def test_pfedme_steps_past_the_mean_of_parameters_alone() -> None:
    """A variance beyond the mean could be negative."""
    before, merged = ({"w": torch.tensor([w]), "variance": torch.tensor([v])} for w, v in ((1.0, 1.0), (0.0, 0.1)))
    found, _ = TowardMean(1.5, frozenset({"variance"}))(before, merged, None)
    assert (found["w"].item(), found["variance"].item()) == (-0.5, pytest.approx(0.1))
    module = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    assert pfedme(POPULATION, RULE, 2, server_lr=1.5, module=module).server_rule == TowardMean(1.5, buffers_of(module))


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_apfls_server_is_fedavgs_to_the_bit(alpha: float) -> None:
    same_servers(apfl(POPULATION, RULE, 6, alpha, 0.5), fedavg(POPULATION, RULE, 6, 0.5))


def test_apfl_with_nothing_of_the_servers_model_trains_alone_to_the_bit() -> None:
    ours, theirs = serial(apfl(POPULATION, RULE, 6, 1.0, 0.5)), serial(alone(POPULATION, RULE, 6, 0.5))
    for one, other in zip(ours, theirs, strict=True):
        for k, kept in one.clients.items():
            assert equal({name: each for name, each in kept.items() if "@" not in name}, dict(other.clients[k]))


def with_statistics() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1), nn.BatchNorm1d(1)).double()


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_apfls_models_have_running_statistics_of_their_own(alpha: float) -> None:
    """The server's are FedAvg's to the bit; a client's, if nothing of it is the server's, those of training alone."""
    plain = weigh_equally(fedavg(POPULATION, RULE, 4, 0.5)), weigh_equally(alone(POPULATION, RULE, 4, 0.5))
    ours, server, own = (
        states_of(each, Serial(trainer_of(each, with_statistics(), POPULATION)), with_statistics())
        for each in (apfl(POPULATION, RULE, 4, alpha, 0.5), *plain)
    )
    for one, other, lone in zip(ours, server, own, strict=True):
        assert equal(one.server, other.server)
        for k, kept in one.clients.items():
            whole = {name: each for name, each in kept.items() if "@" not in name}
            assert alpha < 1 or equal(whole, dict(lone.clients[k]))


@pytest.mark.parametrize("variant", ["first-order", "hessian-free"])
def test_perfedavg_sends_the_running_statistics_of_the_model_that_it_sends(variant: Any) -> None:
    rule = LocalRule(sgd, LR, 1, batch_size=2)
    method, module = perfedavg(POPULATION, rule, 1, variant, 0.5, fraction=0.1), with_statistics()
    trained = states_of(method, Serial(trainer_of(method, with_statistics(), POPULATION)), with_statistics())[-1]
    client = int(method.schedule.events[0].cohort[0])
    batch = rows_of(method.schedule.events[0], client, 3)[1]
    for rows, found in ((batch, trained.server), (POPULATION.samples(client), dict(trained.clients[client]))):
        assert found is not None
        module.load_state_dict(with_statistics().state_dict())
        module(torch.from_numpy(POPULATION.data.inputs[rows]))
        for name in buffers_of(module):
            torch.testing.assert_close(found[name], module.state_dict()[name])


@pytest.mark.parametrize("variant", ["first-order", "hessian-free"])
def test_perfedavg_without_a_step_of_their_own_is_fedavg_to_the_bit(variant: Any) -> None:
    same_servers(perfedavg(POPULATION, RULE, 6, variant, 0.0, fraction=0.5), fedavg(POPULATION, RULE, 6, 0.5))


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        (lambda clock: pfedme(POPULATION, RULE, 1, inner_steps=3, clock=clock), 3 * 3 + 1),
        (lambda clock: apfl(POPULATION, RULE, 1, clock=clock), 2 * 3 + 1),
        (lambda clock: perfedavg(POPULATION, RULE, 1, clock=clock), 4 * 3 + 1),
        (lambda clock: perfedavg(POPULATION, RULE, 1, "first-order", clock=clock), 2 * 3 + 1),
    ],
)
def test_rounds_take_as_long_as_the_gradients_that_they_compute(method: Any, seconds: float) -> None:
    assert method(Clock(np.full(6, 3.0), np.full(6, 1.0))).schedule.events[0].seconds == seconds


WANTED: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 6, "samples": 12},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "method": {"fraction": 0.5},
    "run": {"executor": "serial"},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.name=pfedme", "method.penalty=0"], r"method\.penalty"),
        (["method.name=pfedme", "local.proximal=0.1"], r"local\.proximal = 0\.1: .*'pfedme'"),
        (["method.name=apfl", "method.alpha=1.1"], r"method\.alpha"),
        (["method.name=apfl", "local.optimizer=adam"], r"local\.optimizer = Adam: must be 'sgd' with .*'apfl'"),
        (["method.name=apfl", "run.executor=stacked"], r"run\.executor = 'stacked': .*keeps a state"),
        (["method.name=perfedavg", "local.optimizer=momentum"], r"local\.optimizer = SGD with momentum: .*'perfedavg'"),
        (["method.name=perfedavg", "method.variant=second"], r"method\.variant"),
        (["method.name=perfedavg", "method.delta=0"], r"method\.delta"),
    ],
)
def test_what_does_not_go_with_them_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment(make_runs(WANTED, changes=changes)[0]).check()
