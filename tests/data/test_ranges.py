"""Clients' indices that are drawn when needed: the same every time, in the counts of the partition, in no memory."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import Experiment, InputError, generator, make_population, make_runs, run_events
from atoll.data.dealing.partition import iid, major_class, one_label
from atoll.data.dealing.ranges import DrawnIndices, Ranges
from atoll.evaluation.scores import Evaluator
from tests.problems import classification, network
from tests.tiers import thinned

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [50, 70, 30, 60]))
CLASSES = 4
DRAWN: dict[str, Any] = {"indices": "drawn"}


def drawn_by(partition: str, clients: int, samples: int, seed: int = 0) -> Ranges:
    rng = generator(seed, "partition")
    if partition == "iid":
        made = iid(LABELS, clients, rng, samples, **DRAWN)
    elif partition == "major-class":
        made = major_class(LABELS, clients, CLASSES, rng, 0.7, samples, **DRAWN)
    else:
        made = one_label(LABELS, clients, CLASSES, rng, samples, **DRAWN)
    assert isinstance(made, Ranges)
    assert isinstance(made.indices, DrawnIndices)
    return made


@pytest.mark.parametrize("clients", [4, 37, 200])
def test_clients_have_the_counts_of_indices_that_are_held(clients: int) -> None:
    rng = generator(0, "partition")
    all_held = {
        "major-class": major_class(LABELS, clients, CLASSES, rng, 0.7, 9),
        "one-label": one_label(LABELS, clients, CLASSES, rng, 9),
    }
    for partition, held in all_held.items():
        drawn = drawn_by(partition, clients, 9)
        assert len(drawn) == clients
        for one, other in zip(held, drawn, strict=True):
            np.testing.assert_array_equal(np.bincount(LABELS[one]), np.bincount(LABELS[other]))


@given(st.integers(1, 70), st.integers(1, 12), st.integers(0, 99), st.data())
def test_a_part_is_that_of_the_whole(clients: int, samples: int, seed: int, data: st.DataObject) -> None:
    drawn = drawn_by("iid", clients, samples, seed).indices
    whole = np.asarray(drawn)
    assert whole.shape == (clients * samples,)
    assert 0 <= whole.min() <= whole.max() < len(LABELS)
    low, high = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=2, max_size=2)))
    np.testing.assert_array_equal(drawn[low:high], whole[low:high])
    places = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20)), int)
    np.testing.assert_array_equal(drawn[places], whole[places])
    assert drawn[low:high].dtype == drawn[places].dtype == np.int32


def test_every_sample_is_drawn_equally_often_and_clients_differ() -> None:
    held = np.asarray(drawn_by("iid", 3_000, 10).indices)
    often = np.bincount(held, minlength=len(LABELS))
    expected = len(held) / len(LABELS)
    assert ((often - expected) ** 2 / expected).sum() < 270  # chi squared, 209 degrees: 0.3 % are above
    assert len({row.tobytes() for row in held.reshape(-1, 10)}) == 3_000


def test_a_million_clients_take_their_offsets_alone() -> None:
    data = classification(clients=4).data
    tracemalloc.start()
    population = make_population(data, iid(data.labels, 1_000_000, generator(0, "partition"), 50, **DRAWN))
    assert len(population.samples(999_999)) == 50
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * 1_000_000  # with their sizes, and arrays of a check; 200 a client if indices were held
    assert repr(population).startswith("Population(1,000,000 clients")


def test_scores_and_class_counts_are_those_of_the_same_indices_held() -> None:
    data = classification(clients=4).data
    drawn = make_population(
        data, major_class(data.labels, 50, data.classes, generator(0, "partition"), 0.7, 6, **DRAWN)
    )
    held = make_population(data, np.asarray(drawn.indices).reshape(50, 6))
    np.testing.assert_array_equal(drawn.class_counts(), held.class_counts())
    np.testing.assert_array_equal(drawn.pooled().samples(0), held.pooled().samples(0))
    module = network().float()
    for samples in (None, 20):
        one, other = (Evaluator(each, module, samples) for each in (drawn, held))
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.more
@pytest.mark.parametrize("partition", thinned(["one-label", "iid", "major-class"], 1))
def test_a_run_is_the_same_on_other_executors(partition: str, tmp_path: Path) -> None:
    found = []
    for executor in ("serial", "cores"):
        table = {
            "rounds": 2,
            "data": {"clients": 2_000, "samples": 8, "partition": partition, "indices": "drawn", "held_out_clients": 3},
            "model": {"name": "linear"},
            "method": {"name": "fedavg", "fraction": 0.01},
            "local": {"steps": 2, "batch_size": 4},
            "run": {"executor": executor, "workers": 2},
        }
        (settings,) = make_runs(table)
        rows = [each.row or {} for each in run_events(Experiment(settings), tmp_path / executor)]
        found.append([{**row, "wall_time": 0} for row in rows])
    assert found[0] == found[1]


@pytest.mark.parametrize("partition", ["iid", "one-label"])
def test_a_whole_pool_cannot_be_dealt_out_by_draws(partition: str) -> None:
    message = "data.indices = 'drawn': needs data.samples, since a whole pool cannot be dealt out by draws"
    (settings,) = make_runs({"data": {"partition": partition, "indices": "drawn"}})
    with pytest.raises(InputError, match=message):
        Experiment(settings).population  # noqa: B018
