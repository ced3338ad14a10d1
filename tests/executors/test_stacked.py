"""Stacked clients against the same clients trained one by one."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from atoll import Dataset, InputError, LocalRule, Population, RunError, Serial, Trainer, make_population, read_model
from atoll.aggregation.mean import Combine, average_gradients, average_models, mean
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.engine.engine import init, train
from atoll.executors.stacked import stacked_executor as stacked
from atoll.executors.stacked.fit import Fit, try_stack
from atoll.executors.stacked.memory import client_bytes
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.stacked.tensors import weigh
from atoll.executors.stacked.training import TrainedStack, train_stack
from atoll.local.models import MODELS, Model
from atoll.local.rule import MakeOptimizer, adam, momentum, sgd
from atoll.local.task import ClientTask
from atoll.methods.papers.cfl_mgd import cfl_mgd
from atoll.methods.papers.ifca import Option
from tests.problems import as_vector, classification, linear_module, network, quadratics
from tests.tiers import part_of, thinned

POPULATION = classification(clients=7, samples=9)
SGD = LocalRule(sgd, lr=0.3, steps=3, batch_size=4)
Executors = tuple[Stacked, Serial]


def cohort(start: Model, clients: list[int], weights: list[float], cluster: int = 1, event: int = 3) -> Cohort:
    return Cohort(event, event, 2, cluster, np.array(clients), np.array(weights), 50.0, start)


def double_network(seed: int) -> nn.Module:
    return network(seed=seed)


def two_cohorts(make: Callable[[int], nn.Module] = double_network) -> list[Cohort]:
    first, second = read_model(make(1)), read_model(make(2))
    return [cohort(first, [0, 2, 5, 1], [9.0, 11.0, 2.5, 4.0]), cohort(second, [6, 3], [4.0, 1.0], cluster=2)]


def check(
    trainer: Trainer, cohorts: Sequence[Cohort], combine: Combine = average_models, stack_bytes: int | None = None
) -> None:
    """All models, moments and losses of double precision must agree to rounding."""
    found = Stacked(trainer, stack_bytes).train(cohorts, combine)
    for ours, by_one, sent in zip(found, Serial(trainer).train(cohorts, combine), cohorts, strict=True):
        assert ours.model.keys() == by_one.model.keys()
        for name, tensor in by_one.model.items():
            assert ours.model[name].dtype == tensor.dtype
            torch.testing.assert_close(ours.model[name], tensor, rtol=1e-9, atol=1e-12)
        assert ours.loss == pytest.approx(by_one.loss, rel=1e-6)
        assert not np.array_equal(as_vector(ours.model), as_vector(sent.start))


@pytest.mark.parametrize("batch_size", [1, 4, "full"])
@pytest.mark.parametrize("optimizer", [sgd, momentum, adam, torch.optim.Adagrad])
@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_stacked_equals_client_by_client(batch_size: int, optimizer: MakeOptimizer, proximal: float) -> None:
    rule = LocalRule(optimizer, lr=0.1, steps=3, batch_size=batch_size, lr_decay=0.9, proximal=proximal)
    check(Trainer(network(), POPULATION, rule, seed=5), two_cohorts())


def images(shape: tuple[int, ...]) -> Population:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, size=(12, *shape), dtype=np.uint8)
    data = Dataset("images", inputs, rng.integers(10, size=12), inputs[:1], np.zeros(1, int), classes=10, scale=1 / 255)
    return make_population(data, np.split(np.arange(12), [3, 7]))


@pytest.mark.parametrize("batch_size", thinned([3, "full"], 1))
@pytest.mark.parametrize("dtype", thinned([torch.float32, torch.float64], 1))
@pytest.mark.parametrize(
    "name", thinned(sorted(MODELS.keys() - {"lstm", "transformer", "pretrained"}), MODELS.keys() - {"resnet"})
)
def test_every_model_agrees(name: str, dtype: torch.dtype, batch_size: int) -> None:
    shape = (3, 28, 28) if name == "alexnet" else (1, 16, 16)
    torch.manual_seed(0)
    options = {"channels": 16} if name == "alexnet" else {}
    modules = [MODELS[name](shape, 10, **options).to(dtype) for _ in range(2)]
    trainer = Trainer(modules[0], images(shape), LocalRule(momentum, lr=0.05, steps=2, batch_size=batch_size), seed=5)
    starts = [read_model(module) for module in modules]
    cohorts = [cohort(starts[0], [0, 2], [3.0, 5.0]), cohort(starts[1], [1], [4.0], cluster=0)]
    if dtype == torch.float64:
        check(trainer, cohorts)
        return
    ours, by_one = (executor.train(cohorts, average_models) for executor in (Stacked(trainer), Serial(trainer)))
    for one, other in zip(ours, by_one, strict=True):
        difference = np.linalg.norm(as_vector(one.model) - as_vector(other.model))
        assert difference < 1e-5 * np.linalg.norm(as_vector(other.model))


def test_recurrent_layers_are_refused_with_the_reason() -> None:
    trainer = Trainer(MODELS["lstm"]((6, 4), 10), images((6, 4)), SGD, seed=5)
    assert "'lstm' (LSTM) cannot be stacked" in try_stack(trainer).reason


def test_adam_agrees_in_single_precision() -> None:
    module = network().float()
    trainer = Trainer(module, POPULATION, LocalRule(adam, lr=0.01, steps=5, batch_size=4), seed=5)
    cohorts = [cohort(read_model(module), list(range(7)), [9.0] * 7)]
    one, many = (executor.train(cohorts, average_models)[0].model for executor in (Stacked(trainer), Serial(trainer)))
    np.testing.assert_allclose(as_vector(one), as_vector(many), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "combine", thinned([average_models, average_gradients, lambda *given: average_gradients(*given)], 1)
)
@pytest.mark.parametrize("optimizer", [momentum, adam])
def test_moments_that_are_carried_agree(optimizer: MakeOptimizer, combine: Combine) -> None:
    rule = LocalRule(optimizer, lr=0.1, steps=2, batch_size=4, carry_moments=True)
    trainer = Trainer(network(), POPULATION, rule, seed=5)
    cohorts = two_cohorts()
    (later,) = Serial(trainer).train(cohorts[:1], combine)
    check(trainer, cohorts, combine)
    assert any("@" in name for name in later.model)
    moved = [replace(cohorts[0], start=later.model, event=4, round=4), cohorts[1]]  # the second has no moments yet
    check(trainer, moved, combine)
    check(trainer, [*moved, replace(cohorts[0], start=Serial(trainer).train(moved, combine)[0].model)], combine)


@pytest.mark.parametrize("option", ["models", "gradients"])
def test_cfl_mgd_agrees_over_rounds(option: Option) -> None:
    population, starts = quadratics(clients=5), [read_model(linear_module(seed=seed)) for seed in (1, 2)]
    rule = LocalRule(sgd, lr=0.05, steps=1, batch_size="full")
    method = cfl_mgd(population, rule, 4, clusters=2, beta=0.5, option=option, fraction=1.0)
    trainer = Trainer(linear_module(), population, method.rule, seed=3)
    ends = [
        list(train(method, executor, init(method, *starts)))[-1] for executor in (Stacked(trainer), Serial(trainer))
    ]
    for one, other in zip(ends[0].state.published, ends[1].state.published, strict=True):
        np.testing.assert_allclose(as_vector(one), as_vector(other), rtol=1e-10)
    assert ends[0].loss == pytest.approx(ends[1].loss, rel=1e-6)


def test_events_of_different_rounds_have_their_own_learning_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(network(), POPULATION, replace(SGD, lr_decay=0.5), seed=5)
    first, second = two_cohorts()
    monkeypatch.setattr(stacked, "train_stack", watched := Watched())
    check(trainer, [first, replace(second, event=7, round=7), replace(second, event=4)])
    assert watched.clients == [6, 2]


class Recording:
    """A combine rule that is not a mean: it takes the first client's model, and notes what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[float, Model]] = []

    def __call__(self, models: Iterable[tuple[float, Model]], start: Model, cohort_weight: float) -> Model:
        self.given += (pairs := list(models))
        return pairs[0][1]


@pytest.mark.parametrize("stack_bytes", [None, 4000, 9000])
def test_another_combine_rule_is_given_every_client_in_order(stack_bytes: int | None) -> None:
    trainer = Trainer(network(), POPULATION, replace(SGD, batch_size="full"), seed=5)
    ours, by_one = Recording(), Recording()
    Stacked(trainer, stack_bytes).train(two_cohorts(), ours)
    Serial(trainer).train(two_cohorts(), by_one)
    assert [weight for weight, _ in ours.given] == [9.0, 11.0, 2.5, 4.0, 4.0, 1.0]
    for (_, one), (_, other) in zip(ours.given, by_one.given, strict=True):
        np.testing.assert_allclose(as_vector(one), as_vector(other), rtol=1e-10)


class Watched:
    """ClientTrainer stacks, notes how many clients each has, and has memory for no more than some."""

    def __init__(self, room: int = 1000, error: type[Exception] = torch.OutOfMemoryError, told: str = "full") -> None:
        self.room, self.error, self.told = room, error, told
        self.clients: list[int] = []

    def __call__(self, trainer: Trainer, fit: Fit, tasks: Sequence[ClientTask], *others: Any) -> TrainedStack:
        if len(tasks) > self.room:
            raise self.error(self.told)
        self.clients.append(len(tasks))
        return train_stack(trainer, fit, tasks, *others)


def test_stacks_hold_what_the_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(network(), POPULATION, SGD, seed=5)
    one = client_bytes(trainer, Stacked(trainer).fit, samples=4)
    for room, clients in ((1, [1] * 6), (2, [2, 2, 2]), (4.9, [4, 2]), (1000, [6])):
        monkeypatch.setattr(stacked, "train_stack", watched := Watched())
        check(trainer, two_cohorts(), stack_bytes=int(room * one))
        assert watched.clients == clients


@settings(max_examples=part_of(20), deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6), room=st.floats(1, 5), by_one=st.booleans())
def test_ragged_full_batches_agree(sizes: list[int], room: float, by_one: bool) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(sum(sizes), 4))
    data = Dataset("ragged", inputs, rng.integers(3, size=len(inputs)), inputs[:1], np.zeros(1, int), classes=3)
    population = make_population(data, np.split(np.arange(len(inputs)), np.cumsum(sizes)[:-1]))
    trainer = Trainer(network(), population, replace(SGD, batch_size="full", steps=2), seed=5)
    cohorts = [cohort(read_model(network(seed=1)), list(range(len(sizes))), [float(size) for size in sizes])]
    one = client_bytes(trainer, Stacked(trainer).fit, samples=max(sizes))
    combine: Combine = (lambda models, start, weight: mean(models)) if by_one else average_models
    check(trainer, cohorts, combine, stack_bytes=int(room * one))


def test_padding_at_most_doubles_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = replace(POPULATION.data)
    sizes = [2, 20, 3, 11, 4, 10]
    population = make_population(data, np.split(np.arange(50), np.cumsum(sizes)[:-1]))
    monkeypatch.setattr(stacked, "train_stack", watched := Watched())
    trainer = Trainer(network(), population, replace(SGD, batch_size="full"), seed=5)
    check(trainer, [cohort(read_model(network(seed=1)), list(range(6)), [1.0] * 6)])
    assert watched.clients == [3, 3]  # of 20, 11, 10 and of 4, 3, 2 samples


class Normed(nn.Module):
    """Normalises by the batch's own statistics, and counts in a buffer that never changes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.norm = nn.BatchNorm1d(5, track_running_stats=False)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("shift", torch.ones(3) * seed)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.norm(self.first(inputs))) + self.shift
        return outputs


@pytest.mark.parametrize("batch_size", [4, "full"])
def test_layers_in_which_samples_meet_are_not_padded(batch_size: int) -> None:
    trainer = Trainer(Normed().double(), POPULATION, replace(SGD, batch_size=batch_size), seed=5)
    check(trainer, two_cohorts(lambda seed: Normed(seed).double()))


class Tied(nn.Module):
    """Two layers share a matrix, and one bias is not trained."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(inputs)))))
        return outputs


@pytest.mark.parametrize("rule", [SGD, replace(SGD, optimizer=momentum, carry_moments=True)])
def test_shared_and_frozen_parameters_agree(rule: LocalRule) -> None:
    trainer = Trainer(Tied().double(), POPULATION, rule, seed=5)
    cohorts = two_cohorts(lambda seed: Tied(seed).double())
    check(trainer, cohorts)
    assert torch.equal(
        Stacked(trainer).train(cohorts, average_models)[0].model["first.bias"], cohorts[0].start["first.bias"]
    )


class Tempered(nn.Module):
    """With a temperature, a single number."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.network = network(seed=seed)
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs) / self.temperature


@pytest.mark.parametrize("rule", [SGD, replace(SGD, optimizer=adam, lr=0.01, carry_moments=True)])
def test_a_parameter_that_is_a_single_number_agrees(rule: LocalRule) -> None:
    check(Trainer(Tempered(1), POPULATION, rule, seed=5), two_cohorts(Tempered))


class Doubles(nn.Module):
    """Doubles its inputs in training."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * 2 if self.training else inputs


def with_tied_layers(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    layers[1].weight = layers[0].weight
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], Doubles(), nn.Linear(4, 3)).double()


def with_tanh_twice(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    tanh = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 4), tanh, Doubles(), nn.Linear(4, 4), tanh, nn.Linear(4, 3)).double()


@pytest.mark.parametrize("make", [with_tied_layers, with_tanh_twice])
def test_layers_that_share_something_agree(make: Callable[[int], nn.Module]) -> None:
    trainer, cohorts = Trainer(make(0), POPULATION, SGD, seed=5), two_cohorts(make)
    trainer.module.eval()  # as measuring leaves it
    check(trainer, cohorts)


def with_normed_weights(seed: int) -> nn.Module:
    """A dense layer whose weight is made of others before each forward pass, as older code has it."""
    made = network(seed=seed)
    assert isinstance(made, nn.Sequential)
    with warnings.catch_warnings(action="ignore"):  # PyTorch has a newer one
        nn.utils.weight_norm(made[0])
    with torch.no_grad():
        made(torch.zeros(1, 4, dtype=torch.float64))  # which makes the weight, so that the network can be copied
    return made


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_layers_whose_weights_are_made_of_others_agree() -> None:
    trainer = Trainer(with_normed_weights(1), POPULATION, SGD, seed=5)
    assert "0.weight_g" in trainer.module.state_dict()
    check(trainer, two_cohorts(with_normed_weights))


def test_a_layer_in_two_places_is_refused() -> None:
    layer = nn.Linear(4, 4)
    module = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3)).double()
    reason = try_stack(Trainer(module, POPULATION, SGD, seed=5)).reason
    assert reason == "the model's layer '0' (Linear) stands in a second place, '2'"


def test_squared_losses_agree() -> None:
    population = quadratics(clients=4)
    trainer = Trainer(linear_module(), population, replace(SGD, lr=0.1, batch_size="full"), seed=0)
    check(trainer, [cohort(read_model(linear_module(seed=3)), [0, 1, 3], [8.0, 9.0, 8.0])])


def test_losses_are_those_of_the_trainer() -> None:
    trainer = Trainer(network(), POPULATION, SGD, seed=5)
    models = [read_model(network(seed=1)), read_model(network(seed=2))]
    clients = np.array([4, 0])
    found = Stacked(trainer).losses(models, clients, 0)
    assert found.tobytes() == Serial(trainer).losses(models, clients, 0).tobytes()


def test_nothing_that_is_given_changes() -> None:
    module = network()
    trainer, cohorts = Trainer(module, POPULATION, SGD, seed=5), two_cohorts()
    before = [as_vector(each.start) for each in cohorts], torch.get_rng_state(), as_vector(read_model(module))
    first = Stacked(trainer).train(cohorts, average_models)
    again = Stacked(trainer).train(cohorts, average_models)
    assert [as_vector(each.start).tobytes() for each in cohorts] == [vector.tobytes() for vector in before[0]]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.array_equal(as_vector(read_model(module)), before[2])
    assert [as_vector(each.model).tobytes() for each in first] == [as_vector(each.model).tobytes() for each in again]


class Limited(torch.optim.SGD):
    """Limits the norm of each gradient."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 10.0)
        super().step()


class Noisy(torch.optim.SGD):
    """Adds noise to each step."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(torch.randn_like(parameter), alpha=1e-4)


def decays_matrices(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    groups = [{"params": [own], "weight_decay": 0.1 if own.ndim > 1 else 0.0} for own in parameters]
    return torch.optim.SGD(groups, lr=lr)


class Drops(nn.Module):
    """Drops out by a function."""

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(inputs, 0.5)


class Branches(nn.Module):
    """Does what the numbers say."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum() > 0 else inputs * 2


@pytest.mark.parametrize(
    ("optimizer", "layer", "reason"),
    [
        (sgd, nn.Dropout(0.5), r"the model's layer '1' \(Dropout\) draws random numbers"),
        (sgd, nn.Sequential(nn.Tanh(), Drops()), r"the model's layer '1.1' \(Drops\) draws random numbers"),
        (sgd, nn.BatchNorm1d(4), r"the model's layer '1' \(BatchNorm1d\) changes its buffer 'running_mean'"),
        (sgd, Branches(), r"the model's layer '1' \(Branches\) cannot be stacked \(RuntimeError: vmap"),
        (torch.optim.LBFGS, nn.Tanh(), r"the optimizer LBFGS cannot drive stacked models \(TypeError"),
        (torch.optim.Adafactor, nn.Tanh(), "the optimizer Adafactor does not step every number on its own"),
        (Limited, nn.Tanh(), "the optimizer Limited does not step every number on its own"),
        (Noisy, nn.Tanh(), "the optimizer Noisy does not step every number on its own"),
        (decays_matrices, nn.Tanh(), "the optimizer SGD does not step every number on its own"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(optimizer: MakeOptimizer, layer: nn.Module, reason: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3)).double()
    trainer = Trainer(module, POPULATION, replace(SGD, optimizer=optimizer), seed=0)
    before = read_model(module)
    with pytest.raises(ValueError, match=reason):
        Stacked(trainer)
    assert try_stack(trainer).reason
    assert all(torch.equal(tensor, before[name]) for name, tensor in read_model(module).items())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_of_torchscript_is_refused_with_the_reason() -> None:
    module = torch.jit.trace(network(), torch.zeros(2, 4, dtype=torch.float64))  # type: ignore[no-untyped-call]
    reason = try_stack(Trainer(module, POPULATION, SGD, seed=5)).reason
    assert "cannot be stacked (RuntimeError: register_forward_pre_hook is not supported on ScriptModules" in reason


def test_what_fits_has_no_reason_against_it() -> None:
    assert try_stack(Trainer(network(), POPULATION, SGD, seed=0)).reason == ""


@pytest.mark.parametrize("stack_bytes", [0, -5])
def test_a_limit_that_is_not_positive_is_refused(stack_bytes: int) -> None:
    with pytest.raises(InputError, match=rf"run.stack_bytes = {stack_bytes}: must be a positive number of bytes"):
        Stacked(Trainer(network(), POPULATION, SGD, seed=0), stack_bytes)


@pytest.mark.parametrize("batch_size", [4, "full"])
def test_a_limit_without_room_for_one_client_is_refused(batch_size: int) -> None:
    trainer = Trainer(network(), POPULATION, replace(SGD, batch_size=batch_size), seed=0)
    largest = int(POPULATION.sizes.max()) if batch_size == "full" else batch_size
    least = client_bytes(trainer, Stacked(trainer).fit, largest)
    with pytest.raises(InputError, match=rf"run.stack_bytes = {least - 1}: must be at least {least}, about"):
        Stacked(trainer, least - 1)
    assert Stacked(trainer, least).stack_bytes == least


@pytest.mark.parametrize(
    ("error", "told"), [(torch.OutOfMemoryError, "CUDA out of memory"), (RuntimeError, "DefaultCPUAllocator: can't")]
)
def test_out_of_memory_halves_the_stacks_and_says_so_once(
    error: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "train_stack", watched := Watched(2, error, told))
    trainer = Trainer(network(), POPULATION, SGD, seed=5)
    executor, expected = Stacked(trainer), Serial(trainer).train(two_cohorts(), average_models)
    with pytest.warns(
        RuntimeWarning, match="out of memory with 6 clients in one stack; going on with at most 3"
    ) as told_:
        found = executor.train(two_cohorts(), average_models)
    assert len(told_) == 1
    assert watched.clients == [2, 2, 2]
    compare(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(executor.train(two_cohorts(), average_models), expected)
    assert watched.clients[3:] == [2, 2, 2]


@pytest.mark.parametrize("room", thinned([1, 2, 3], 1))
@pytest.mark.parametrize(("model", "batch_size"), [("mlp", 4), ("mlp", "full"), ("cnn", 4)])
def test_how_often_memory_runs_out_changes_the_mean_by_rounding_at_most(
    model: str, batch_size: Any, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense layers compute each client's product by itself; convolutions take other kernels for fewer clients."""
    torch.manual_seed(0)
    module = MODELS[model]((1, 28, 28), 10)
    trainer = Trainer(module, images((1, 28, 28)), replace(SGD, lr=0.05, batch_size=batch_size), seed=5)
    start = read_model(module)
    cohorts = [cohort(start, [0, 1, 2], [3.0, 4.0, 5.0]), cohort(start, [2, 0], [1.0, 7.0], cluster=2)]
    whole = Stacked(trainer).train(cohorts, average_models)
    monkeypatch.setattr(stacked, "train_stack", watched := Watched(room))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        parted = Stacked(trainer).train(cohorts, average_models)
    assert max(watched.clients) <= room
    for one, other in zip(parted, whole, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        for name, tensor in other.model.items():
            torch.testing.assert_close(one.model[name], tensor, rtol=1e-5, atol=1e-6)
            assert torch.equal(one.model[name], tensor) or (model, batch_size) != ("mlp", 4)


def compare(found: Sequence[ClusterUpdate], expected: Sequence[ClusterUpdate]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(as_vector(one.model), as_vector(other.model), rtol=1e-10)


def test_no_room_for_a_single_client_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "train_stack", Watched(0))
    executor = Stacked(Trainer(network(), POPULATION, SGD, seed=5))
    with (
        pytest.warns(RuntimeWarning, match="out of memory"),
        pytest.raises(RunError, match=r"event 3, cluster 1, client 0: training failed \(OutOfMemoryError: full\)"),
    ):
        executor.train(two_cohorts(), average_models)


def test_another_error_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "train_stack", Watched(0, KeyError))
    executor = Stacked(Trainer(network(), POPULATION, SGD, seed=5))
    with pytest.raises(RunError, match="event 3, cluster 1, client 0 and 5 others: training failed"):
        executor.train(two_cohorts(), average_models)


@pytest.mark.parametrize("combine", [average_models, lambda models, start, weight: mean(models)])
def test_what_is_not_finite_names_the_client(combine: Combine) -> None:
    population = classification(clients=4)
    population.data.inputs[population.samples(2)] = np.nan
    trainer = Trainer(network(), population, replace(SGD, batch_size="full"), seed=5)
    with pytest.raises(RunError, match=r"event 3, cluster 1, client 2: training became not finite .* lower local.lr"):
        Stacked(trainer).train([cohort(read_model(network()), [0, 1, 2, 3], [1.0] * 4)], combine)


class CountedWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers that are fetched from the device, for which the host waits."""

    fetched = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.fetched += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("batch_size", [4, "full"])
@pytest.mark.parametrize("clients", [1, 7])
def test_the_host_waits_once_a_stack_however_long_it_trains(
    monkeypatch: pytest.MonkeyPatch, steps: int, batch_size: int, clients: int
) -> None:
    rule = replace(SGD, steps=steps, batch_size=batch_size)
    executor = Stacked(Trainer(network(), POPULATION, rule, seed=5))
    sent: list[object] = []
    send = torch.from_numpy

    def counted(array: Any) -> Tensor:
        sent.append(array)
        return send(array)

    monkeypatch.setattr(torch, "from_numpy", counted)
    with CountedWaits() as waits:  # type: ignore[no-untyped-call]
        executor.train([cohort(read_model(network(seed=1)), list(range(clients)), [1.0] * clients)], average_models)
    assert waits.fetched == 0  # the table of losses is fetched once, by another way
    assert len(sent) <= 3  # the samples' positions, the samples' shares, the clients' weights


def test_the_mean_of_a_stack_is_taken_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, product, before = set(), torch.tensordot, torch.get_float32_matmul_precision()

    def noting(*given: Any, **named: Any) -> Any:
        seen.add(torch.get_float32_matmul_precision())
        return product(*given, **named)

    monkeypatch.setattr(torch, "tensordot", noting)
    torch.set_float32_matmul_precision("medium")
    try:
        weigh({"w": torch.ones(2, 3)}, np.array([0.5, 0.5]))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == {"highest"}
