"""Inputs standardised: by the pool's channels, by given numbers, each by itself; in training, exports and fleets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from atoll import Dataset, InputError
from atoll.data.dataset import Standard
from atoll.data.datasets import load
from atoll.data.standardise import moments, standardise
from atoll.experiment.client_data import load_dataset, make_clients, make_test_clients
from atoll.experiment.experiment import Experiment
from atoll.fleet.node.shards import read_shard, shard_folder, write_shards
from atoll.local.batches import Batches
from atoll.settings.validation import Settings, validate

DIGITS = load("digits")


def coloured(samples: int = 7, kind: type = np.uint8) -> Dataset:
    rng = np.random.default_rng(0)
    inputs: npt.NDArray[Any] = rng.integers(0, 256, (samples, 3, 4, 4)).astype(kind)
    return Dataset("coloured", inputs, np.arange(samples) % 2, inputs[:2], np.arange(2), 2, scale=1 / 255)


def gathered(data: Dataset, dtype: torch.dtype = torch.float64) -> np.ndarray:
    rows = np.arange(len(data))
    return Batches(data, nn.Linear(1, 1).to(dtype)).gather(rows)[0].numpy()


def test_each_way_equals_loops_by_hand() -> None:
    data = coloured()
    unit = data.inputs / 255
    expected = {"none": data.inputs.astype(float), "unit": unit, "pool": unit.copy(), "image": unit.copy()}
    for channel in range(3):
        values = unit[:, channel].ravel()
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        expected["pool"][:, channel] = (unit[:, channel] - mean) / deviation
    for k, image in enumerate(unit):
        mean = image.sum() / image.size
        expected["image"][k] = (image - mean) / (((image - mean) ** 2).sum() / image.size) ** 0.5
    for how, values in expected.items():
        np.testing.assert_allclose(gathered(standardise(data, how)), values, rtol=1e-12, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["float64", "int64"])
def test_numbers_far_from_zero_are_standardised_in_their_own_precision(kind: str) -> None:
    near = 1000 * np.random.default_rng(0).normal(size=(50, 3, 2))
    near = near.round() if kind == "int64" else near
    data = Dataset("times", (near + 1.7e12).astype(kind), np.arange(50) % 2, near[:2], np.arange(2), 2)
    means, deviations = near.mean((0, 2), keepdims=True), near.std((0, 2), keepdims=True)
    found = gathered(standardise(data, "pool"), torch.float32)
    np.testing.assert_allclose(found, (near - means) / deviations, atol=1e-4)


def test_given_numbers_apply_to_all_channels_or_one_each() -> None:
    data, unit = coloured(), coloured().inputs / 255
    one = standardise(data, "given", 0.1307, 0.3081)
    np.testing.assert_allclose(gathered(one), (unit - 0.1307) / 0.3081, rtol=1e-12, atol=1e-12)
    each = standardise(data, "given", [0.1, 0.2, 0.3], [1.0, 2.0, 4.0])
    shaped = np.array([0.1, 0.2, 0.3]).reshape(3, 1, 1), np.array([1.0, 2.0, 4.0]).reshape(3, 1, 1)
    np.testing.assert_allclose(gathered(each), (unit - shaped[0]) / shaped[1], rtol=1e-12, atol=1e-12)


def test_moments_are_those_of_numpy_over_several_chunks_and_types() -> None:
    for inputs in (coloured(2500).inputs, np.random.default_rng(1).normal(1e4, 1e-2, (1500, 6))):
        axes = (0, *range(2, inputs.ndim))
        mean, deviation = moments(inputs)
        np.testing.assert_allclose(mean, inputs.mean(axis=axes, dtype=np.float64), rtol=1e-12)
        np.testing.assert_allclose(deviation, inputs.std(axis=axes, dtype=np.float64), rtol=1e-9)


def test_a_constant_has_no_deviation_though_its_mean_is_rounded() -> None:
    for count, constant in ((6, 0.1), (7, 0.7), (10, 1e9 / 3), (1300, 0.3), (5, 0.0)):
        assert moments(np.full((count, 1), constant))[1].tolist() == [0.0]
    assert moments(np.array([[1.0], [1.0 + 1e-9]]))[1] > 0


def test_test_samples_and_turned_copies_take_the_training_pools_numbers() -> None:
    settings = validate({"data": {"partition": "rotated", "clients": 8, "standardise": "pool"}})
    population, _ = make_clients(settings)
    tests = make_test_clients(settings, population)
    mean, deviation = moments(DIGITS.inputs / 16)
    assert tests.data.standard == population.data.standard == Standard(tuple(mean), tuple(deviation))
    found, _ = Batches(tests.data, nn.Linear(1, 1)).gather(np.array([len(DIGITS.test_inputs)]))
    turned = np.rot90(DIGITS.test_inputs[0], 1, axes=(1, 2)) / 16
    np.testing.assert_allclose(found[0].numpy(), (turned - mean[0]) / deviation[0], rtol=1e-6, atol=1e-6)


def test_a_blank_image_stays_finite_and_bytes_stay_bytes() -> None:
    data = replace(coloured(), inputs=np.zeros((7, 3, 4, 4), np.uint8))
    assert gathered(standardise(data, "image")).tolist() == np.zeros((7, 3, 4, 4)).tolist()
    assert standardise(coloured(), "pool").inputs.dtype == np.uint8


def test_unit_is_the_default_and_the_same_object() -> None:
    assert standardise(DIGITS, "unit") is DIGITS
    assert Settings().data.standardise == "unit"


def test_a_client_on_a_fleet_trains_on_the_same_numbers(tmp_path: Path) -> None:
    settings = validate({"data": {"clients": 3, "standardise": "pool"}, "method": {"name": "fedavg"}})
    experiment = Experiment(settings)
    write_shards(experiment, tmp_path)
    shard = read_shard(settings, shard_folder(tmp_path, 1))
    own = experiment.population.samples(1)
    here, _ = Batches(experiment.population.data, nn.Linear(1, 1)).gather(own)
    there, _ = Batches(shard, nn.Linear(1, 1)).gather(np.arange(len(own)))
    assert torch.equal(here, there)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"standardise": "given"}, "data.mean is not set, but data.standardise = 'given' needs it"),
        ({"standardise": "given", "mean": 0.1}, "data.deviation is not set"),
        ({"standardise": "given", "mean": 0.1, "deviation": 0.0}, "data.deviation = 0.0: must be positive"),
        ({"standardise": "given", "mean": [0.1, 0.2], "deviation": 1.0}, "has 2 numbers, but inputs of digits have 1"),
        ({"mean": 0.1}, "data.mean: is used only with data.standardise = 'given', not 'unit'"),
        ({"standardise": "z-score"}, "data.standardise"),
    ],
)
def test_bad_numbers_are_refused_in_one_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        load_dataset(validate({"data": given}))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_channel_that_never_changes_is_named() -> None:
    inputs = coloured().inputs.copy()
    inputs[:, 2] = 9
    with pytest.raises(InputError, match=r"channel 2 of coloured is 9 everywhere"):
        standardise(replace(coloured(), inputs=inputs), "pool")
    with pytest.raises(InputError, match="are single numbers"):
        standardise(replace(coloured(), inputs=np.zeros((7, 1)), test_inputs=np.zeros((2, 1))), "image")
