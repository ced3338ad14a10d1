"""Products in another precision, and the generators that layers draw from."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import Evaluator, LocalRule, Serial, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort, Executor
from atoll.evaluation import scores
from atoll.evaluation.gradients import client_gradient
from atoll.evaluation.personal import OwnTests
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.weighted import Weighted
from atoll.experiment.experiment import Experiment
from atoll.local.batches import Batches, measure_models
from atoll.local.models import MODELS
from atoll.local.precision import Precision, products_in
from atoll.local.rounded import Rounded
from atoll.local.rule import sgd
from atoll.methods.parts.features import prototypes
from atoll.settings.experiment_file import make_runs
from atoll.support.seeds import layers_drawing_from
from tests.executors.test_stacked import images
from tests.problems import as_vector, classification
from tests.tiers import thinned


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().double()


def test_bfloat16_rounds_what_is_multiplied_and_nothing_else() -> None:
    torch.manual_seed(0)
    layer, inputs = nn.Linear(300, 7), torch.randn(5, 300, requires_grad=True)
    with products_in("bfloat16"):
        outputs = layer(inputs)
        others = inputs + inputs.exp()
    outputs.sum().backward()
    exact = rounded(inputs.detach()) @ rounded(layer.weight.detach()).T + rounded(layer.bias.detach())
    assert outputs.dtype == others.dtype == torch.float32
    torch.testing.assert_close(outputs.double(), exact, rtol=2**-8, atol=1e-3)
    assert (outputs.double() - (inputs.double() @ layer.weight.double().T + layer.bias)).abs().max() > 1e-3
    assert torch.equal(others, inputs + inputs.exp())
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == inputs.grad.dtype == torch.float32  # type: ignore[union-attr]


def test_what_is_measured_between_rounded_steps_is_exact() -> None:
    torch.manual_seed(0)
    layer, inputs = nn.Linear(300, 7), torch.randn(5, 300)
    exact = layer(inputs)
    with products_in("bfloat16"):
        before = layer(inputs)
        with products_in("float32"):
            assert torch.equal(layer(inputs), exact)
        assert torch.equal(layer(inputs), before)
    assert not torch.equal(before, exact)
    assert torch.equal(layer(inputs), exact)


def test_double_precision_is_left_alone() -> None:
    one, other = torch.randn(4, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    with products_in("bfloat16"):
        assert torch.equal(one @ other, torch.matmul(one, other))
    with products_in("float32"):
        expected = one @ other
    assert torch.equal(expected, one @ other)


class Flags(nn.Linear):
    """Notes what a GPU's convolutions would be allowed."""

    seen: ClassVar[list[tuple[bool, bool]]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic))
        return super().forward(inputs)


def test_models_are_measured_in_float32_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    population = classification(clients=2)
    module = Flags(4, 3).double()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    batches = Batches(population.data, module)
    measure_models(module, batches, [read_model(module)], [population.samples(0)])
    client_gradient(module, batches, population.samples(1))
    monkeypatch.setattr(scores, "_batch_of", lambda _: 3)  # for batches in two threads
    Evaluator(population, module, threads=2).score(read_model(module))
    OwnTests(population, module).scores(read_model(module), [0])
    prototypes(population, module, module)
    assert set(Flags.seen) == {(False, True)}
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: a @ b,
        torch.matmul,
        torch.mm,
        lambda a, b: torch.mm(input=a, mat2=b),
        lambda a, b: nn.functional.linear(weight=b.T, input=a),
        lambda a, b: a.mm(b),
        lambda a, b: torch.addmm(torch.zeros(3), a, b),
        lambda a, b: torch.einsum("ij,jk->ik", a, b),
        lambda a, b: torch.vmap(torch.matmul)(a[None], b[None])[0],
        lambda a, b: torch.vmap(lambda x, w: nn.functional.linear(x, w.T, torch.zeros(3)))(a[None], b[None])[0],
    ],
)
def test_products_of_every_kind(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(4, 50), torch.randn(50, 3)
    with products_in("bfloat16"):
        found = product(one, other)
    exact = rounded(one) @ rounded(other)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-2)
    assert not torch.equal(found, product(one, other))


@pytest.mark.parametrize(
    ("precision", "products", "convolutions"),
    [("float32", "highest", False), ("tf32", "high", True), ("bfloat16", "highest", False)],
)
@pytest.mark.parametrize("user", ["highest", "medium"])
def test_the_process_is_as_before_afterwards(
    precision: Precision, products: str, convolutions: bool, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now() -> tuple[Any, ...]:
        cudnn = torch.backends.cudnn
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic

    def fail() -> None:
        with products_in(precision):
            assert now() == (products, convolutions, True)
            raise KeyError

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # else convolutions on a GPU do not matter
    default = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(user)
        before = now()
        with pytest.raises(KeyError):
            fail()
        assert now() == before
    finally:
        torch.set_float32_matmul_precision(default)


def test_what_a_user_set_for_products_is_undone_without_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    default = torch.get_float32_matmul_precision()
    try:
        for user in "highest", "medium":
            torch.set_float32_matmul_precision(user)
            with products_in("float32"):
                assert torch.get_float32_matmul_precision() == "highest"
            assert torch.get_float32_matmul_precision() == user
    finally:
        torch.set_float32_matmul_precision(default)


def trained(executor: Callable[[Trainer], Executor], trainer: Trainer, start: Any, clients: list[int]) -> Any:
    cohort = Cohort(0, 0, 0, 0, np.array(clients), np.ones(len(clients)), float(len(clients)), start)
    made = executor(trainer)
    (average,) = made.train([cohort], average_models)
    made.close()
    assert {tensor.dtype for tensor in average.model.values()} == {torch.float32}
    return as_vector(average.model)


@pytest.mark.parametrize("name", thinned(["cnn", "alexnet"], 1))
def test_executors_agree_in_bfloat16_and_it_is_near_float32(name: str) -> None:
    torch.manual_seed(0)
    shape = (3, 28, 28) if name == "alexnet" else (1, 16, 16)
    module = MODELS[name](shape, 10, **({"channels": 8} if name == "alexnet" else {}))
    start = read_model(module)
    trainer = Trainer(module, images(shape), LocalRule(sgd, lr=0.05, steps=2, batch_size=3), seed=5)
    exact = trained(Serial, trainer, start, [0, 2])
    trainer = Trainer(module, images(shape), trainer.rule, seed=5, precision="bfloat16")
    assert isinstance(trainer.outputs, Rounded)
    serial = trained(Serial, trainer, start, [0, 2])
    size = np.linalg.norm(exact - as_vector(start))
    assert 1e-5 < np.linalg.norm(serial - exact) / size < 0.1
    assert np.linalg.norm(trained(Stacked, trainer, start, [0, 2]) - serial) / size < 0.2
    cores = trained(lambda own: Cores(own, 2, 10_000_000), trainer, start, [0, 2])
    assert cores.tobytes() == serial.tobytes()


def test_one_weighted_pass_in_bfloat16() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    rule = LocalRule(sgd, lr=0.3, steps=1, batch_size=4)
    start = read_model(module)
    exact = trained(Weighted, Trainer(module, classification(), rule, 0), start, [0, 2])
    found = trained(Weighted, Trainer(module, classification(), rule, 0, precision="bfloat16"), start, [0, 2])
    assert 1e-5 < np.linalg.norm(found - exact) / np.linalg.norm(exact - as_vector(start)) < 0.1


def test_the_setting_reaches_the_trainer_and_dense_networks() -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        table = {"rounds": 1, "method": {"name": "fedavg"}, "run": {"executor": "serial", "precision": precision}}
        (settings,) = make_runs(table)
        experiment = Experiment(settings)
        executor = experiment.execution.make_executor()
        event = experiment.method.schedule.events[0]
        start = experiment.training.initial_models()[0]
        cohort = Cohort(0, 0, 0, 0, event.cohort, event.weights, float(event.weights.sum()), start)
        found[precision] = as_vector(executor.train([cohort], average_models)[0].model)
    difference = np.abs(found["float32"] - found["bfloat16"]).max()
    assert 1e-6 < difference < 0.05


def test_layers_on_a_gpu_draw_from_their_own_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.Generator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (device,), raising=False)
    before = device.get_state()
    draws = []
    for key in (3, 4, 3):
        with layers_drawing_from(0, "layers", key):
            draws.append(torch.rand(2, generator=device).tolist())
    assert draws[0] == draws[2] != draws[1]
    assert torch.equal(device.get_state(), before)
