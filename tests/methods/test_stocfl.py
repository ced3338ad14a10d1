"""StoCFL (Zeng et al. 2023) against a loop by hand, with clusters as sets of clients, and its limit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll import Clock, InputError, State, Trainer, fedavg, make_event, stocfl
from atoll.local.task import ClientTask
from atoll.methods.papers.stocfl import Merging
from atoll.schedules.events import Event
from atoll.support.arrays import Floats
from tests.by_hand import FIRST, POPULATION, mean_of, run, starts, trained
from tests.methods.running import SEED
from tests.methods.twins import LR, RULE
from tests.problems import linear_module
from tests.tiers import thinned


def pulled(event: Event, client: int, w: Floats, centre: Floats, penalty: float) -> Floats:
    draws = Trainer(linear_module(), POPULATION, RULE, SEED)
    for rows in draws.draw_rows(ClientTask(event.index, event.round, 0, 0, client, {})):
        x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
        w = w - LR * 0.9**event.round * (x.T @ (x @ w - y) / len(rows) + penalty * (w - centre))
    return w


def merged(clusters: dict[int, set[int]], updates: dict[int, Floats], most: int, tau: float) -> list[set[int]]:
    """Return clusters after passes in which chains of pairs with such a cosine become one; at most so many stay."""
    parts = list(clusters.values())
    while True:
        means = [np.mean([updates[k] for k in sorted(part)], axis=0) for part in parts]
        pairs = [
            (float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), i, j)
            for i, a in enumerate(means)
            for j, b in enumerate(means[:i])
        ]
        owner = list(range(len(parts)))
        for cosine, i, j in sorted(pairs, reverse=True):
            if cosine >= tau or len(set(owner)) > most:
                owner = [owner[i] if each == owner[j] else each for each in owner]
        if len(set(owner)) == len(parts):
            return parts
        parts = [set().union(*(part for part, own in zip(parts, owner, strict=True) if own == o)) for o in set(owner)]


def test_only_those_who_train_two_models_compute_twice_as_long() -> None:
    count = len(POPULATION)
    method = stocfl(
        POPULATION, RULE, 4, linear_module(), clock=Clock(np.full(count, 3.0), np.ones(count)), fraction=0.5
    )
    events = method.schedule.events
    assert {event.regroups for event in events} == {True, False}
    assert all(event.seconds - event.began[0] == (4.0 if event.regroups else 7.0) for event in events)


@pytest.mark.parametrize(
    ("most", "tau", "fraction"), thinned([(4, 0.3, 0.5), (8, 0.7, 0.5), (3, 0.99, 0.4), (8, 0.5, 1.0)], 2)
)
def test_it_is_the_loop_by_hand(most: int, tau: float, fraction: float) -> None:
    method = stocfl(POPULATION, RULE, 7, linear_module(), most, tau, 0.4, fraction, seed=2)
    theta, omega, updates, clusters = [FIRST] * most, FIRST, dict[int, Floats](), dict[int, set[int]]()
    for event, state in zip(method.schedule.events, run(method), strict=True):
        cohort = event.cohort.tolist()
        if event.regroups:
            updates |= {k: trained(event, k, FIRST) - FIRST for k in cohort}
            found = merged({**clusters, **{-1 - k: {k} for k in cohort}}, updates, most, tau)
            before, clusters, new = clusters, {}, []
            for part in sorted(found, key=min):
                held = {c: len(part & own) for c, own in before.items() if part & own}
                if held:
                    clusters[max(held, key=lambda c: (held[c], -c))] = part
                else:
                    new.append(part)
            for part in new:
                number = min(set(range(most)) - set(clusters))
                clusters[number], theta[number] = part, omega
        else:
            common = {k: trained(event, k, omega) for k in cohort}
            for c, part in clusters.items():
                own = {k: pulled(event, k, theta[c], omega, 0.4) for k in cohort if k in part}
                theta[c] = mean_of(own) if own else theta[c]
            omega = mean_of(common)
        assert state.labels is not None
        assert {c: set(np.flatnonzero(state.labels == c).tolist()) for c in clusters} == clusters
        np.testing.assert_allclose(starts(state), theta, rtol=0, atol=1e-10)
        for start in state.starts:
            if "0.weight@common" in start:
                np.testing.assert_allclose(start["0.weight@common"].numpy()[0], omega, rtol=0, atol=1e-10)


def test_without_pull_one_cluster_is_fedavg_to_the_bit() -> None:
    rule = replace(RULE, batch_size="full")  # whose batches do not depend on the events that ask
    method = stocfl(POPULATION, rule, 5, linear_module(), 1, 0.5, 0.0, 0.5, seed=1)
    ours = [s for e, s in zip(method.schedule.events, run(method), strict=True) if not e.regroups]
    for one, other in zip(ours, run(fedavg(POPULATION, rule, 5, 0.5, seed=1)), strict=True):
        assert other.server is not None
        assert all(one.starts[0][name].equal(tensor) for name, tensor in other.server.items())


def test_first_updates_count_as_one_model_of_the_two() -> None:
    events = stocfl(POPULATION, RULE, 9, linear_module(), fraction=0.4, seed=2).schedule.events
    for event in events:
        models = -(-len(event.cohort) // 2) if event.regroups else len(event.cohort)
        assert event.models_up == event.models_down == models


def test_a_proximal_term_of_its_own_is_refused() -> None:
    with pytest.raises(InputError, match=r"local\.proximal = 0\.1: cannot be used with method\.name = 'stocfl'"):
        stocfl(POPULATION, replace(RULE, proximal=0.1), 2, linear_module())


def test_a_newcomer_takes_the_number_that_a_merge_leaves_whoever_comes_first() -> None:
    first, second = ({"w": torch.full((2,), value)} for value in (7.0, 8.0))
    updates = [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    kept = {client: {"w": torch.tensor(update)} for client, update in enumerate(updates)}
    state = State(1, None, (first, second), (first, second), clients=kept, labels=np.array([-1, 0, 1, 1]))
    found = Merging(2, 0.9)(make_event(0, np.array([0]), np.ones(1), 0.0, 1.0), state)
    assert found.labels.tolist() == [0, 1, 1, 1], "a merged cluster keeps the number of its largest part"
    assert found.models[1] is second
