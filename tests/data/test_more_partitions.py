"""Partitions by quantity, by some labels, by both, and from a file."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

from atoll import Dataset, Experiment, make_runs
from atoll.data.dealing.partition import natural
from atoll.data.dealing.skewed import labels_and_quantity, quantity, some_labels
from atoll.data.population import partition_as_bytes
from atoll.settings.validation import validate
from atoll.support.errors import InputError

LABELS = np.repeat(np.arange(10), 2000)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_whole(parts: object, pool: int = len(LABELS)) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts))), np.arange(pool))  # type: ignore[call-overload]


def test_sizes_are_log_normal() -> None:
    parts = quantity(LABELS, 400, rng(), sigma=0.7)
    assert_whole(parts)
    logs = np.log([len(part) for part in parts])
    assert kstest((logs - logs.mean()) / 0.7, "norm").pvalue > 0.01
    assert logs.std() == pytest.approx(0.7, rel=0.1)


def test_sizes_are_a_draw_of_a_dirichlet_distribution() -> None:
    shares = np.concatenate(
        [
            [len(part) / len(LABELS) for part in quantity(LABELS, 5, rng(seed), "dirichlet", alpha=2.0)]
            for seed in range(80)
        ]
    )
    assert kstest(shares, "beta", args=(2.0, 8.0)).pvalue > 0.01  # the margin of Dirichlet(2, ..., 2) over five


def test_each_client_has_so_many_labels() -> None:
    parts = some_labels(LABELS, 30, 10, rng(), labels_per_client=3)
    assert_whole(parts)
    assert {len(np.unique(LABELS[part])) for part in parts} == {3}
    assert all(k % 10 in LABELS[part] for k, part in enumerate(parts))
    with pytest.raises(InputError, match=r"data.labels_per_client = 11: must be at most the data's 10 classes"):
        some_labels(LABELS, 30, 10, rng(), labels_per_client=11)


def test_labels_and_sizes_differ_together() -> None:
    parts = labels_and_quantity(LABELS, 40, 10, rng(), alpha=0.3, sigma=1.0)
    assert_whole(parts)
    sizes = np.array([len(part) for part in parts])
    even = np.array([len(part) for part in labels_and_quantity(LABELS, 40, 10, rng(), alpha=0.3, sigma=0.0)])
    assert np.log(sizes).std() > 1.3 * np.log(even).std()
    shares = np.array([np.bincount(LABELS[part], minlength=10) / len(part) for part in parts])
    assert shares.max(axis=1).mean() > 0.3  # 0.1 if labels were mixed


@pytest.mark.parametrize("rule", [quantity, partial(labels_and_quantity, classes=10)], ids=["quantity", "both"])
def test_sizes_that_no_number_holds_are_refused(rule: Any) -> None:
    """Shares of infinity over infinity are none, and clients would hold the same samples."""
    with pytest.raises(
        InputError, match=r"data.sigma = 1000.0: must be a finite number of at least 0 and at most 100$"
    ):
        rule(labels=LABELS, clients=10, rng=rng(), sigma=1000.0)
    assert_whole(quantity(LABELS, 10, rng(), sigma=100.0))


def test_small_clients_are_left_out() -> None:
    owners = np.array([0, 0, 1, 2, 2, 2])
    assert [rows.tolist() for rows in natural(2, owners, min_samples=2)] == [[0, 1], [3, 4, 5]]
    with pytest.raises(InputError, match=r"data.clients = 3: the data has only 2 clients with data.min_samples = 2;"):
        natural(3, owners, min_samples=2)
    with pytest.raises(InputError, match=r"only 1 client with data.min_samples = 3; take at most 1 in all, the first"):
        natural(2, owners, min_samples=3)
    with pytest.raises(InputError, match=r"only 0 clients with data.min_samples = 4; lower data.min_samples$"):
        natural(2, owners, min_samples=4)


def test_a_partition_goes_through_a_file(tmp_path: Path) -> None:
    made = Experiment(validate({"data": {"partition": "labels-and-quantity", "clients": 12}, "seed": 5}))
    path = tmp_path / "who.npz"
    path.write_bytes(partition_as_bytes(made.clients.dealt, made.clients.test))
    data = {"partition": "file", "partition_file": str(path), "clients": 12}
    again = Experiment(validate({"data": data}))
    np.testing.assert_array_equal(again.clients.dealt.indices, made.clients.dealt.indices)
    np.testing.assert_array_equal(again.clients.dealt.offsets, made.clients.dealt.offsets)
    np.testing.assert_array_equal(again.clients.test.indices, made.clients.test.indices)
    for changed, told in (
        ({"clients": 13}, r"data.clients = 13: data.partition_file = '.*' has 12 clients"),
        ({"dataset": "regression"}, r"belongs to another data set, with other labels"),
        ({"partition_file": str(tmp_path)}, r"data.partition_file: .*: cannot be read"),
    ):
        with pytest.raises(InputError, match=told):
            Experiment(validate({"data": {**data, **changed}})).check()
    np.savez(path, indices=np.arange(3))
    with pytest.raises(InputError, match=r"is not a partition .*; it must hold indices, offsets, digest, test_indices"):
        Experiment(validate({"data": data})).check()


@pytest.mark.parametrize("partition", ["one-label", "major-class", "some-labels"])
def test_few_clients_are_tested_on_the_classes_that_they_hold(partition: str) -> None:
    """As many test clients per sample were two, of the classes 0 and 5."""
    settings = {"data": {"partition": partition, "clients": 10}, "method": {"name": "ifca", "clusters": 2}}
    clients = Experiment(validate(settings)).clients
    held, tested = (each.class_counts().sum(axis=0) for each in (clients.dealt, clients.test))
    np.testing.assert_allclose(tested / tested.sum(), held / held.sum(), atol=0.01)


@pytest.mark.parametrize("partition", ["one-label", "major-class", "dirichlet"])
def test_data_may_have_more_classes_than_a_byte_counts(partition: str) -> None:
    """Samples are drawn by class, and labels above 127 are drawn like the others."""
    settings = {"partition": partition, "samples": 200, "clients": 300, "dataset": f"{__name__}:many_classes"}
    held = Experiment(validate({"data": settings})).clients.population.class_counts().sum(axis=0)
    assert held.shape == (300,)
    assert (held[:128] > 0).mean() == pytest.approx((held[128:] > 0).mean(), abs=0.05)


def many_classes() -> Dataset:
    targets = np.repeat(np.arange(300), 4)
    inputs = np.zeros((len(targets), 2), np.float32)
    return Dataset("many", inputs, targets, inputs[:9], targets[:9], classes=300)


def test_clients_held_out_are_named_where_there_are_too_few() -> None:
    data = {"clients": 2000, "held_out_clients": 2, "partition": "shards"}
    with pytest.raises(
        InputError, match=r"^data\.clients \+ data\.held_out_clients = 2000 \+ 2: data\.clients = 2002: "
    ):
        Experiment(make_runs({"data": data})[0]).check()


def test_where_the_data_say_who_holds_what_those_held_out_count_too() -> None:
    told = r"^data\.clients \+ data\.held_out_clients = 3 \+ 2: data\.clients = 5: the data has only 4 clients; "
    data = {"dataset": f"{__name__}:of_four_clients", "clients": 3, "held_out_clients": 2, "partition": "natural"}
    with pytest.raises(InputError, match=told + "take at most 4 in all, the first ones$"):
        Experiment(make_runs({"data": data})[0]).check()


def of_four_clients() -> Dataset:
    return replace(many_classes(), owners=np.arange(1200) % 4, test_owners=np.arange(9) % 4)
