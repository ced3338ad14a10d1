"""Estimators against quadratics, whose gradients and Hessians are known, and against plain loops."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from atoll import Dataset, InputError, Population, make_population, read_model
from atoll.evaluation.constants import (
    GradientChange,
    class_gradient_gram,
    estimate_mu,
    estimate_smoothness,
    gradient_change,
    gradient_deviations,
    initial_gap,
    label_deviations,
)
from atoll.local.models import Model
from atoll.support.arrays import Floats, Ids
from tests.problems import as_vector, classification, linear_module, network, quadratics


def gradients_at(population: Population, w: Floats) -> Floats:
    """Of least squares, [clients, width]."""
    x, y = population.data.inputs, population.data.targets
    rows = [population.samples(k) for k in range(len(population))]
    return np.stack([x[r].T @ (x[r] @ w - y[r]) / len(r) for r in rows])


def linear_model(w: Floats) -> Model:
    return {"0.weight": torch.from_numpy(w.reshape(1, -1).copy())}


def same_inner_products(rows: Floats, expected: Floats) -> None:
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, atol=1e-10)


def test_gradient_deviations_have_the_inner_products_of_the_gradients() -> None:
    population, module = quadratics(), linear_module()
    model = read_model(module)
    gradients = gradients_at(population, as_vector(model))
    same_inner_products(gradient_deviations(population, module, [model]), gradients - population.shares @ gradients)


def test_of_several_models_the_one_with_the_largest_deviations_counts() -> None:
    population, module = quadratics(), linear_module()
    models = [linear_model(scale * np.ones(3)) for scale in (1.0, -20.0, 3.0)]
    gradients = [gradients_at(population, as_vector(model)) for model in models]
    centred = [each - population.shares @ each for each in gradients]
    spread = [float(population.shares @ (each**2).sum(axis=1)) for each in centred]
    assert int(np.argmax(spread)) == 1
    same_inner_products(gradient_deviations(population, module, models), centred[1])


def test_deviations_of_large_clients_count_more() -> None:
    """At the first model a client of one sample deviates, at the second one of eight, by less."""
    x, y = np.repeat([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0], [0.0, 0.0]], [8, 8, 1, 1], axis=0), np.zeros(18)
    data = Dataset("two directions", x, y, x, y, classes=0, loss="squared")
    population, module = make_population(data, np.split(np.arange(18), [8, 16, 17])), linear_module(width=2)
    models = [linear_model(np.array(w)) for w in ([0.0, 1.0], [6.0, 0.0])]
    gradients = [gradients_at(population, as_vector(model)) for model in models]
    centred = [each - population.shares @ each for each in gradients]
    squares = [(each**2).sum(axis=1) for each in centred]
    assert squares[0].mean() > squares[1].mean()
    assert population.shares @ squares[0] < population.shares @ squares[1]
    same_inner_products(gradient_deviations(population, module, models), centred[1])


@pytest.mark.parametrize("held", [1, 4, 7])
def test_blocks_of_gradients_change_nothing(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    population, module = classification(clients=7), network()
    model = read_model(module)
    whole = gradient_deviations(population, module, [model])
    parameters = sum(parameter.numel() for parameter in module.parameters())
    monkeypatch.setattr("atoll.evaluation.constants._HELD_BYTES", 8 * parameters * held)
    same_inner_products(gradient_deviations(population, module, [model]), whole)


def test_clients_with_equal_data_do_not_deviate() -> None:
    data = classification().data
    population = make_population(data, [np.arange(20)] * 5)
    module = network()
    assert np.abs(gradient_deviations(population, module, [read_model(module)])).max() < 1e-7
    assert not label_deviations(population.class_counts()).any()


def test_label_deviations_without_gradients_are_class_shares() -> None:
    counts = np.array([[3, 1, 0], [0, 0, 2], [5, 5, 0]])
    expected = counts / np.array([[4], [2], [10]]) - np.array([8, 6, 2]) / 16
    np.testing.assert_allclose(label_deviations(counts), expected)


def test_label_deviations_weigh_the_classes_gradients() -> None:
    gradients = np.random.default_rng(0).normal(size=(3, 8))
    counts = np.array([[3, 1, 0], [0, 0, 2], [5, 5, 0]])
    by_client = counts / counts.sum(axis=1, keepdims=True) @ gradients
    whole = counts.sum(axis=0) / 16 @ gradients
    same_inner_products(label_deviations(counts, gradients @ gradients.T), by_client - whole)


def test_labels_are_exact_where_a_clients_classes_are_the_unions() -> None:
    """Clients that hold all samples of some classes: their gradient is the mean of their classes' gradients."""
    data = classification(clients=10).data
    by_class = [np.flatnonzero(data.targets == label) for label in range(3)]
    population = make_population(data, [by_class[0], np.concatenate(by_class[1:]), by_class[2]])
    module = network()
    model = read_model(module)
    gram = class_gradient_gram(population, module, model, 10_000, np.random.default_rng(0))
    same_inner_products(
        label_deviations(population.class_counts(), gram), gradient_deviations(population, module, [model])
    )


def test_a_sample_that_two_clients_hold_counts_twice_in_its_class() -> None:
    data, module = classification().data, network()
    one, other = np.flatnonzero(data.targets == 0)[:2]
    population = make_population(data, [np.array([one, other]), np.array([one])])
    gram = class_gradient_gram(population, module, read_model(module), 100, np.random.default_rng(0))
    rows = [one, other, one]
    loss = cross_entropy(module(torch.from_numpy(data.inputs[rows])), torch.from_numpy(data.targets[rows]))
    squared = sum(float(each.square().sum()) for each in torch.autograd.grad(loss, [*module.parameters()]))
    assert gram[0, 0] == pytest.approx(squared)


def test_gradients_are_those_of_a_model_that_is_evaluated() -> None:
    """Without dropout, whatever the mode of the module that is passed."""
    population, plain, dropping = classification(), network(), network()
    dropping.insert(2, nn.Dropout(0.9))  # type: ignore[operator]
    first, second = (
        [model := read_model(each), {name: 2 * tensor for name, tensor in model.items()}] for each in (plain, dropping)
    )
    found = gradient_change(population, dropping.train(), *second)
    np.testing.assert_allclose(found.ratios, gradient_change(population, plain, *first).ratios)
    expected = gradient_deviations(population, plain, first[:1])
    same_inner_products(gradient_deviations(population, dropping.train(), second[:1]), expected)


def test_class_gradients_of_a_sample() -> None:
    population, module = classification(clients=10), network()
    model = read_model(module)
    grams = [class_gradient_gram(population, module, model, 5, np.random.default_rng(s)) for s in (0, 0, 1)]
    np.testing.assert_array_equal(grams[0], grams[1])
    assert np.abs(grams[0] - grams[2]).max() > 1e-6
    assert np.linalg.eigvalsh(grams[2]).min() > -1e-12


def test_a_classs_samples_are_drawn_without_replacement() -> None:
    data, module = classification().data, network()
    three, model = np.flatnonzero(data.targets == 0)[:3], read_model(module)

    def square(rows: Ids, samples: int, seed: int = 0) -> float:
        population, rng = make_population(data, [rows]), np.random.default_rng(seed)
        return float(class_gradient_gram(population, module, model, samples, rng)[0, 0])

    pairs = [square(np.array(pair), 2) for pair in combinations(three, 2)]
    assert all(np.isclose(square(three, 2, seed), pairs).any() for seed in range(9))


def test_a_class_that_nobody_holds_has_no_gradient() -> None:
    data = classification(clients=10).data
    population = make_population(data, [np.flatnonzero(data.targets != 1)])
    module = network()
    gram = class_gradient_gram(population, module, read_model(module), 100, np.random.default_rng(0))
    assert gram.shape == (3, 3)
    assert not gram[1].any()
    assert gram[0, 0] > 0


def test_planted_groups_that_nobody_holds_have_rows_too() -> None:
    whole, module = quadratics(), linear_module()
    groups = np.repeat([0, 1], [len(whole.data) - 1, 1])
    population = make_population(replace(whole.data, groups=groups), [np.arange(4), np.arange(4, 8)])
    gram = class_gradient_gram(population, module, read_model(module), 100, np.random.default_rng(0))
    assert gram[0, 0] > 0
    assert not gram[1].any()
    assert label_deviations(population.class_counts(), gram).shape[0] == 2


def test_smoothness_and_mu_of_known_hessians() -> None:
    population, module = quadratics(), linear_module()
    step = np.array([0.5, -1.0, 2.0])
    first = np.array([1.0, 2.0, 3.0])
    change = gradient_change(population, module, linear_model(first), linear_model(first + step))
    x = population.data.inputs
    rows = [population.samples(k) for k in range(len(population))]
    hessians = [x[r].T @ x[r] / len(r) for r in rows]
    length = np.linalg.norm(step)
    ratios = [np.linalg.norm(h @ step) / length for h in hessians]
    curvatures = [step @ h @ step / length**2 for h in hessians]
    np.testing.assert_allclose(change.ratios, ratios)
    np.testing.assert_allclose(change.curvatures, curvatures)
    assert estimate_smoothness(change) == pytest.approx(population.shares @ ratios)
    assert estimate_mu(change) == pytest.approx(min(curvatures))
    largest = population.shares @ [np.linalg.eigvalsh(h).max() for h in hessians]
    assert estimate_mu(change) <= estimate_smoothness(change) <= largest


def test_mu_leaves_negative_curvature_out_and_has_a_floor() -> None:
    def change(curvatures: list[float]) -> GradientChange:
        return GradientChange(np.ones(3), np.array(curvatures), np.full(3, 1 / 3))

    assert estimate_mu(change([-1.0, 0.5, 0.2])) == 0.2
    assert estimate_mu(change([-1.0, 0.5, 1e-9])) == 1e-3
    assert estimate_mu(change([-1.0, -0.5, 0.0])) == 1e-3


def test_initial_gap_of_least_squares() -> None:
    population, module = quadratics(), linear_module()
    x, y = population.data.inputs, population.data.targets
    model = read_model(module)
    loss = float(np.mean((x @ as_vector(model) - y) ** 2) / 2)
    assert initial_gap(population, module, model) == pytest.approx(loss)
    with pytest.raises(InputError, match="= 0: must be at most the loss"):
        initial_gap(population, module, linear_model(np.full(len(as_vector(model)), np.nan)))


def test_bad_input_is_refused() -> None:
    population, module = classification(), network()
    model = read_model(module)
    with pytest.raises(InputError, match="same parameters"):
        gradient_change(population, module, model, model)
    with pytest.raises(InputError, match="client 1"):
        label_deviations(np.array([[1, 2], [0, 0]]))
