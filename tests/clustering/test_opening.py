"""Openings, further passes and random starts against slow twins that judge every candidate by the whole bound."""

from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from atoll import InputError
from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.feduc import feduc
from atoll.clustering.feduc.greedy import choose, feduc_labels, place_again, placing_order
from atoll.clustering.feduc.opening import Opening, fill_empty, open_first, open_nearest
from atoll.clustering.feduc.problem import PATTERNS, Pattern, Problem
from atoll.network.completion import completion_of
from atoll.support.arrays import Ids
from tests.clustering.test_feasible import by_hand, small_problem
from tests.clustering.test_greedy import slow_candidates, some_problem
from tests.tiers import thinned

OPENINGS: tuple[Opening, ...] = ("first", "nearest", "refine")
patterns = pytest.mark.parametrize("pattern", PATTERNS)
openings = pytest.mark.parametrize("opening", OPENINGS)


@pytest.mark.parametrize("given", [{"objective": "tme"}, {"opening": "fist"}, {"start": "rand"}, {"passes": -1}])
def test_choices_that_do_not_exist_are_refused_in_scripts_too(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^clustering\.\w+ = .*: must be"):
        feduc(some_problem("censyn", 0), **given)


def loose(pattern: Pattern, seed: int) -> Problem:
    """At least as many clients as aggregators, and limits that the printed pass keeps by itself."""
    problem = some_problem(pattern, seed)
    while problem.network.clients < problem.network.aggregators:
        seed += 100
        problem = some_problem(pattern, seed)
    network, steps = problem.network, 400 * problem.intra_rounds * problem.local_steps
    longest = network.compute_seconds.max() + network.upload_seconds.sum(axis=0).max()
    return replace(
        problem,
        seconds=None,
        steps=steps,
        limits=np.full(network.aggregators, longest * max(0.7, 2 / network.aggregators)),
    )


def slow_opening(problem: Problem) -> Ids:
    """The first M clients of the queue each go to another aggregator; then Algorithm 2 as printed."""
    labels = np.full(problem.network.clients, -1, np.int64)
    for turn, client in enumerate(placing_order(problem)):
        bounds, completions = slow_candidates(problem, labels, client)
        allowed = completions <= problem.limits
        if turn < problem.network.aggregators:
            allowed &= ~np.isin(np.arange(problem.network.aggregators), labels)
        aggregator = choose(bounds, completions, allowed)
        assert aggregator is not None
        labels[client] = aggregator
    return labels


@pytest.mark.parametrize("seed", thinned(range(12), 4))
@patterns
def test_the_first_clients_each_open_another_aggregator(pattern: Pattern, seed: int) -> None:
    problem = loose(pattern, seed)
    assert feduc(problem, opening="first").labels.tolist() == slow_opening(problem).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_the_nearest_openers_upload_least_in_all(seed: int) -> None:
    problem = small_problem(seed, clients=5, tightness=1.2)
    network, labels = problem.network, open_nearest(problem)
    alone = network.compute_seconds[:, None] + network.upload_seconds <= problem.limits
    sums = [
        network.upload_seconds[list(chosen), range(3)].sum()
        for chosen in permutations(range(5), 3)
        if alone[list(chosen), range(3)].all()
    ]
    opened = np.flatnonzero(labels >= 0)
    assert sorted(labels[opened].tolist()) == [0, 1, 2]
    assert network.upload_seconds[opened, labels[opened]].sum() == pytest.approx(min(sums))


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_openers_stay_and_the_rest_follows_algorithm_2(seed: int) -> None:
    problem = loose("cenasy", seed)
    labels = open_nearest(problem)
    for client in placing_order(problem):
        if labels[client] < 0:
            bounds, completions = slow_candidates(problem, labels, client)
            chosen = choose(bounds, completions, completions <= problem.limits)
            assert chosen is not None
            labels[client] = chosen
    assert feduc(problem, opening="nearest").labels.tolist() == labels.tolist()


@pytest.mark.parametrize("seed", range(10))
@patterns
def test_empty_aggregators_get_the_client_whose_move_costs_the_bound_least(pattern: Pattern, seed: int) -> None:
    problem = loose(pattern, seed)
    problem = replace(problem, limits=np.full(problem.network.aggregators, np.inf))
    labels = expected = np.zeros(problem.network.clients, np.int64)
    for aggregator in range(1, problem.network.aggregators):
        bounds = {}
        for client in np.flatnonzero(np.bincount(expected)[expected] > 1):
            moved = expected.copy()
            moved[client] = aggregator
            bounds[client] = evaluate(problem, moved).bound
        expected = expected.copy()
        expected[min(bounds, key=lambda client: bounds[client])] = aggregator
    assert fill_empty(problem, labels).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", thinned(range(60), 15))
@openings
def test_tight_limits_leave_no_aggregator_empty_or_prove_that_one_must_be(opening: Opening, seed: int) -> None:
    """Against every assignment; what the opening itself forbids, an opener without a place, may be refused besides."""
    problem = small_problem(seed, clients=5, tightness=0.9)
    possible = any(
        len(set(labels)) == 3 and (completion_of(problem.network, np.array(labels)) <= problem.limits).all()
        for labels in product(range(3), repeat=5)
    )
    refused = ""
    try:
        labels = feduc(problem, opening=opening).labels
    except InputError as error:
        refused = str(error)
    if refused:
        assert not possible or (opening == "first" and "can open no aggregator" in refused)
        return
    assert possible
    assert set(labels) == {0, 1, 2}
    assert (completion_of(problem.network, labels) <= problem.limits).all()


def test_openers_move_for_one_that_fits_a_single_aggregator() -> None:
    """The largest client takes the only aggregator that is near enough for the second one."""
    problem = small_problem(0, clients=3, tightness=9.0)
    sizes, network = np.array([3.0, 2.0, 1.0]), problem.network
    first = int(open_first(replace(problem, sizes=sizes))[0])
    uploads = network.upload_seconds.copy()
    uploads[1] = np.where(np.arange(3) == first, uploads[1], 99.0)
    problem = replace(problem, sizes=sizes, network=replace(network, upload_seconds=uploads))
    labels = open_first(problem)
    assert labels[1] == first
    assert sorted(labels.tolist()) == [0, 1, 2]


def test_an_opening_that_cannot_be_names_who_is_in_its_way() -> None:
    problem = small_problem(0, clients=4, tightness=9.0)
    uploads = problem.network.upload_seconds.copy()
    uploads[:, 2] = 99.0
    far = replace(problem, network=replace(problem.network, upload_seconds=uploads))
    third = placing_order(far)[2]
    with pytest.raises(InputError, match=rf"^clustering\.opening = 'first': client {third} can open no aggregator"):
        feduc(far, opening="first")
    for opening in ("nearest", "refine"):
        with pytest.raises(
            InputError, match=rf"^clustering\.opening = '{opening}': aggregator 2 gets no client within"
        ):
            feduc(far, opening=opening)
    with pytest.raises(InputError, match=r"^clustering\.opening = 'first': 2 clients cannot open .* = 3 aggregators"):
        feduc(small_problem(0, clients=2), opening="first")


@pytest.mark.parametrize("wanted", [{"opening": "refine"}, {"objective": "time", "seconds": 9.0}])
def test_a_client_that_fits_nowhere_is_told_when_it_may_overshoot(wanted: dict[str, Any]) -> None:
    tight = replace(small_problem(0, clients=4), limits=np.full(3, 1e-3))
    with pytest.raises(InputError, match=r"even alone .*, without clustering\.opening or objective, set"):
        feduc(tight, **wanted)
    with pytest.raises(InputError, match=r"^clustering\.overshoot = true: cannot be used with clustering\.(op|ob)"):
        feduc(tight, **wanted, overshoot=True)


def test_an_aggregator_that_a_client_reaches_alone_is_not_called_too_far() -> None:
    """Client 0 can open aggregator 1 or 2, not both."""
    problem = by_hand([[1.0, 1.0, 1.0], [1.0, 9.0, 9.0], [1.0, 9.0, 9.0]], [3.0, 1.5, 1.5])
    with pytest.raises(InputError, match=r"aggregator \d gets no client: no assignment was found that leaves no"):
        feduc(problem, opening="refine")


def slow_pass(problem: Problem, labels: Ids, may_empty: bool) -> Ids:
    """Take each client out, by decreasing size, and put it where the bound is least."""
    labels = labels.copy()
    for client in sorted(range(len(labels)), key=lambda client: (-problem.sizes[client], client)):
        if not may_empty and sum(labels == labels[client]) == 1:
            continue
        own = labels[client]
        labels[client] = -1
        bounds, completions = slow_candidates(problem, labels, client)
        allowed = (completions <= problem.limits) | (np.arange(len(bounds)) == own)
        chosen = choose(bounds, completions, allowed)
        assert chosen is not None
        labels[client] = chosen
    return labels


@pytest.mark.parametrize("may_empty", [True, False])
@pytest.mark.parametrize("seed", thinned(range(4), 2))
@patterns
def test_a_pass_places_every_client_again(pattern: Pattern, seed: int, may_empty: bool) -> None:
    problem = loose(pattern, seed)
    once = feduc_labels(problem)
    again = slow_pass(problem, once, may_empty)
    assert place_again(problem, once, 1, may_empty).tolist() == again.tolist()
    assert place_again(problem, once, 2, may_empty).tolist() == slow_pass(problem, again, may_empty).tolist()
    assert evaluate(problem, again).bound <= evaluate(problem, once).bound * (1 + 1e-9)


@openings
@patterns
def test_passes_and_refining_keep_every_aggregator_open(pattern: Pattern, opening: Opening) -> None:
    problem = loose(pattern, 3)
    for labels in (
        feduc(problem, opening=opening, passes=20, refine=True).labels,
        feduc(problem, opening=opening, start="random", passes=3, rng=np.random.default_rng(0)).labels,
    ):
        assert set(labels) == set(range(problem.network.aggregators))
        assert (completion_of(problem.network, labels) <= problem.limits).all()


def test_a_random_start_keeps_the_limits_and_reaches_all_assignments() -> None:
    problem = small_problem(0, clients=3, tightness=1.0)
    possible = {
        labels
        for labels in product(range(3), repeat=3)
        if (completion_of(problem.network, np.array(labels)) <= problem.limits).all()
    }
    rng = np.random.default_rng(0)
    found = {tuple(feduc(problem, start="random", rng=rng).labels.tolist()) for _ in range(400)}
    assert found == possible
    with pytest.raises(InputError, match="needs rng"):
        feduc(problem, start="random")
