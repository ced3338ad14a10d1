"""Evaluation against direct computation, and the law of heterogeneity."""

import os
import threading
import time
from dataclasses import replace
from threading import current_thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atoll import Dataset, Evaluator, Population, generator, heterogeneity, make_population, read_model
from atoll.clustering.clustering import Clustering, one_cluster
from atoll.clustering.fedcluster_clusterings import random
from atoll.evaluation.scores import ClusterEvaluator
from tests.problems import classification, linear_module, network, quadratics
from tests.tiers import part_of


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


def test_a_draw_of_all_samples_but_one_leaves_one_out() -> None:
    """It is drawn without replacement, and is the mean of what it drew."""
    population, module = classification(), network()
    model, count = read_model(module), len(population.indices)
    rows = torch.from_numpy(population.data.inputs), torch.from_numpy(population.data.targets)
    with torch.no_grad():
        losses = cross_entropy(module(rows[0]), rows[1], reduction="none").numpy()
    drawn = Evaluator(population, module, count - 1).train_loss(model)
    assert np.abs(losses - (losses.sum() - (count - 1) * drawn)).min() < 1e-9


@given(clients=st.integers(1, 8), clusters=st.integers(1, 8), seed=st.integers(0, 100))
@settings(max_examples=part_of(40))
def test_clusters_are_never_more_different_than_clients(clients: int, clusters: int, seed: int) -> None:
    population, module = classification(clients=clients, seed=seed), network(seed=seed)
    clustering = random(population, min(clusters, clients), generator(seed, "clustering"))
    found = heterogeneity(population, clustering, module, read_model(module))
    assert found.cluster <= found.device + 1e-12


@pytest.mark.parametrize("samples", [8, 1200])
def test_heterogeneity_by_definition(samples: int) -> None:
    population, module = quadratics(samples=samples), linear_module()
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


def test_clients_without_a_cluster_count_in_no_heterogeneity() -> None:
    population, module = quadratics(), linear_module()
    model, labels = read_model(module), np.array([0, -1, 1, 0, -1, 1])
    members = make_population(population.data, [population.samples(int(k)) for k in np.flatnonzero(labels >= 0)])
    alone = heterogeneity(members, Clustering(labels[labels >= 0], 2), module, model)
    assert heterogeneity(population, Clustering(labels, 2), module, model) == alone


class Recurrent(nn.Module):
    """Takes each input as a sequence of numbers; notes whether cuDNN may be used."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.taken = layer, list[bool]()

    def forward(self, inputs: Tensor) -> Tensor:
        self.taken.append(torch.backends.cudnn.enabled)
        out = self.layer(inputs[:, :, None])
        return (out[0] if isinstance(out, tuple) else out)[:, -1]


@pytest.mark.parametrize(("layer", "uses"), [(nn.LSTM(1, 3, batch_first=True), False), (nn.Linear(1, 3), True)])
def test_gradients_of_recurrent_layers_are_taken_without_cudnn(layer: nn.Module, uses: bool) -> None:
    """Its recurrent layers have no gradients in evaluation mode."""
    module = Recurrent(layer).double()
    assert heterogeneity(classification(), one_cluster(6), module, read_model(module)).device > 0
    assert set(module.taken) == {uses}
    assert torch.backends.cudnn.enabled


def test_one_cluster_has_none_and_single_clients_have_all() -> None:
    population, module = classification(), network()
    model = read_model(module)
    whole = heterogeneity(population, one_cluster(6), module, model)
    alone = heterogeneity(population, Clustering(np.arange(6), 6), module, model)
    assert whole.cluster == pytest.approx(0, abs=1e-12)
    assert alone.cluster == pytest.approx(alone.device)
    assert whole.device == pytest.approx(alone.device)


def test_a_client_without_a_cluster_chooses_among_those_with_clients() -> None:
    population, module = classification(), network()
    best = read_model(module)
    worse, worst = ({name: each * far for name, each in best.items()} for far in (30.0, 60.0))
    evaluator = ClusterEvaluator(population, population, module)
    assert evaluator.score([worst, worse, best]).confusion.tolist() == [[0, 0, 6]]
    found = evaluator.score([worst, worse, best], np.array([0, 0, 1, 1, 1, -1]))
    assert found.confusion.tolist() == [[2, 4, 0]]  # nobody is in the last cluster


@pytest.mark.parametrize("paired", [False, True])
def test_learned_clusters_are_scored_by_hand(paired: bool) -> None:
    """Models 0 and 2 are of nobody; a test client takes its client's model, or that of its least loss."""
    population, tests = (unequal(classification(samples=12, seed=seed)) for seed in (0, 1))
    modules, labels = [network(seed=seed) for seed in range(4)], np.array([3, 1, 1, -1, 3, 1])

    def measured(whose: Population, client: int, cluster: int) -> tuple[float, float]:
        rows = whose.samples(client)
        targets = torch.from_numpy(whose.data.targets[rows])
        with torch.no_grad():
            outputs = modules[cluster](torch.from_numpy(whose.data.inputs[rows]))
        return cross_entropy(outputs, targets).item(), (outputs.argmax(dim=1) == targets).double().mean().item()

    def least(whose: Population, client: int) -> int:
        return min((1, 3), key=lambda cluster: measured(whose, client, cluster)[0])

    own = [label if label >= 0 else least(population, k) for k, label in enumerate(labels.tolist())]
    chosen = own if paired else [least(tests, k) for k in range(6)]
    trained = [measured(population, k, cluster)[0] for k, cluster in enumerate(own)]
    tested = np.array([measured(tests, k, cluster) for k, cluster in enumerate(chosen)])
    models = [read_model(module) for module in modules]
    found = ClusterEvaluator(population, tests, network(), paired=paired).score(models, labels)
    whole = np.average(tested, axis=0, weights=tests.sizes)
    assert (found.score.test_loss, found.score.test_accuracy) == pytest.approx((whole[0], whole[1]))
    assert found.score.train_loss == pytest.approx(np.average(trained, weights=population.sizes))
    assert found.confusion.tolist() == [np.bincount(own, minlength=4).tolist()]
    assert found.accuracies[::2] == found.losses[::2] == (None, None)
    for cluster in (1, 3):
        its = np.equal(chosen, cluster)
        loss, accuracy = np.average(tested[its], axis=0, weights=tests.sizes[its])
        assert (found.losses[cluster], found.accuracies[cluster]) == pytest.approx((loss, accuracy))


def unequal(population: Population) -> Population:
    """Clients that hold 2, 4, 6, ... of their samples."""
    return make_population(population.data, [population.samples(k)[: 2 + 2 * k] for k in range(len(population))])


def test_a_draw_of_clients_has_about_so_many_samples_and_every_planted_group() -> None:
    whole = classification(clients=10).data
    data = replace(whole, groups=np.repeat([0, 1, 2], [5, 4, len(whole) - 9]))
    parts = np.split(np.arange(20), np.arange(1, 10))  # nine clients of one sample, and one of eleven
    population, models = make_population(data, parts), [read_model(network(seed=seed)) for seed in range(2)]
    drawn = [ClusterEvaluator(population, population, network(), 10, seed, paired=True) for seed in range(5)]
    assert {len(each.clients) for each in drawn} == {5}
    assert {each.score(models).confusion.shape for each in drawn} == {(3, 2)}
    everyone = ClusterEvaluator(population, population, network()).score(models)
    assert {each.score(models).score.test_loss for each in drawn} == {everyone.score.test_loss}


def test_a_draw_of_clients_leaves_what_is_measured_of_paired_test_clients() -> None:
    """Each uses its client's model, also if the training loss is of other clients."""
    population, tests = (classification(samples=12, seed=seed) for seed in (0, 1))
    models = [read_model(network(seed=seed)) for seed in range(4)]
    for labels in (None, np.array([3, 1, 1, -1, 3, 1]), np.array([3, 1, 1, 0, 3, 1])):
        drawn, every = (
            ClusterEvaluator(population, tests, network(), samples, paired=True).score(models, labels)
            for samples in (24, None)
        )
        assert drawn.confusion.sum() == 2
        assert (drawn.accuracies, drawn.losses) == (every.accuracies, every.losses)
        assert drawn.score.test_loss == every.score.test_loss


class Noting(nn.Module):
    """A linear model that notes which thread takes which batches, and of how many threads its products are."""

    def __init__(self, taken: list[tuple[str, int, int]], width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 3)
        self.taken = taken

    def __deepcopy__(self, memo: dict[int, object]) -> "Noting":
        copy = Noting(self.taken, self.layer.in_features).to(self.layer.weight.dtype)
        copy.load_state_dict(self.state_dict())
        return copy

    def forward(self, inputs: Tensor) -> Tensor:
        self.taken.append((current_thread().name, len(inputs), torch.get_num_threads()))
        time.sleep(0.02)  # so that another thread gets a turn
        assert not torch.is_grad_enabled()
        return self.layer(inputs.flatten(1))


def test_threads_share_batches_and_change_no_bits() -> None:
    population = classification(clients=300, samples=10)
    taken: list[tuple[str, int, int]] = []
    module = Noting(taken, 4).double().eval()
    models = [{name: tensor * scale for name, tensor in read_model(module).items()} for scale in (1.0, -2.0)]
    alone = (
        Evaluator(population, module).score(models[1]),
        ClusterEvaluator(population, population, module).score(models),
    )
    assert {name for name, _, _ in taken} == {current_thread().name}
    taken.clear()
    before = torch.get_num_threads()
    assert Evaluator(population, module, threads=3).score(models[1]) == alone[0]
    found = ClusterEvaluator(population, population, module, threads=3).score(models)
    assert found.score == alone[1].score
    assert np.array_equal(found.confusion, alone[1].confusion)
    assert len({name for name, _, _ in taken}) > 1
    assert {threads for _, _, threads in taken} == {1}
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_stay_since_workers_are_forked_and_a_forked_process_has_its_own() -> None:
    """A thread that ends holds a lock of MKL for a moment, in which a fork would leave it held for ever."""
    population, module = classification(clients=300, samples=10), nn.Linear(4, 3).double()
    model = read_model(module)
    expected = Evaluator(population, module, threads=2).score(model)
    there = set(threading.enumerate())
    assert len(there) > 1
    assert Evaluator(population, module, threads=2).score(model) == expected
    assert set(threading.enumerate()) == there
    child = os.fork()
    if child == 0:
        os._exit(0 if Evaluator(population, module, threads=2).score(model) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_error_in_a_thread_is_raised() -> None:
    population, module = classification(clients=300, samples=10), nn.Linear(5, 3).double()
    with pytest.raises(RuntimeError, match="shapes"):
        Evaluator(population, module, threads=2).train_loss(read_model(module))


def test_large_inputs_are_measured_in_batches_that_fit_the_cache() -> None:
    images = np.zeros((600, 3, 32, 32), np.uint8)
    data = Dataset("images", images, np.zeros(600, np.int64), images[:300], np.zeros(300, np.int64), 3)
    taken: list[tuple[str, int, int]] = []
    module = Noting(taken, 3072)
    Evaluator(make_population(data, [np.arange(600)]), module).score(read_model(module))
    assert [count for _, count, _ in taken] == [256, 256, 88, 256, 44]
