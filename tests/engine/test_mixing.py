"""Many models mixed at once: to the bits of one by one, and only where that is the same."""

from collections.abc import Callable

import pytest
import torch

from atoll import Mix
from atoll.engine import mixing
from atoll.engine.mixing import mix, mix_all
from atoll.local.models import Model

CLUSTERS = 24
SHAPES = {"weight": (7, 13), "bias": (7,), "scale": (), "none": (0, 3)}


def some_models(dtype: torch.dtype = torch.float32, count: int = CLUSTERS) -> list[Model]:
    draws = torch.Generator().manual_seed(0)
    return [
        {name: torch.randn(shape, generator=draws, dtype=dtype) for name, shape in SHAPES.items()} for _ in range(count)
    ]


def ring(sources: int = 5) -> list[Mix]:
    """Each cluster's mix with those after it, by shares that float32 does not hold exactly, ascending."""
    mixes = []
    for cluster in range(CLUSTERS):
        members = sorted((cluster + step) % CLUSTERS for step in range(sources))
        total = sum(member + 1 for member in members)
        mixes.append(Mix(published=tuple((member, (member + 1) / total) for member in members)))
    return mixes


def assert_bits(one: Model, other: Model) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.shape == other[name].shape
        assert tensor.is_contiguous()
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sources", [2, 5, 24])
def test_many_mixes_are_those_one_by_one(dtype: torch.dtype, sources: int, monkeypatch: pytest.MonkeyPatch) -> None:
    models, mixes = some_models(dtype), ring(sources)
    alone = [mix(recipe, None, models, models) for recipe in mixes]
    monkeypatch.setattr(mixing, "mix", None)  # all of them are mixed together
    for one, other in zip(mix_all(mixes, None, models, models), alone, strict=True):
        assert_bits(one, other)


def test_a_single_source_is_that_source_and_other_mixes_are_their_own() -> None:
    models, server = some_models(), some_models(count=1)[0]
    others = [Mix(published=((3, 1.0),)), Mix(server=1.0), Mix(0.5, ((1, 0.5),)), Mix(1.0, (), ((2, 0.3),))]
    mixes = [others[0], *ring(), *others[1:]]
    mixed = mix_all(mixes, server, models, models)
    assert mixed[0] is models[3]
    assert mixed[-3] is server
    for recipe, model in zip(mixes, mixed, strict=True):
        assert_bits(model, mix(recipe, server, models, models))


def counted(models: list[Model]) -> list[Model]:
    return [model | {"steps": torch.tensor(3)} for model in models]


def halved(models: list[Model]) -> list[Model]:
    return [{name: tensor.bfloat16() for name, tensor in model.items()} for model in models]


@pytest.mark.parametrize("change", [counted, halved])
def test_what_a_product_would_round_or_change_is_mixed_one_by_one(change: Callable[[list[Model]], list[Model]]) -> None:
    models = change(some_models())
    for recipe, model in zip(ring(), mix_all(ring(), None, models, models), strict=True):
        assert_bits(model, mix(recipe, None, models, models))


def test_large_models_are_mixed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "_mix_together", None)
    monkeypatch.setattr(mixing, "_LARGEST", 90)
    models = some_models()
    assert len(mix_all(ring(), None, models, models)) == CLUSTERS
