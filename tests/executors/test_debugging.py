"""`run.debug`: errors name event, cluster, client and step, and keep their traceback; the results stay."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as hooks

from atoll import LocalRule, RunError, Serial, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort
from atoll.local.models import Model, mlp
from atoll.local.rule import adam, momentum, sgd
from atoll.methods.parts.gradient_trainers import MetaTrainer, MixedTrainer
from atoll.support.arrays import Floats, Ids
from tests.problems import as_vector, classification, network

POPULATION = classification(clients=7)
RULE = LocalRule(sgd, lr=0.1, steps=5, batch_size=4)
WHERE = "event 3, cluster 1, client 2, step 4: training failed"


def cohort_of(module: nn.Module, clients: Sequence[int] = (0, 2, 5)) -> Cohort:
    weights = np.arange(1.0, len(clients) + 1)
    return Cohort(3, 3, 0, 1, np.array(clients), weights, float(weights.sum()), read_model(module))


class Troubled(nn.Module):
    """Does something else to its outputs at one client's n-th step: the batches of `POPULATION` tell it which."""

    def __init__(self, trouble: Any, client: int, step: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.trouble, self.step = trouble, step
        self.samples = torch.from_numpy(POPULATION.data.inputs[POPULATION.samples(client)])
        self.seen = 0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        self.seen += bool((self.samples == inputs[0]).all(dim=1).any())
        return self.trouble(outputs) if self.seen == self.step else outputs


def fail(outputs: Tensor) -> Tensor:
    raise ValueError("no such thing")


def divide(outputs: Tensor) -> Tensor:
    return outputs / (outputs - outputs)


def overflow(outputs: Tensor) -> Tensor:
    return torch.sqrt(outputs * 0)  # the slope of the root is infinite at 0, and infinity times 0 is no number


@pytest.mark.parametrize(
    ("trouble", "told", "place"),
    [
        (fail, r"ValueError: no such thing", "in fail"),
        (divide, r"RuntimeError: Function 'LogSoftmax\w+' returned nan values", "in cross_entropy"),
        (overflow, r"RuntimeError: Function 'Mul\w+' returned nan values", "in overflow"),
    ],
)
def test_the_first_bad_step_is_named_and_the_traceback_is_kept(trouble: Any, told: str, place: str) -> None:
    module = Troubled(trouble, client=2, step=4).double()
    with pytest.raises(RunError, match=rf"{WHERE} \({told}") as caught:
        Serial(Trainer(module, POPULATION, RULE, 0, by_hand=False), debug=True).train(
            [cohort_of(module)], average_models
        )
    (note,) = caught.value.__notes__
    assert place in note  # where the forward pass was, for what the backward pass meets too
    assert "Traceback" in note
    assert not hooks._global_optimizer_pre_hooks
    assert not hooks._global_optimizer_post_hooks
    assert not torch.is_anomaly_enabled()


class Jumping(torch.optim.SGD):
    """Its third step is infinite."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.steps += 1
        if self.steps == 3:
            with torch.no_grad():
                self.param_groups[0]["params"][1].fill_(torch.inf)


class Infinite(torch.autograd.Function):
    """Has an infinite gradient, which PyTorch's anomaly detection takes no notice of."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, torch.inf)


class Steep(nn.Sequential):
    """Has infinite gradients."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = Infinite.apply(super().forward(inputs))  # type: ignore[no-untyped-call]
        return outputs


def test_a_parameter_that_becomes_infinite_is_named() -> None:
    trainer = Trainer(network(), POPULATION, LocalRule(Jumping, lr=0.1, steps=5, batch_size=4), 0, by_hand=False)
    message = r"client 0, step 3: training failed \(BadStep: '0.bias' is not finite after the step\)"
    with pytest.raises(RunError, match=message):
        Serial(trainer, debug=True).train([cohort_of(network())], average_models)


def test_a_gradient_that_is_infinite_is_named() -> None:
    module = Steep(nn.Linear(4, 3)).double()
    module[0].weight.requires_grad_(False)  # infinity times the inputs would be no number
    message = r"client 0, step 1: training failed \(BadStep: the gradient of '0.bias' is not finite\)"
    with pytest.raises(RunError, match=message):
        Serial(Trainer(module, POPULATION, RULE, 0, by_hand=False), debug=True).train(
            [cohort_of(module)], average_models
        )


class Spoiling(nn.Module):
    """Counts to an infinite number in a buffer, which no output depends on, or gives an infinite loss, or output."""

    calls: Tensor

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(4, 3), what
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, third = self.layer(inputs), self.calls == 2
        self.calls = torch.tensor(torch.inf) if third and self.what == "buffer" else self.calls + 1
        return torch.as_tensor(outputs + torch.inf if third and self.what == "loss" else outputs)


def far(outputs: Tensor, _targets: Tensor) -> Tensor:
    """Return losses whose slope is one."""
    return outputs[:, 0]


@pytest.mark.parametrize(
    ("what", "told"), [("buffer", "'calls' is not finite after the step"), ("loss", "the loss is not finite")]
)
def test_what_is_infinite_although_gradients_and_parameters_are_finite_is_named(what: str, told: str) -> None:
    module = Spoiling(what).double()
    trainer = Trainer(module, POPULATION, RULE, 0, by_hand=False)
    trainer.batches.losses = far
    with pytest.raises(RunError, match=rf"client 0, step 3: training failed \(BadStep: {told}\)"):
        Serial(trainer, debug=True).train([cohort_of(module)], average_models)


class Fifth(nn.Module):
    """Its fifth forward pass has no finite gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return overflow(self.layer(inputs)) if self.calls == 5 else torch.as_tensor(self.layer(inputs))


OWN_STEPS = [partial(MixedTrainer, alpha=0.5), partial(MetaTrainer, inner_lr=0.1, delta=None)]


@pytest.mark.parametrize("make", OWN_STEPS)
def test_steps_at_several_models_are_counted_and_stay_the_same(make: Any) -> None:
    """Each batch takes two, after two gradients in all."""
    module = Fifth().double()
    with pytest.raises(RunError, match=r"client 0, step 5: training failed"):
        Serial(make(module, POPULATION, RULE, 0, by_hand=False), debug=True).train([cohort_of(module)], average_models)
    found = [
        Serial(make(network(), POPULATION, RULE, 0, by_hand=not debug), debug).train(
            [cohort_of(network())], average_models
        )
        for debug in (False, True)
    ]
    assert as_vector(found[0][0].model).tobytes() == as_vector(found[1][0].model).tobytes()


@pytest.mark.parametrize("optimizer", [sgd, momentum, adam])
def test_nothing_changes_where_nothing_is_wrong(optimizer: Any) -> None:
    rule = LocalRule(optimizer, lr=0.1, steps=5, batch_size=4)
    (plain,) = Serial(Trainer(network(), POPULATION, rule, 0)).train([cohort_of(network())], average_models)
    (watched,) = Serial(Trainer(network(), POPULATION, rule, 0, by_hand=False), debug=True).train(
        [cohort_of(network())], average_models
    )
    assert as_vector(watched.model).tobytes() == as_vector(plain.model).tobytes()
    assert watched.loss == plain.loss


def test_dense_networks_are_watched_too() -> None:
    torch.manual_seed(0)
    module = mlp((4,), 3).double()
    rule = LocalRule(sgd, lr=1e200, steps=5, batch_size=4)
    with pytest.raises(RunError, match=r"event 3, cluster 1, client 0, step [23]: training failed"):
        Serial(Trainer(module, POPULATION, rule, 0, by_hand=False), debug=True).train(
            [cohort_of(module)], average_models
        )


def test_dense_networks_give_the_same_to_rounding() -> None:
    torch.manual_seed(0)
    module = mlp((4,), 3).double()
    found = [
        Serial(Trainer(module, POPULATION, RULE, 0, by_hand=not debug), debug).train([cohort], average_models)[0].model
        for cohort in [cohort_of(module)]
        for debug in (False, True)
    ]
    np.testing.assert_allclose(as_vector(found[1]), as_vector(found[0]), rtol=1e-10)


class Unmeasurable(Trainer):
    """Cannot measure clients of these numbers."""

    bad: tuple[int, ...] = (5,)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        if set(self.bad) & set(clients.tolist()):
            raise KeyError("label")
        return super().losses(models, clients, round_)


def test_measuring_that_fails_names_the_client() -> None:
    executor = Serial(Unmeasurable(network(), POPULATION, RULE, 0), debug=True)
    models = [read_model(network())]
    message = r"round 7, client 5: measuring the clusters' models failed \(KeyError: 'label'\)"
    with pytest.raises(RunError, match=message) as caught:
        executor.losses(models, np.array([1, 5, 2]), 7)
    assert "Traceback" in caught.value.__notes__[0]
    assert executor.losses(models, np.array([1, 2]), 7).shape == (2, 1)


def test_a_users_own_warnings_come_through() -> None:
    class Warns(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            warnings.warn("mine", UserWarning, stacklevel=1)
            return super().forward(inputs)

    module = nn.Sequential(Warns(4, 3)).double()
    with pytest.warns(UserWarning, match="mine"):
        Serial(Trainer(module, POPULATION, RULE, 0, by_hand=False), debug=True).train(
            [cohort_of(module)], average_models
        )


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda model: None, "must return the cluster's model, a dict of tensors, not nothing"),
        (lambda model: {}, "returned a model with other names or shapes than the clients' ones, at '"),
        (lambda model: {name: each.numpy() for name, each in model.items()}, "dict of tensors, not one with an array"),
        (lambda model: {**model, "more": torch.zeros(1)}, "than the clients' ones, at 'more'"),
        (lambda model: {name: each[None] for name, each in model.items()}, "than the clients' ones, at '"),
    ],
)
def test_a_combine_rule_must_return_a_model(made: Callable[[Model], Any], told: str) -> None:
    def combine(models: Any, start: Model, cohort_weight: float) -> Any:
        return made(start)

    with pytest.raises(RunError, match="event 3, cluster 1: combining the clients' models failed .*" + told):
        Serial(Trainer(network(), POPULATION, RULE, 0)).train([cohort_of(network())], combine)


@pytest.mark.parametrize("debug", [False, True])
def test_a_combine_rule_that_fails_is_named(debug: bool) -> None:
    def combine(models: Any, start: Model, cohort_weight: float) -> Model:
        raise KeyError("median")

    message = r"event 3, cluster 1: combining the clients' models failed \(KeyError: 'median'"
    with pytest.raises(RunError, match=message):
        Serial(Trainer(network(), POPULATION, RULE, 0), debug).train([cohort_of(network())], combine)
