"""Gathering, turned copies, and measuring many models at once."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from atoll import Dataset, LocalRule, Trainer, generator, make_population
from atoll.data import datasets
from atoll.data.dealing.partition import one_group
from atoll.evaluation.scores import ClusterEvaluator, parameter_error
from atoll.local.batches import Batches, binary_cross_entropy, half_squared, measure_models, next_token, right_labels
from atoll.local.models import Model, mlp
from atoll.local.rule import sgd
from atoll.local.task import ClientTask
from atoll.local.weights import read_model
from atoll.support.process import one_thread
from tests.problems import classification, linear_module, network, quadratics

DIGITS = datasets.load("digits")


def test_bytes_are_scaled_when_gathered_and_left_as_they_are() -> None:
    module = nn.Linear(1, 1)
    inputs, targets = Batches(DIGITS, module).gather(np.array([3, 0, 3]))
    expected = DIGITS.inputs[[3, 0, 3]].astype(np.float32) / 16
    np.testing.assert_array_equal(inputs.numpy(), expected)
    assert targets.tolist() == DIGITS.targets[[3, 0, 3]].tolist()
    assert DIGITS.inputs.dtype == np.uint8


@pytest.mark.usefixtures("every_torch_warning")
def test_arrays_that_are_read_only_are_taken_without_a_word() -> None:
    """As are those that pandas hands out, or `np.load(mmap_mode="r")`."""
    inputs, targets = DIGITS.inputs.copy(), DIGITS.targets.copy()
    inputs.flags.writeable = targets.flags.writeable = False
    batches = Batches(replace(DIGITS, inputs=inputs, targets=targets), nn.Linear(1, 1))
    assert batches.inputs.data_ptr() == inputs.ctypes.data


def test_turned_copies_are_made_when_gathered() -> None:
    turned = replace(DIGITS, turns=(0, 1, 2, 3))
    n = len(DIGITS.inputs)
    assert len(turned) == 4 * n
    rows = np.array([5, n + 5, 2 * n + 7, 3 * n + 5, n + 8])
    inputs, targets = Batches(turned, nn.Linear(1, 1)).gather(rows)
    for found, row in zip(inputs.numpy(), rows, strict=True):
        image = np.rot90(DIGITS.inputs[row % n], row // n, axes=(1, 2)).astype(np.float32) / 16
        np.testing.assert_array_equal(found, image)
    assert targets.tolist() == turned.labels[rows].tolist() == turned.labels_of(rows).tolist()
    assert turned.groups_of(rows).tolist() == [0, 1, 2, 3, 1]


def test_half_turns() -> None:
    turned = replace(DIGITS, turns=(0, 2))
    inputs, _ = Batches(turned, nn.Linear(1, 1)).gather(np.array([len(DIGITS.inputs)]))
    np.testing.assert_array_equal(inputs[0].numpy(), np.rot90(DIGITS.inputs[0], 2, axes=(1, 2)) / np.float32(16))


def test_losses_of_several_outputs_by_hand() -> None:
    """Squares are summed, labels of a sample averaged, and tokens averaged over those that there are."""
    assert half_squared(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2)).tolist() == [5.0]
    assert binary_cross_entropy(torch.zeros(1, 4), torch.ones(1, 4)).tolist() == pytest.approx([np.log(2)])
    targets = torch.tensor([[5, 1, 2, -1, -1], [5, 1, 2, 3, 4]])
    assert next_token(torch.full((2, 5), -3.0), targets).tolist() == [3.0, 3.0]
    assert right_labels(torch.tensor([[0.2, -0.2]]), torch.tensor([[1.0, 1.0]])).tolist() == [0.5]


def test_layers_are_in_training_while_a_client_trains() -> None:
    """So nothing comes through dropout, and there is no gradient."""
    module = nn.Sequential(nn.Dropout(1.0), linear_module()).eval()
    start = read_model(module)
    update = Trainer(module, quadratics(), LocalRule(sgd, 0.1, 3, 4), 0).train(ClientTask(0, 0, 0, 0, 0, start))
    assert all(update.model[name].equal(start[name]) for name in start if "weight" in name)


def test_every_client_holds_one_rotation_and_every_copy_is_used_once() -> None:
    turned = replace(DIGITS, turns=(0, 1, 2, 3))
    groups = turned.groups_of(np.arange(len(turned)))
    population = make_population(turned, one_group(groups, 40, generator(0, "partition")))
    assert np.bincount(population.groups()).tolist() == [10] * 4
    assert sorted(population.indices) == list(range(len(turned)))
    for k in range(40):
        assert len(np.unique(turned.groups_of(population.samples(k)))) == 1


def test_models_are_measured_as_one_by_one() -> None:
    population, modules = classification(clients=4), [network(seed=s) for s in range(3)]
    models = [read_model(module) for module in modules]
    rows = [population.samples(k) for k in range(4)]
    found = measure_models(network(seed=9), Batches(population.data, network()), models, rows)
    for k, own in enumerate(rows):
        inputs = torch.from_numpy(population.data.inputs[own])
        targets = torch.from_numpy(population.data.targets[own])
        for p, module in enumerate(modules):
            outputs = module(inputs)
            assert found.losses[k, p] == pytest.approx(nn.functional.cross_entropy(outputs, targets).item())
            assert found.accuracies[k, p] == (outputs.argmax(dim=1) == targets).double().mean().item()


@pytest.mark.more
@one_thread()
def test_finding_the_cluster_costs_at_most_one_and_a_half_forward_passes_a_model() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6000, 1, 28, 28), dtype=np.uint8)
    data = Dataset("images", images, rng.integers(0, 10, 6000), images[:1], np.zeros(1, int), 10, 1 / 255)
    module = mlp((1, 28, 28), 10)
    models: list[Model] = [read_model(mlp((1, 28, 28), 10)) for _ in range(4)]
    batches = Batches(data, module)
    rows = list(np.arange(6000, dtype=np.int32).reshape(60, 100))
    inputs, _ = batches.gather(np.arange(6000))

    def seconds_of_forward_passes() -> float:
        began = time.process_time()
        with torch.no_grad():
            for _ in models:
                for low in range(0, 6000, 1000):
                    module(inputs[low : low + 1000])
        return time.process_time() - began

    def seconds_of_identity() -> float:
        began = time.process_time()
        measure_models(module, batches, models, rows)
        return time.process_time() - began

    pairs = [(seconds_of_identity(), seconds_of_forward_passes()) for _ in range(9)]
    ratio = np.median([ours for ours, _ in pairs]) / np.median([floor for _, floor in pairs])
    assert ratio <= 1.5, f"{ratio:.2f} times four forward passes"


def test_clusters_are_scored_by_hand() -> None:
    population, modules = classification(clients=6), [network(seed=s) for s in range(2)]
    models = [read_model(module) for module in modules]
    data = replace(population.data, groups=np.repeat([0, 1], [30, len(population.data) - 30]))
    population = replace(population, data=data)
    found = ClusterEvaluator(population, population, network(), None).score(models)
    rows = [population.samples(k) for k in range(6)]
    measured = measure_models(network(), Batches(data, network()), models, rows)
    chosen = measured.losses.argmin(axis=1)
    held = population.sizes
    assert found.score.train_loss == pytest.approx(np.average(measured.losses.min(axis=1), weights=held))
    hits = measured.accuracies[range(6), chosen]
    assert found.score.test_accuracy == pytest.approx(np.average(hits, weights=held))
    for p in range(2):
        its = chosen == p
        expected = np.average(hits[its], weights=held[its]) if its.any() else None
        assert found.accuracies[p] == (None if expected is None else pytest.approx(expected))
    for group in range(2):
        of_group = chosen[population.groups() == group]
        assert found.confusion[group].tolist() == np.bincount(of_group, minlength=2).tolist()


def test_a_draw_of_clients_is_measured_where_samples_are_limited() -> None:
    population = classification(clients=20)
    evaluator = ClusterEvaluator(population, population, network(), 40)
    assert 3 <= len(evaluator.clients) <= 6
    assert evaluator.samples == population.sizes[evaluator.clients].sum()


def test_parameter_error_matches_models_to_what_was_planted() -> None:
    planted = np.array([[0.0, 0.0, 0.0], [10.0, 0.0, 0.0]])
    weights = [[10.0, 3.0, 4.0], [0.0, 0.0, 1.0]]
    models = [{"0.weight": torch.tensor([row]), "0.weight@momentum_buffer": torch.ones(1, 3)} for row in weights]
    assert parameter_error(models, planted) == pytest.approx(5.0)


def test_parameter_error_takes_each_model_for_one_planted_vector() -> None:
    models = [{"0.weight": torch.tensor([[value]])} for value in (0.0, 9.0)]
    assert parameter_error(models, np.array([[0.0], [1.0]])) == pytest.approx(8.0)  # both are nearest to the first


def test_parameter_error_needs_models_of_that_size() -> None:
    from atoll import InputError

    with pytest.raises(InputError, match="2 vectors of 5"):
        parameter_error([read_model(linear_module())], np.zeros((2, 5)))
    assert quadratics().data.planted is None
