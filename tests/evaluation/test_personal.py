"""The scores of single clients on test samples like their own, against loops by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from atoll import Dataset, make_population, read_model
from atoll.evaluation.personal import OwnTests
from atoll.local.models import Model
from atoll.support.arrays import Floats
from tests.problems import network


def in_groups() -> Dataset:
    """Three classes in two groups, of which the test set lacks class 2 of group 1; of four owners three have tests."""
    rng = np.random.default_rng(0)
    return Dataset(
        "grouped",
        inputs=rng.normal(size=(30, 4)),
        targets=np.tile([0, 1, 2], 10),
        test_inputs=rng.normal(size=(10, 4)),
        test_targets=np.array([0, 0, 1, 1, 1, 2, 0, 0, 0, 1]),
        classes=3,
        groups=np.repeat([0, 1], 15),
        test_groups=np.repeat([0, 1], [6, 4]),
        owners=np.arange(30) % 4,
        test_owners=np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2]),
    )


def hits_of(model: Model, data: Dataset) -> Floats:
    module = network()
    module.load_state_dict(model)
    with torch.no_grad():
        found = module(torch.from_numpy(data.test_inputs)).argmax(dim=1).numpy()
    return (found == data.test_targets).astype(float)


def test_each_sample_counts_by_the_tests_of_its_own_class_and_group() -> None:
    data, model = in_groups(), read_model(network(seed=19))
    hits = hits_of(model, data)
    parts = [np.array([0, 3, 6, 1, 2]), np.array([15, 16, 16, 17]), np.array([17, 20]), np.array([0, 16])]
    expected = []
    for rows in parts:
        its = [(data.test_groups == data.groups[r]) & (data.test_targets == data.targets[r]) for r in rows]  # type: ignore[index]
        known = [hits[like].mean() for like in its if like.any()]
        expected.append(np.mean(known) if known else np.nan)
    found = OwnTests(make_population(data, parts), network()).scores(model, [0, 1, 2, 3])
    np.testing.assert_allclose(found, expected)
    assert np.isnan(found).tolist() == [False, False, True, False]
    assert len({*found[[0, 1, 3]].tolist()}) == 3


def test_owners_are_tested_on_what_they_own_only_if_they_are_the_clients() -> None:
    data, model = in_groups(), read_model(network(seed=19))
    hits = hits_of(model, data)
    population = make_population(data, [np.flatnonzero(data.owners == k) for k in range(4)])
    found = OwnTests(population, network(), owned=True).scores(model, range(4))
    np.testing.assert_allclose(found, [*(hits[data.test_owners == k].mean() for k in range(3)), np.nan])
    nobodys = replace(population, data=replace(data, owners=None, test_owners=None))
    alike = OwnTests(nobodys, network()).scores(model, range(4))
    np.testing.assert_array_equal(OwnTests(population, network()).scores(model, range(4)), alike)
    assert not np.array_equal(alike, found)


@pytest.mark.parametrize("far", [0.0, 100.0])
def test_r2_of_several_numbers_is_by_the_spread_of_each(far: float) -> None:
    """How far apart the numbers' own means are changes nothing."""
    rng = np.random.default_rng(1)
    inputs, targets = rng.normal(size=(20, 3)), rng.normal(size=(20, 2)) + np.array([0.0, far])
    data = Dataset("numbers", inputs, targets, inputs[:9], targets[:9], classes=0, loss="squared")
    module = nn.Linear(3, 2).double()
    with torch.no_grad():
        module.bias[1] += far
        errors = (module(torch.from_numpy(inputs[:9])).numpy() - targets[:9]) ** 2
    expected = 1 - errors.sum() / ((targets[:9] - targets[:9].mean(axis=0)) ** 2).sum()
    found = OwnTests(make_population(data, [np.arange(20)]), module).scores(read_model(module), [0])
    assert found == pytest.approx([expected])
