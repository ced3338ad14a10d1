"""What clients report in the place of what was assumed of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, Population
from atoll.clustering.fedcluster_clusterings import major_class
from atoll.fleet.agreed.messages import ClientReport
from atoll.fleet.agreed.randomised_response import respond
from atoll.fleet.server.client_reports import as_reported, reported_table
from atoll.fleet.server.measured_times import MeasuredTimes
from atoll.settings.validation import validate

POPULATION = Experiment(validate({"data": {"clients": 4, "samples": 30}})).population


def reported(population: Population = POPULATION, **told: Any) -> Population:
    """Each value is a list with one entry a client."""
    reports = {}
    for client in range(4):
        own = {name: values[client] for name, values in told.items()}
        reports[client] = ClientReport(client=client, **({"samples": 30} | own))
    return as_reported(population, reported_table(reports, 4))


def test_what_is_the_same_changes_nothing() -> None:
    assert reported() is POPULATION
    with_offsets = replace(POPULATION, attributes={"utc_offset": np.array([1.0, 2.0, 3.0, 4.0])})
    assert reported(with_offsets) is with_offsets
    assert reported(with_offsets, utc_offset=[1.0, None, 3.0, 4.0]) is with_offsets
    assert as_reported(POPULATION, reported_table({}, 4)) is POPULATION


def test_samples_take_the_place_of_the_own_partitions() -> None:
    told = reported(samples=[5, 30, 10**15, 40])
    assert told.sizes.tolist() == [5, 30, 10**15, 40]
    assert told.shares.sum() == pytest.approx(1)
    assert told.samples(0).tolist() == POPULATION.samples(0).tolist()
    assert np.array_equal(told.class_counts(), POPULATION.class_counts())
    assert told.pooled().sizes.tolist() == [120]


def test_a_later_report_of_the_same_samples_leaves_them_as_reported() -> None:
    first = reported(samples=[5, 30, 7, 40], utc_offset=[1.0] * 4)
    moved = reported(first, samples=[5, 30, 7, 40], utc_offset=[2.0, 1.0, 1.0, 1.0])
    assert moved.sizes.tolist() == [5, 30, 7, 40]
    assert moved.attributes["utc_offset"].tolist() == [2.0, 1.0, 1.0, 1.0]
    assert reported(moved, samples=[5, 30, 7, 40], utc_offset=[2.0, 1.0, 1.0, 1.0]) is moved


def test_who_does_not_tell_keeps_what_was_assumed() -> None:
    known = replace(POPULATION, attributes={"longitude": np.array([15.0, 30.0, 45.0, 60.0])})
    assert "utc_offset" not in reported(utc_offset=[5.0, None, 5.0, 5.0]).attributes
    assert reported(known, utc_offset=[-5.0, None, 0.5, None]).attributes["utc_offset"].tolist() == [
        -5.0,
        2.0,
        0.5,
        4.0,
    ]
    slots = replace(POPULATION, attributes={"slots": np.eye(4, dtype=bool)})
    told = reported(slots, slots=[(1, 2), None, (), None]).attributes["slots"]
    assert [np.flatnonzero(row).tolist() for row in told] == [[1, 2], [1], [], [3]]
    assert "slots" not in reported(slots=[(1,), None, (0,), (0,)]).attributes


def test_estimates_are_clipped_and_sum_to_the_samples() -> None:
    """r = (1, 0, 0, ...) of 30 answers at a small epsilon gives estimates far below 0."""
    rng = np.random.default_rng(3)
    truth = np.array([[30] + [0] * 9, [0] * 9 + [30], [15, 15] + [0] * 8, [3] * 10])
    answers = [respond(row, 0.5, rng) for row in truth]
    raw = reported_table(
        {
            client: ClientReport(client=client, samples=30, class_counts=tuple(row.tolist()), epsilon=0.5)
            for client, row in enumerate(answers)
        },
        4,
    ).class_counts
    assert raw is not None
    assert raw.min() < 0
    counts = reported(class_counts=[tuple(row.tolist()) for row in answers], epsilon=[0.5] * 4).class_counts()
    assert counts.min() == 0
    assert counts.sum(axis=1).tolist() == [30] * 4
    clipped = np.maximum(raw, 0)
    by_hand = 30 * clipped / clipped.sum(axis=1, keepdims=True)
    assert np.abs(counts - by_hand).max() < 1


def test_many_randomised_answers_give_the_clustering_of_the_truth() -> None:
    rng = np.random.default_rng(0)
    truth = np.full((4, 10), 100)
    truth[np.arange(4), [0, 1, 0, 1]] = 3000
    answers = [tuple(respond(row, 2.0, rng).tolist()) for row in truth]
    told = reported(samples=truth.sum(axis=1).tolist(), class_counts=answers, epsilon=[2.0] * 4)
    assert told.class_counts().sum(axis=1).tolist() == truth.sum(axis=1).tolist()
    assert np.abs(told.class_counts() - truth).max() < 400
    labels = major_class(told, 2, np.random.default_rng(0), rho_cluster=1.0).labels
    assert labels.tolist() == [0, 1, 0, 1]


def test_exact_counts_are_taken_as_they_are_and_nothing_as_even_shares() -> None:
    rows = [(30, *[0] * 9), (29, 1, *[0] * 8), (0,) * 10, tuple([3] * 10)]
    counts = reported(class_counts=rows).class_counts()
    assert counts.tolist() == [list(rows[0]), list(rows[1]), [3] * 10, [3] * 10]


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(InputError, match="clients report 3 classes, but the data have 10"):
        reported(class_counts=[(10, 10, 10)] * 4)


def test_later_replies_weigh_more_and_an_earlier_part_counts_once() -> None:
    measured = MeasuredTimes(3)
    for seconds in (1.0, 1.0, 5.0):
        measured.add(0, passed=10, seconds=seconds, round_trip=seconds + 2.0)
    measured.add(1, passed=10, seconds=0.0, round_trip=2.0)
    compute = (0.64 * 1 + 0.8 * 1 + 5) / (0.64 + 0.8 + 1)
    assert measured.compute_seconds == pytest.approx([compute, 0, np.nan], nan_ok=True)
    assert measured.upload_seconds == pytest.approx([2, 2, np.nan], nan_ok=True)
    assert measured.seconds_per_sample == pytest.approx([compute / 10, 0, np.nan], nan_ok=True)
    again = MeasuredTimes(3)
    again.restore(measured.as_dict())
    assert again.replies.tolist() == [3, 1, 0]
    assert again.compute_seconds == pytest.approx(measured.compute_seconds, nan_ok=True)
    assert again.upload_seconds == pytest.approx(measured.upload_seconds, nan_ok=True)
    assert again.seconds_per_sample == pytest.approx(measured.seconds_per_sample, nan_ok=True)
    for each in (again, measured):
        each.add(0, passed=10, seconds=5.0, round_trip=7.0)
    assert again.compute_seconds[0] == pytest.approx(measured.compute_seconds[0])
