"""What every partition must be, whatever the sizes and the seed."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import InputError, generator, make_population
from atoll.data import datasets
from atoll.data.dealing.class_counts import draw_counts, exact_counts
from atoll.data.dealing.partition import PARTITIONS, dirichlet, iid, major_class, one_label, shards
from tests.problems import classification

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [50, 70, 30, 60]))
CLASSES = 4
seeds = st.integers(0, 2**32)
counts_of_clients = st.integers(1, 20)


def assert_deals_out_everything(parts: object, complete: bool = True) -> None:
    taken = np.concatenate([np.asarray(part) for part in parts])  # type: ignore[attr-defined]
    assert len(np.unique(taken)) == len(taken)  # disjoint
    if complete:
        assert len(taken) == len(LABELS)


@given(clients=counts_of_clients, seed=seeds)
def test_iid_deals_out_the_pool_in_even_sizes(clients: int, seed: int) -> None:
    parts = iid(LABELS, clients, generator(seed, "partition"))
    assert_deals_out_everything(parts)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(clients=counts_of_clients, samples=st.integers(1, 40), seed=seeds)
def test_iid_with_samples_is_disjoint_while_the_pool_suffices(clients: int, samples: int, seed: int) -> None:
    parts = np.asarray(iid(LABELS, clients, generator(seed, "partition"), samples))
    assert parts.shape == (clients, samples)
    if clients * samples <= len(LABELS):
        assert_deals_out_everything(parts, complete=False)
    assert 0 <= parts.min() <= parts.max() < len(LABELS)


def test_iid_with_samples_deals_out_a_pool_that_just_suffices() -> None:
    parts = iid(np.zeros(12, np.int64), 3, generator(0, "partition"), samples=4)
    assert np.sort(np.asarray(parts), axis=None).tolist() == list(range(12))


def test_shards_are_dealt_at_random() -> None:
    """Two neighbouring shards of ten classes' sorted samples would be of one class."""
    labels = np.repeat(np.arange(10), 10)
    assert max(len({*labels[part].tolist()}) for part in shards(labels, 10, generator(0, "partition"))) == 2


def test_every_sample_of_a_class_may_be_drawn() -> None:
    drawn = draw_counts(np.array([0, 0, 1]), np.array([[64, 1]]), generator(0, "partition"))
    assert set(drawn[0].tolist()) == {0, 1, 2}


@given(clients=counts_of_clients, alpha=st.floats(0.3, 100), seed=seeds)
def test_dirichlet_deals_out_the_pool_and_leaves_nobody_empty(clients: int, alpha: float, seed: int) -> None:
    parts = dirichlet(LABELS, clients, CLASSES, generator(seed, "partition"), alpha)
    assert_deals_out_everything(parts)
    assert min(len(part) for part in parts) > 0


def test_dirichlet_draws_again_while_somebody_would_be_empty_but_not_for_ever() -> None:
    for seed in range(10):  # three of four draws leave somebody without samples
        parts = dirichlet(LABELS, 30, CLASSES, generator(seed, "partition"), 0.3)
        assert min(len(part) for part in parts) > 0
    with pytest.raises(InputError, match=r"data\.alpha = 0\.001: in each of 100 draws, some of 30 clients got no"):
        dirichlet(LABELS, 30, CLASSES, generator(0, "partition"), 0.001)


def test_dirichlet_concentration_sets_how_even_the_shares_are() -> None:
    def spread(alpha: float, samples: int | None) -> float:
        parts = dirichlet(LABELS, 10, CLASSES, generator(0, "partition"), alpha, samples)
        shares = np.stack([np.bincount(LABELS[part], minlength=CLASSES) / len(part) for part in parts])
        return float(shares.std(axis=0).mean())

    assert spread(0.3, None) > 3 * spread(100, None)
    assert spread(0.3, 50) > 3 * spread(100, 50)


@given(clients=counts_of_clients, each=st.integers(1, 5), seed=seeds)
def test_shards_deals_out_the_pool_and_few_labels_a_client(clients: int, each: int, seed: int) -> None:
    parts = shards(LABELS, clients, generator(seed, "partition"), each)
    assert_deals_out_everything(parts)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= each
    # A shard meets at most one boundary between labels more than it has whole labels inside.
    longest = -(-len(LABELS) // (clients * each))
    if longest <= 30:
        assert all(len(np.unique(LABELS[part])) <= 2 * each for part in parts)


@given(clients=counts_of_clients, samples=st.integers(1, 60), rho=st.floats(0.25, 1), seed=seeds)
def test_major_class_counts_are_the_exact_shares_rounded(clients: int, samples: int, rho: float, seed: int) -> None:
    parts = np.asarray(major_class(LABELS, clients, CLASSES, generator(seed, "partition"), rho, samples))
    assert parts.shape == (clients, samples)
    for k, part in enumerate(parts):
        counts = np.bincount(LABELS[part], minlength=CLASSES)
        major = k * CLASSES // clients
        shares = np.full(CLASSES, (1 - rho) / (CLASSES - 1))
        shares[major] = rho
        assert np.abs(counts - shares * samples).max() < 1 + 1e-6  # largest remainder keeps the quota
        assert counts.sum() == samples


def test_major_class_of_the_paper() -> None:
    labels = np.repeat(np.arange(10), 600)
    parts = np.asarray(major_class(labels, 1000, 10, generator(0, "partition"), 0.5, 500))
    counts = np.apply_along_axis(lambda part: np.bincount(labels[part], minlength=10), 1, parts)
    major = counts.argmax(axis=1)
    assert np.bincount(major).tolist() == [100] * 10  # 100 clients a class
    assert (counts[np.arange(1000), major] == 250).all()
    rest = counts[np.arange(10) != major[:, None]].reshape(1000, 9)
    assert set(rest.ravel()) == {27, 28}  # 250 / 9, rounded to sum to 250
    assert counts.sum(axis=0).tolist() == [50_000] * 10  # the remainders favour no class
    iid_parts = np.asarray(major_class(labels, 20, 10, generator(0, "partition"), 0.1, 500))
    assert all(np.bincount(labels[part]).tolist() == [50] * 10 for part in iid_parts)


@given(clients=counts_of_clients, seed=seeds)
def test_one_label_means_one_label(clients: int, seed: int) -> None:
    parts = one_label(LABELS, clients, CLASSES, generator(seed, "partition"))
    assert_deals_out_everything(parts, complete=clients >= CLASSES)
    for k, part in enumerate(parts):
        assert np.unique(LABELS[part]).tolist() == [k * CLASSES // clients]


@given(clients=st.integers(1, 60), ratio=st.floats(1, 50), seed=seeds)
def test_one_label_of_unequal_sizes(clients: int, ratio: float, seed: int) -> None:
    parts = one_label(LABELS, clients, CLASSES, generator(seed, "partition"), size_ratio=ratio)
    assert_deals_out_everything(parts, complete=clients >= CLASSES)
    sizes = np.array([len(part) for part in parts])
    label = np.arange(clients) * CLASSES // clients
    for own in (sizes[label == c] for c in np.unique(label)):
        spread = own.max() / own.min() if ratio > 1 else own.max() - own.min()
        assert own.min() >= 1
        assert spread <= (ratio * (1 + 3 / own.min()) if ratio > 1 else 1)  # rounding moves a cut by one sample


def test_sizes_reach_their_ratio_and_need_samples_dealt_out() -> None:
    sizes = np.array([len(part) for part in one_label(np.zeros(90_000, int), 300, 1, generator(0, "sizes"), None, 3.0)])
    assert sizes.sum() == 90_000
    assert sizes.max() / sizes.min() == pytest.approx(3, rel=0.1)
    with pytest.raises(InputError, match=r"data.size_ratio = 2.0: must be 1 with data.samples"):
        one_label(LABELS, 3, CLASSES, generator(0, "partition"), samples=5, size_ratio=2.0)


@given(
    shares=st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=5),
    total=st.integers(0, 1000),
)
def test_exact_counts_sum_and_stay_within_one(shares: list[list[float]], total: int) -> None:
    table = np.array(shares)
    table /= table.sum(axis=1, keepdims=True)
    counts = exact_counts(table, total, np.zeros(len(table), int))
    assert (counts.sum(axis=1) == total).all()
    assert np.abs(counts - table * total).max(initial=0) < 1 + 1e-6


def test_what_is_left_of_equal_shares_goes_to_the_classes_after_the_first() -> None:
    found = exact_counts(np.full((3, 3), 1 / 3), 5, np.arange(3))
    assert found.tolist() == [[1, 2, 2], [2, 1, 2], [2, 2, 1]]
    assert exact_counts(np.full((1, 3), 1 / 3), 4, np.array([2])).tolist() == [[2, 1, 1]]


@pytest.mark.parametrize(
    "name", [name for name in PARTITIONS if name not in ("natural", "file")]
)  # which draws nothing
def test_equal_seeds_give_equal_partitions(name: str) -> None:
    rule = PARTITIONS[name]
    classes = (
        {"classes": CLASSES}
        if name in ("dirichlet", "major-class", "one-label", "some-labels", "labels-and-quantity")
        else {}
    )
    first, second, other = (rule(LABELS, 7, rng=generator(seed, "partition"), **classes) for seed in (1, 1, 2))
    as_bytes = [b"".join(np.asarray(part).tobytes() for part in parts) for parts in (first, second, other)]
    assert as_bytes[0] == as_bytes[1] != as_bytes[2]


@pytest.mark.parametrize(
    ("rho", "allowed"), [(0.09, "between 1/classes = 0.1 and 1"), (1.01, "and 1"), (float("nan"), "a finite number")]
)
def test_rho_device_outside_its_range_is_refused(rho: float, allowed: str) -> None:
    with pytest.raises(InputError, match=rf"data\.rho_device = {rho}: must be .*{re.escape(allowed)}"):
        major_class(np.arange(10), 3, 10, generator(0, "partition"), rho, 10)


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"data\.clients = 300"):
        iid(LABELS, 300, generator(0, "partition"))
    with pytest.raises(InputError, match=r"data\.clients = 300.*label 0 has 50 samples for 75 clients"):
        one_label(LABELS, 300, CLASSES, generator(0, "partition"))


def test_population_reads_partitions_of_both_forms() -> None:
    data = classification().data
    table = make_population(data, np.array([[0, 1], [1, 2]]))
    ragged = make_population(data, [np.array([0, 1]), np.array([1, 2])])
    assert table.sizes.tolist() == ragged.sizes.tolist() == [2, 2]
    assert table.samples(1).tolist() == ragged.samples(1).tolist() == [1, 2]
    assert np.shares_memory(table.samples(1), table.indices)


@given(clients=counts_of_clients, seed=seeds)
def test_population_counts_classes_and_shares(clients: int, seed: int) -> None:
    data = datasets.load("digits")
    population = make_population(data, iid(data.targets, clients, generator(seed, "partition"), 30))
    counts = population.class_counts()
    for k in range(clients):
        assert counts[k].tolist() == np.bincount(data.targets[population.samples(k)], minlength=10).tolist()
    assert population.shares.sum() == pytest.approx(1)
    assert population.pooled().sizes.tolist() == [clients * 30]


def test_population_refuses_clients_without_samples_and_foreign_indices() -> None:
    data = classification().data
    with pytest.raises(InputError, match="client 1 has no samples"):
        make_population(data, [np.array([0]), np.array([], int)])
    with pytest.raises(InputError, match=r"indices must be integers from 0 to \d+; they are from 0 to 10000$"):
        make_population(data, [np.array([0]), np.array([10_000])])
    with pytest.raises(InputError, match="no samples for any client"):
        make_population(data, [])
