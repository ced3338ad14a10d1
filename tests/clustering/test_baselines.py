"""What comaw and dataw must be for any network and any population."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import Dataset, Population, make_population
from atoll.clustering.clustering import Clustering
from atoll.clustering.feduc.baselines import comaw, dataw
from atoll.network.network import Network
from atoll.support.arrays import Ids

seeds = st.integers(0, 2**32)
few = st.integers(1, 9)


def some_network(clients: int, aggregators: int, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    uploads = rng.integers(1, 5, (clients, aggregators)) / 4  # few values, so that there are ties
    exchange = np.ones((aggregators, aggregators)) - np.eye(aggregators)
    return Network(np.ones(clients), uploads, np.ones(aggregators), exchange, ((),) * aggregators)


def skewed(sizes: Ids, seed: int, classes: int = 4) -> Population:
    """Clients of these sizes; each one's samples are mostly of one class."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    major = rng.integers(classes, size=len(sizes))[owner]
    labels = np.where(rng.random(len(owner)) < 0.7, major, rng.integers(classes, size=len(owner)))
    data = Dataset("skewed", np.zeros((len(owner), 1)), labels, np.zeros((1, 1)), labels[:1], classes=classes)
    return make_population(data, np.split(np.arange(len(owner)), np.cumsum(sizes)[:-1]))


def slow_dataw(population: Population, clusters: int) -> list[int]:
    """In words: the largest client first, to the cluster that its samples bring most nearer to the whole."""
    counts = [[int(n) for n in row] for row in population.class_counts()]
    classes = range(len(counts[0]))
    whole = [sum(row[c] for row in counts) / sum(map(sum, counts)) for c in classes]
    cap = -(-len(counts) // clusters)

    def distance(members: list[int]) -> float:
        held = [sum(counts[k][c] for k in members) for c in classes]
        return sum((held[c] / sum(held) - whole[c]) ** 2 for c in classes) if members else 1.0

    members: list[list[int]] = [[] for _ in range(clusters)]
    for client in sorted(range(len(counts)), key=lambda k: (-sum(counts[k]), k)):
        best, least = -1, float("inf")
        for cluster in range(clusters):
            if len(members[cluster]) == cap:
                continue
            rise = distance([*members[cluster], client]) - distance(members[cluster])
            if rise < least - 1e-12:
                best, least = cluster, rise
        members[best].append(client)
    return [next(j for j in range(clusters) if k in members[j]) for k in range(len(counts))]


@given(clients=few, aggregators=few, seed=seeds)
def test_comaw_takes_the_shortest_upload_and_the_lower_index(clients: int, aggregators: int, seed: int) -> None:
    network = some_network(clients, aggregators, seed)
    made = comaw(network)
    assert made.clusters == aggregators
    for client, uploads in enumerate(network.upload_seconds.tolist()):
        assert made.labels[client] == uploads.index(min(uploads))


@given(clients=few, aggregators=few, seed=seeds)
def test_comaw_does_not_depend_on_the_order_of_clients(clients: int, aggregators: int, seed: int) -> None:
    network = some_network(clients, aggregators, seed)
    order = np.random.default_rng(seed).permutation(clients)
    shuffled = Network(
        network.compute_seconds[order],
        network.upload_seconds[order],
        network.transfer_seconds,
        network.exchange_seconds,
        network.neighbours,
    )
    assert comaw(shuffled).labels.tolist() == comaw(network).labels[order].tolist()


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12), clusters=few, seed=seeds)
def test_dataw_is_what_its_words_say(sizes: list[int], clusters: int, seed: int) -> None:
    population = skewed(np.array(sizes), seed)
    assert dataw(population, clusters).labels.tolist() == slow_dataw(population, clusters)


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=30), clusters=few, seed=seeds)
def test_dataw_places_everyone_within_the_cap(sizes: list[int], clusters: int, seed: int) -> None:
    made = dataw(skewed(np.array(sizes), seed), clusters)
    assert made.labels.min() >= 0
    assert made.sizes.sum() == len(sizes)
    assert made.sizes.max() <= np.ceil(len(sizes) / clusters)


@given(clients=st.integers(1, 12), clusters=few, seed=seeds)
def test_dataw_does_not_depend_on_the_order_of_clients_of_different_sizes(
    clients: int, clusters: int, seed: int
) -> None:
    population = skewed(np.arange(3, 3 + clients), seed)
    order = np.random.default_rng(seed).permutation(clients)
    shuffled = make_population(population.data, [population.samples(k) for k in order])
    assert dataw(shuffled, clusters).labels.tolist() == dataw(population, clusters).labels[order].tolist()


def mean_emd(population: Population, made: Clustering) -> float:
    counts = population.class_counts()
    held = np.stack([counts[made.members(j)].sum(axis=0) for j in range(made.clusters) if made.sizes[j]])
    return float(np.abs(held / held.sum(axis=1, keepdims=True) - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean())


@pytest.mark.parametrize("equal", [True, False])
def test_dataw_mixes_clients_of_one_class_better_than_chance(equal: bool) -> None:
    """The paper's data: ten clients a class."""
    sizes = np.full(100, 30) if equal else np.random.default_rng(0).integers(10, 60, 100)
    labels = np.repeat(np.arange(100) // 10, sizes)
    data = Dataset("one-label", np.zeros((len(labels), 1)), labels, np.zeros((1, 1)), labels[:1], classes=10)
    population = make_population(data, np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1]))
    chance = [Clustering(np.random.default_rng(seed).permutation(100) % 16, 16) for seed in range(5)]
    least_by_chance = min(mean_emd(population, made) for made in chance)
    assert mean_emd(population, dataw(population, 16)) < 0.95 * least_by_chance
