"""Laws of averaging, of seeds and of numbering."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atoll import (
    InputError,
    LocalRule,
    Population,
    RunError,
    Serial,
    Trainer,
    fedavg,
    fedcluster,
    init,
    make_population,
    read_model,
    train,
)
from atoll.aggregation.mean import mean
from atoll.clustering.clustering import Clustering
from atoll.local.rule import adam, momentum, sgd
from tests.problems import as_vector, classification, linear_module, network, quadratics

numbers = st.floats(-100, 100)
pairs = st.lists(st.tuples(st.floats(0.01, 100), st.lists(numbers, min_size=3, max_size=3)), min_size=1, max_size=6)


@given(pairs)
def test_the_mean_is_convex_and_ignores_the_scale_of_weights(rows: list[tuple[float, list[float]]]) -> None:
    models = [(weight, {"w": torch.tensor(values, dtype=torch.float64)}) for weight, values in rows]
    table = np.array([values for _, values in rows])
    weights = np.array([weight for weight, _ in rows])
    found = mean(models)["w"].numpy()
    np.testing.assert_allclose(found, weights @ table / weights.sum(), atol=1e-9)
    assert (found <= table.max(axis=0) + 1e-9).all()
    assert (found >= table.min(axis=0) - 1e-9).all()
    np.testing.assert_allclose(mean((7 * w, m) for w, m in models)["w"].numpy(), found, atol=1e-9)
    for (_, model), (_, values) in zip(models, rows, strict=True):
        assert model["w"].tolist() == values  # inputs are left as they were


def test_the_mean_takes_counters_from_the_first() -> None:
    found = mean([(1.0, {"n": torch.tensor(3)}), (9.0, {"n": torch.tensor(5)})])
    assert found["n"].item() == 3


def final(population: Population, rule: LocalRule, module: nn.Module, seed: int, clusters: list[int]) -> np.ndarray:
    method = fedcluster(population, Clustering(np.array(clusters), max(clusters) + 1), rule, 2, 1.0, "fixed", seed=seed)
    start = read_model(module)
    for step in train(method, Serial(Trainer(module, population, rule, seed)), init(method, start)):
        state = step.state
    module.load_state_dict(start)
    assert state.server is not None
    return as_vector(state.server)


def test_equal_seeds_give_equal_bits_and_other_seeds_others() -> None:
    population, rule = classification(), LocalRule(sgd, 0.1, 3, 4)
    first, second, other = (final(population, rule, network(), seed, [0, 0, 1, 1, 2, 2]) for seed in (1, 1, 2))
    assert first.tobytes() == second.tobytes()
    assert not np.allclose(first, other)


@pytest.mark.more
@given(st.permutations(range(6)))
def test_numbering_the_clients_otherwise_changes_nothing(order: list[int]) -> None:
    population, rule = quadratics(), LocalRule(sgd, 0.05, 3, "full")
    labels = np.array([0, 0, 1, 1, 1, 0])
    renamed = make_population(population.data, [population.samples(k) for k in order])
    before = final(population, rule, linear_module(), 0, labels.tolist())
    after = final(renamed, rule, linear_module(), 0, labels[order].tolist())
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)


def test_full_batches_in_one_step_make_fedavg_gradient_descent_on_the_union() -> None:
    population, module, rule = quadratics(), linear_module(), LocalRule(sgd, 0.1, 1, "full")
    w = as_vector(read_model(module))
    x, y = population.data.inputs[population.indices], population.data.targets[population.indices]
    for _ in range(5):
        w = w - 0.1 * x.T @ (x @ w - y) / len(y)
    method = fedavg(population, rule, 5, 1.0)
    for step in train(method, Serial(Trainer(module, population, rule, 0)), init(method, read_model(module))):
        state = step.state
    assert state.server is not None
    np.testing.assert_allclose(as_vector(state.server), w, atol=1e-12)


@pytest.mark.parametrize("make", [sgd, momentum, adam])
def test_optimiser_state_starts_afresh_unless_carried(make: object) -> None:
    population, module = quadratics(), linear_module()
    rule = LocalRule(make, 0.05, 2, "full")  # type: ignore[arg-type]
    afresh = final(population, rule, module, 0, [0] * 6)
    carried = final(population, replace(rule, carry_moments=True), module, 0, [0] * 6)
    assert np.allclose(afresh, carried) == (make is sgd)


def test_dropout_is_drawn_from_the_seed_and_leaves_global_state_alone() -> None:
    population, rule = classification(), LocalRule(sgd, 0.1, 3, 4)
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)).double()
    before = torch.random.get_rng_state()
    first = final(population, rule, module, 0, [0, 0, 0, 1, 1, 1])
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert final(population, rule, module, 0, [0, 0, 0, 1, 1, 1]).tobytes() == first.tobytes()
    assert final(population, rule, module, 1, [0, 0, 0, 1, 1, 1]).tobytes() != first.tobytes()


def test_batch_normalisation_buffers_are_averaged() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    population, rule = classification(), LocalRule(sgd, 0.1, 3, 4)
    method = fedavg(population, rule, 1, 1.0)
    step = next(train(method, Serial(Trainer(module, population, rule, 0)), init(method, read_model(module))))
    assert step.state.server is not None
    assert step.state.server["0.num_batches_tracked"].item() == 3
    assert not torch.equal(step.state.server["0.running_mean"], torch.zeros(4, dtype=torch.float64))


def test_training_that_is_not_finite_names_event_cluster_and_client() -> None:
    population, module, rule = quadratics(), linear_module(), LocalRule(sgd, 1e200, 9, "full")
    method = fedcluster(population, Clustering(np.array([1, 1, 0, 0, 0, 0]), 2), rule, 1, 1.0, "fixed")
    with pytest.raises(RunError, match="event 0, cluster 0, client 2: training became not finite"):
        list(train(method, Serial(Trainer(module, population, rule, 0)), init(method, read_model(module))))


def test_centralized_refuses_several_clients() -> None:
    from atoll import centralized

    with pytest.raises(InputError, match="pooled population, got 6 clients"):
        centralized(quadratics(), LocalRule(sgd, 0.1), 1)


def test_a_model_that_fails_in_the_middle_names_event_cluster_and_client() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1, bias=False).double()
            self.calls = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls > 4:
                raise ValueError("not today")
            return self.layer(inputs)

    population, module, rule = quadratics(), Moody(), LocalRule(sgd, 0.1, 3, "full")
    method = fedavg(population, rule, 1, 1.0)
    with pytest.raises(RunError, match=r"event 0, cluster 0, client 1: training failed \(ValueError: not today\)"):
        list(train(method, Serial(Trainer(module, population, rule, 0)), init(method, read_model(module))))
