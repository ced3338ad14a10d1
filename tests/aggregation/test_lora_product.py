"""The mean of LoRA's products, against a twin that multiplies them out."""

import numpy as np
import pytest
import torch

from atoll import InputError
from atoll.aggregation.robust import ROBUST
from atoll.local.models import Model

A, B, HEAD = "q.lora_A.default.weight", "q.lora_B.default.weight", "score.weight"


def draw(seed: int, shapes: dict[str, tuple[int, ...]]) -> Model:
    rng = np.random.default_rng(seed)
    return {name: torch.tensor(rng.normal(size=shape)).float() for name, shape in shapes.items()}


@pytest.mark.parametrize(("out", "into", "rank", "clients"), [(9, 7, 2, 4), (9, 7, 2, 1), (3, 20, 2, 5), (2, 2, 3, 2)])
def test_the_product_is_the_best_of_its_rank(out: int, into: int, rank: int, clients: int) -> None:
    models = [draw(k, {A: (rank, into), B: (out, rank), HEAD: (2, 5)}) for k in range(clients)]
    weights = [1.0 + k for k in range(clients)]
    made = ROBUST["lora-product"]()(list(zip(weights, models, strict=True)), {}, sum(weights))
    products = [each[B].double().numpy() @ each[A].double().numpy() for each in models]
    u, sizes, v = np.linalg.svd(np.average(products, axis=0, weights=weights))
    best = (u[:, : min(rank, len(sizes))] * sizes[:rank]) @ v[: min(rank, len(sizes))]
    np.testing.assert_allclose(made[B].double() @ made[A].double(), best, atol=1e-5)
    head = np.average([each[HEAD].numpy() for each in models], axis=0, weights=weights)
    np.testing.assert_allclose(made[HEAD], head, atol=1e-6)
    assert {name: tensor.shape for name, tensor in made.items()} == {name: t.shape for name, t in models[0].items()}


@pytest.mark.more
def test_factors_of_a_convolution_are_those_of_its_matrix() -> None:
    models = [draw(k, {A: (2, 3, 3, 3), B: (4, 2, 1, 1)}) for k in range(2)]
    made = ROBUST["lora-product"]()([(1.0, each) for each in models], {}, 2.0)
    mean = sum(each[B].flatten(1) @ each[A].flatten(1) for each in models) / 2
    u, sizes, v = torch.linalg.svd(torch.as_tensor(mean))
    best = (u[:, :2] * sizes[:2]) @ v[:2]
    torch.testing.assert_close(made[B].flatten(1) @ made[A].flatten(1), best, rtol=0, atol=1e-5)


@pytest.mark.more
def test_adapters_of_an_embedding_are_averaged_as_products_too() -> None:
    a, b = "e.lora_embedding_A.default", "e.lora_embedding_B.default"
    models = [draw(k, {A: (2, 4), B: (3, 2)}) | draw(9 + k, {a: (1, 5), b: (6, 1)}) for k in range(2)]
    equal = [each | {a: models[0][a]} for each in models]  # so that the mean of products has rank 1
    made = ROBUST["lora-product"]()([(1.0, each) for each in equal], {}, 2.0)
    mean = sum(each[b] @ each[a] for each in equal) / 2
    torch.testing.assert_close(made[b] @ made[a], torch.as_tensor(mean), rtol=0, atol=1e-5)
    torch.testing.assert_close(made[a] @ made[a].T, torch.ones(1, 1))  # V^T, not the mean of A


def test_adapters_that_have_not_been_trained_still_can_be() -> None:
    models = [draw(0, {A: (2, 5)}) | {B: torch.zeros(4, 2)}] * 3
    made = ROBUST["lora-product"]()([(1.0, each) for each in models], {}, 3.0)
    assert not made[B].any()
    torch.testing.assert_close(made[A] @ made[A].T, torch.eye(2))


def test_a_model_without_adapters_is_refused() -> None:
    with pytest.raises(InputError, match="the model has no adapters"):
        ROBUST["lora-product"]()([(1.0, {"w": torch.zeros(1)})], {}, 1.0)
