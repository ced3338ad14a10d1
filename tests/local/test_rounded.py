"""Networks whose products are computed in bfloat16, against the same steps written by hand."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import LocalRule, Serial, Trainer, read_model
from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import Cohort
from atoll.local.batches import cross_entropy
from atoll.local.precision import products_in
from atoll.local.rounded import Rounded
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from tests.problems import classification

RULE = LocalRule(sgd, lr=0.3, steps=5, batch_size=4)


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))


def rounded(network: nn.Module) -> Rounded:
    found = Rounded.of(network)
    assert found is not None
    return found


def test_a_client_takes_the_steps_that_are_written_out() -> None:
    """Forward and backward by hand: what enters a product is rounded, what leaves it too, the step is not."""
    trainer = Trainer(two_layers(), classification(), RULE, seed=5, precision="bfloat16")
    first, second = two_layers()[0], two_layers()[2]
    w, b, v, c = (parameter.detach().clone() for layer in (first, second) for parameter in layer.parameters())
    task = ClientTask(0, 0, 0, 0, 1, read_model(trainer.module))
    for x, y in trainer.draw_batches(task):
        x, w16, v16 = x.bfloat16(), w.bfloat16(), v.bfloat16()
        hidden = torch.addmm(b.bfloat16(), x, w16.T).relu()
        outputs = torch.addmm(c.bfloat16(), hidden, v16.T).float()
        slopes = ((outputs.softmax(1) - nn.functional.one_hot(y, 3)) / len(y)).bfloat16()
        back = (slopes @ v16) * (hidden > 0)
        v -= 0.3 * (slopes.T @ hidden).float()
        c -= 0.3 * slopes.sum(0).float()
        w -= 0.3 * (back.T @ x).float()
        b -= 0.3 * back.sum(0).float()
    model = trainer.train(task).model
    for ours, twin in zip(model.values(), (w, b, v, c), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, twin, rtol=0, atol=2e-4)  # softmax's gradient is rounded one operation later
        assert not torch.equal(ours, ours.bfloat16().float())  # the step itself is not rounded


def test_what_is_no_product_computes_in_float32_on_its_own_weights() -> None:
    seen = []

    class Norm(nn.LayerNorm):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append((inputs.dtype, self.weight.dtype))
            return super().forward(inputs)

    network = nn.Sequential(nn.Linear(4, 9), nn.Sequential(Norm(9), nn.ReLU()), nn.Linear(9, 3))
    cross_entropy(rounded(network)(torch.rand(5, 4)), torch.arange(5) % 3).mean().backward()  # type: ignore[no-untyped-call]
    assert seen == [(torch.float32, torch.float32)]
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in network.parameters())


def test_a_layer_and_a_parameter_that_stand_in_two_places_get_both_gradients() -> None:
    torch.manual_seed(1)
    layer, tied, out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
    tied.weight = layer.weight
    network = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), tied, out)
    inputs, targets = torch.rand(6, 4), torch.arange(6) % 3
    found: list[Any] = []
    for compute in (network, rounded(network)):
        network.zero_grad()
        cross_entropy(compute(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
        found.append([p.grad for p in network.parameters()])
    for exact, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact, rtol=0.1, atol=5e-3)


@pytest.mark.parametrize(
    "module",
    [nn.Linear(4, 3), nn.Sequential(nn.ReLU()), two_layers().double(), nn.Sequential(nn.ReLU(), nn.Bilinear(2, 2, 2))],
)
def test_what_is_no_such_sequence_is_left_to_the_mode(module: nn.Module) -> None:
    assert Rounded.of(module) is None


def test_a_watched_layer_is_left_to_the_mode() -> None:
    network = two_layers()
    network[0].register_forward_hook(lambda *_: None)
    assert Rounded.of(network) is None


def test_frozen_layers_get_no_gradient() -> None:
    network = two_layers()
    network[0].requires_grad_(False)
    cross_entropy(rounded(network)(torch.rand(5, 4)), torch.arange(5) % 3).mean().backward()  # type: ignore[no-untyped-call]
    assert network[0].weight.grad is None
    assert network[2].weight.grad is not None


def test_the_mode_leaves_it_alone_and_processes_can_be_given_it() -> None:
    network, inputs = two_layers(), torch.rand(5, 4)
    apart = rounded(network)(inputs)
    with products_in("bfloat16"):
        assert torch.equal(rounded(network)(inputs), apart)
    assert torch.equal(pickle.loads(pickle.dumps(rounded(network)))(inputs), apart)
    assert apart.dtype == torch.float32


@pytest.mark.more
def test_it_is_near_float32_after_many_steps() -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        trainer = Trainer(two_layers(), classification(), RULE, seed=5, precision=precision)
        model = read_model(trainer.module)
        executor = Serial(trainer)
        for event in range(30):
            cohort = Cohort(event, event, 0, 0, np.arange(3), np.ones(3), 3.0, model)
            ((model, loss),) = [(made.model, made.loss) for made in executor.train([cohort], average_models)]
        found.append(loss)
    assert found[1] == pytest.approx(found[0], rel=0.1)
    assert found[1] != found[0]
