"""FedAsync, FedBuff and FedAT against clocks and loops by hand, and FedAvg where nothing is late."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from atoll import Clock, Event, InputError, LocalRule, Method, fedasync, fedat, fedavg, fedbuff
from atoll.faults.dropouts import lose_clients
from atoll.methods.papers.fedat import tiers_of
from atoll.support.arrays import Floats
from tests.methods.twins import ALIKE, CLOCK, POPULATION, RULE, START, count_alike, descend, run, server

EQUAL = replace(RULE, lr_decay=1.0)
SECONDS = CLOCK.seconds_of(np.arange(8))


def works(method: Method) -> Iterator[tuple[Event, int, int, float]]:
    """Yield each event with every client that it merges, the client's cluster and when it began."""
    for event in method.schedule.events:
        assert event.clusters is not None
        for client, cluster in zip(event.cohort.tolist(), event.clusters.tolist(), strict=True):
            yield event, client, cluster, event.began[event.active.index(cluster)]


def version_at(method: Method, began: float, before: int) -> int:
    """Return how many events are over when work begins; at one moment, merging is before beginning."""
    return sum(event.seconds <= began for event in method.schedule.events[:before])


@pytest.mark.parametrize(
    "method",
    [fedbuff(POPULATION, RULE, CLOCK, 20, 5, 3), fedasync(POPULATION, RULE, CLOCK, 20, 4)],
    ids=["fedbuff", "fedasync"],
)
def test_the_clock_is_kept(method: Method) -> None:
    """Work takes its client's seconds, nobody is in two works at once, and staleness is what the times say."""
    at_work: dict[int, float] = {}
    for event, client, cluster, began in works(method):
        assert began >= at_work.get(client, 0.0)
        at_work[client] = event.seconds
        assert began + SECONDS[client] <= event.seconds + 1e-9
        stale = event.staleness[event.active.index(cluster)]
        assert stale == event.index - version_at(method, began, event.index)
    assert max(max(event.staleness) for event in method.schedule.events) > 1
    last: dict[int, float] = {}
    for event, client, _, began in works(method):
        last[event.index] = max(last.get(event.index, 0.0), began + SECONDS[client])
    assert [event.seconds for event in method.schedule.events] == pytest.approx(list(last.values()))


def test_fedbuff_is_the_loop_by_hand() -> None:
    method = fedbuff(POPULATION, EQUAL, CLOCK, 20, 5, 3, 0.7)
    models = [START]
    for event in method.schedule.events:
        total = np.zeros(3)
        assert event.clusters is not None
        for client, cluster in zip(event.cohort.tolist(), event.clusters.tolist(), strict=True):
            place = event.active.index(cluster)
            version = version_at(method, event.began[place], event.index)
            sent = models[version]
            total += (by_hand(event, client, sent) - sent) / np.sqrt(1 + event.index - version)
        models.append(models[-1] + 0.7 / 3 * total)
    assert_models(method, models)


def weigh(kind: str, tau: int) -> float:
    """Xie et al. 2019, Section 5.2, with a = 0.3 and b = 2."""
    if kind == "polynomial":
        return float((tau + 1) ** -0.3)
    return 1 / (0.3 * (tau - 2) + 1) if kind == "hinge" and tau > 2 else 1.0


@pytest.mark.parametrize("kind", ["constant", "polynomial", "hinge"])
def test_fedasync_is_the_loop_by_hand(kind: Any) -> None:
    method = fedasync(POPULATION, EQUAL, CLOCK, 25, 6, 0.8, kind, 0.3, 2, 0.3)
    models = [START]
    taus = []
    for event in method.schedule.events:
        (client,), (began,) = event.cohort.tolist(), event.began
        version = version_at(method, began, event.index)
        taus.append(event.index - version)
        alpha = 0.8 * weigh(kind, taus[-1])
        models.append((1 - alpha) * models[-1] + alpha * by_hand(event, client, models[version]))
    assert max(taus) > 3
    assert_models(method, models)


def test_fedat_is_the_loop_by_hand() -> None:
    method = fedat(POPULATION, EQUAL, CLOCK, 20, 3, 0.7)
    by_speed = np.argsort(SECONDS, kind="stable")
    members = [set(own.tolist()) for own in np.array_split(by_speed, 3)]
    models, latest, rounds = [START], [START] * 3, [0, 0, 0]
    free, given = [0.0] * 3, [START] * 3  # when each began, and with what; of two done at once the faster tier is first
    for event in method.schedule.events:
        (tier,), cohort = event.active, event.cohort.tolist()
        assert set(cohort) <= members[tier]
        assert event.began == (free[tier],)
        assert event.seconds == free[tier] + SECONDS[cohort].max()
        free[tier] = event.seconds
        latest[tier] = np.average(
            [by_hand(event, k, given[tier]) for k in cohort], axis=0, weights=POPULATION.sizes[cohort]
        )
        rounds[tier] += 1
        models.append(np.average(latest, axis=0, weights=rounds[::-1]))
        given[tier] = models[-1]
    assert rounds[0] > rounds[2] > 0
    assert_models(method, models)


def by_hand(event: Event, client: int, w: Floats) -> Floats:
    return descend(replace(event, round=0), client, w)


def assert_models(method: Method, models: list[Floats]) -> None:
    for state, expected in zip(run(method), models[1:], strict=True):
        np.testing.assert_allclose(server(state), expected, rtol=0, atol=1e-10)


def test_fedbuff_of_all_at_once_is_fedavg_to_the_bit() -> None:
    """K = 8 clients work and are merged, and none is late."""
    ours = run(fedbuff(POPULATION, RULE, ALIKE, 8, 8, 8))
    theirs = run(count_alike(fedavg(POPULATION, RULE, 8, 1.0)))
    assert all(np.array_equal(server(a), server(b)) for a, b in zip(ours, theirs, strict=True))


def test_fedasync_of_one_client_after_the_other_is_sgd_on_each_in_turn() -> None:
    method = fedasync(POPULATION, RULE, CLOCK, 10, 1, 1.0)
    assert all(event.staleness == (0,) for event in method.schedule.events)
    w = START
    for state, event in zip(run(method), method.schedule.events, strict=True):
        w = descend(event, int(event.cohort[0]), w)
        np.testing.assert_allclose(server(state), w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_fedat_of_one_tier_is_fedavg_to_the_bit(fraction: float) -> None:
    ours, theirs = fedat(POPULATION, RULE, CLOCK, 8, 1, fraction), fedavg(POPULATION, RULE, 8, fraction, CLOCK)
    assert [event.seconds for event in ours.schedule.events] == [event.seconds for event in theirs.schedule.events]
    assert all(np.array_equal(server(a), server(b)) for a, b in zip(run(ours), run(theirs), strict=True))


def test_fedbuff_refuses_running_statistics() -> None:
    """A late update of a variance that has become small since could make it negative."""
    module = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    with pytest.raises(InputError, match=r"^model: layer '1' \(BatchNorm1d\) keeps running statistics, and cannot be"):
        fedbuff(POPULATION, RULE, CLOCK, 3, 4, 2, module=module)
    fedbuff(POPULATION, RULE, CLOCK, 3, 4, 2, module=nn.Sequential(nn.Linear(3, 1), nn.GroupNorm(1, 1)))


def test_an_update_that_is_lost_adds_nothing_to_fedbuff() -> None:
    method = fedbuff(POPULATION, EQUAL, CLOCK, 12, 4, 1)
    lossy = replace(method, schedule=lose_clients(method.schedule, seed=1, dropout=0.5))
    models = [START, *map(server, run(lossy))]
    lost = [event.index for event in lossy.schedule.events if not len(event.cohort)]
    assert lost
    for index in lost:
        np.testing.assert_allclose(models[index + 1], models[index], rtol=0, atol=1e-15)


def test_a_deadline_ends_work_that_takes_longer() -> None:
    clock = replace(CLOCK, deadline_seconds=2.0)
    for event, _, _, began in works(fedbuff(POPULATION, RULE, clock, 10, 4, 1)):
        assert event.seconds - began <= 2.0


def test_more_clients_in_a_buffer_than_at_work() -> None:
    method = fedbuff(POPULATION, RULE, CLOCK, 6, 2, 8)
    assert all(sorted(event.cohort.tolist()) == list(range(8)) for event in method.schedule.events)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (fedbuff, {"buffer": 9, "concurrency": 4}, r"method\.buffer = 9: .*at most data\.clients = 8"),
        (fedbuff, {"concurrency": 9}, r"method\.concurrency = 9: .*at most data\.clients = 8"),
        (fedasync, {"concurrency": 0}, r"method\.concurrency = 0: must be a whole number of at least 1"),
        (fedasync, {"concurrency": 2, "rounds": 0}, r"rounds = 0"),
        (fedasync, {"mixing": 1.5}, r"method\.mixing = 1\.5: .*at most 1"),
        (fedasync, {"exponent": -0.1}, r"method\.exponent = -0\.1: must be a finite number of at least 0"),
        (fedasync, {"staleness": "linear"}, r"method\.staleness = 'linear': must be 'constant'"),
        (fedasync, {"hinge_after": -1}, r"method\.hinge_after = -1: must be a whole number of at least 0"),
        (fedasync, {"hinge_slope": 0.0}, r"method\.hinge_slope = 0\.0: must be a finite number greater than 0"),
        (fedat, {"tiers": 9}, r"method\.tiers = 9: .*at most data\.clients = 8"),
        (fedat, {"fraction": 0.0}, r"method\.fraction = 0\.0"),
    ],
)
def test_bad_input_is_refused(make: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(POPULATION, RULE, CLOCK, **{"rounds": 2, **changes})


def test_without_time_things_still_end() -> None:
    clock = Clock(np.zeros(8), np.zeros(8))
    assert len(fedbuff(POPULATION, RULE, clock, 5, 8, 3).schedule) == 5
    rule: LocalRule = RULE
    assert len(fedasync(POPULATION, rule, clock, 5, 8).schedule) == 5


def test_tiers_are_by_all_the_seconds_of_a_client_and_not_of_its_training_alone() -> None:
    tiers = tiers_of(Clock(np.array([1.0, 2.0]), np.array([5.0, 0.0])), 2, "tiers")
    assert [own.tolist() for own in tiers] == [[1], [0]]
