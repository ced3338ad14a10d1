"""Evaluation against direct computation, and the law of heterogeneity."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from atoll import Evaluator, generator, heterogeneity, make_population, read_model
from atoll.clustering.clustering import Clustering, one_cluster
from atoll.clustering.fedcluster import random
from tests.problems import classification, linear_module, network, quadratics


def overlapping() -> object:
    """Clients that share samples and hold some twice."""
    data = classification().data
    return make_population(data, [np.array([0, 0, 1]), np.array([1, 2, 3, 3, 3])])


def test_train_loss_is_that_of_the_union_with_multiplicity() -> None:
    population, module = overlapping(), network()
    held = torch.from_numpy(population.data.inputs[population.indices])  # type: ignore[attr-defined]
    targets = torch.from_numpy(population.data.targets[population.indices])  # type: ignore[attr-defined]
    with torch.no_grad():
        direct = cross_entropy(module(held), targets).item()
    score = Evaluator(population, module).score(read_model(module))  # type: ignore[arg-type]
    assert score.train_loss == pytest.approx(direct, abs=1e-12)


def test_test_loss_and_accuracy_by_hand() -> None:
    population, module = classification(), network()
    with torch.no_grad():
        outputs = module(torch.from_numpy(population.data.test_inputs))
    targets = torch.from_numpy(population.data.test_targets)
    score = Evaluator(population, module).score(read_model(module))
    assert score.test_loss == pytest.approx(cross_entropy(outputs, targets).item(), abs=1e-12)
    assert score.test_accuracy == (outputs.argmax(dim=1) == targets).double().mean().item()


def test_regression_has_losses_but_no_accuracy() -> None:
    population, module = quadratics(), linear_module()
    w = read_model(module)["0.weight"].numpy().ravel()
    x, y = population.data.inputs, population.data.targets
    score = Evaluator(population, module).score(read_model(module))
    assert score.train_loss == pytest.approx(np.mean((x @ w - y) ** 2) / 2)
    assert score.test_accuracy is None


def test_a_sample_of_the_union_is_fixed_by_the_seed() -> None:
    population, module = classification(clients=20), network()
    model = read_model(module)
    losses = [Evaluator(population, module, 15, seed).score(model).train_loss for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    everything = Evaluator(population, module, 10_000).score(model).train_loss
    assert everything == Evaluator(population, module).score(model).train_loss


@given(clients=st.integers(1, 8), clusters=st.integers(1, 8), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_clusters_are_never_more_different_than_clients(clients: int, clusters: int, seed: int) -> None:
    population, module = classification(clients=clients, seed=seed), network(seed=seed)
    clustering = random(population, min(clusters, clients), generator(seed, "clustering"))
    found = heterogeneity(population, clustering, module, read_model(module))
    assert found.cluster <= found.device + 1e-12


def test_heterogeneity_by_definition() -> None:
    population, module = quadratics(), linear_module()
    clustering = Clustering(np.array([0, 1, 1, 0, 2, 2]), 3)
    w = read_model(module)["0.weight"].numpy().ravel()
    x, y, p = population.data.inputs, population.data.targets, population.shares
    gradients = np.stack([x[r].T @ (x[r] @ w - y[r]) / len(r) for r in map(population.samples, range(6))])
    whole = p @ gradients
    device = sum(p[k] * ((gradients[k] - whole) ** 2).sum() for k in range(6))
    cluster = 0.0
    for c in range(3):
        members = clustering.members(c)
        q = p[members].sum()
        cluster += q * ((p[members] @ gradients[members] / q - whole) ** 2).sum()
    found = heterogeneity(population, clustering, module, read_model(module))
    assert found.device == pytest.approx(device)
    assert found.cluster == pytest.approx(cluster)


def test_one_cluster_has_none_and_single_clients_have_all() -> None:
    population, module = classification(), network()
    model = read_model(module)
    whole = heterogeneity(population, one_cluster(6), module, model)
    alone = heterogeneity(population, Clustering(np.arange(6), 6), module, model)
    assert whole.cluster == pytest.approx(0, abs=1e-12)
    assert alone.cluster == pytest.approx(alone.device)
    assert whole.device == pytest.approx(alone.device)
