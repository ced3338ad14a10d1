"""Clients that events lose: who, what it costs, and that a run is the one whose schedule never had them."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import (
    Clock,
    Clustering,
    Event,
    InputError,
    LocalRule,
    Method,
    RunError,
    Schedule,
    Serial,
    State,
    Trainer,
    cycling,
    generator,
    init,
    make_event,
    read_model,
    train,
)
from atoll.aggregation.mean import Weighted
from atoll.aggregation.reductions import update_norm
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import Cohort, Executor
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.faults.dropouts import _slot_of, lose_clients
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.methods.papers.ifca import all_together
from tests.problems import as_vector, linear_module, quadratics
from tests.tiers import thinned

CLIENTS = 8
POPULATION = quadratics(clients=CLIENTS)
RULE = LocalRule(sgd, lr=0.05, steps=2, batch_size=2)
TWO = Clustering(np.arange(CLIENTS) % 2, 2)
SECONDS = np.array([1.0, 4.0, 2.0, 9.0, 3.0, 5.0, 7.0, 6.0])


def clock(deadline: float = np.inf) -> Clock:
    return Clock(SECONDS - 0.5, np.full(CLIENTS, 0.5), deadline)


def schedule_of(kind: str, timed: Clock | None = None, rounds: int = 4) -> Schedule:
    if kind == "cycling":
        return cycling(POPULATION, TWO, rounds, 0.75, clock=timed, seed=3)
    return all_together(POPULATION, 3, rounds, 0.75, timed, seed=3)


def lost_by_hand(
    event: Event, dropout: float, slots: npt.NDArray[np.bool_] | None, seconds: float | None
) -> dict[int, str]:
    found = {}
    for client in event.cohort.tolist():
        began = event.began[0]  # these events have one cluster, or clusters that begin together
        if slots is not None and not slots[client, int(began % 86_400 / (86_400 / slots.shape[1]))]:
            found[client] = "absent"
        elif generator(5, "dropout", event.index, client).random() < dropout:
            found[client] = "dropped"
        elif seconds is not None and SECONDS[client] > seconds:
            found[client] = "late"
    return found


@pytest.mark.parametrize("kind", ["cycling", "all together"])
@given(dropout=st.sampled_from([0.0, 0.3, 0.9]), deadline=st.sampled_from([None, 3.5, 8.0]), day=st.booleans())
def test_each_client_is_lost_for_the_first_reason_that_holds(
    kind: str, dropout: float, deadline: float | None, day: bool
) -> None:
    timed = Clock(SECONDS - 0.5, np.full(CLIENTS, 0.5), deadline or np.inf)
    before = schedule_of(kind, timed)
    slots = np.arange(CLIENTS)[:, None] % 4 <= np.arange(4) if day else None
    after = lose_clients(before, 5, dropout, slots, timed if deadline else None)
    for one, other in zip(before.events, after.events, strict=True):
        lost = lost_by_hand(one, dropout, slots, deadline)
        kept = [client for client in one.cohort.tolist() if client not in lost]
        reasons = list(lost.values())
        assert other.cohort.tolist() == kept
        np.testing.assert_array_equal(other.weights, POPULATION.sizes[kept])
        assert (other.absent, other.dropped, other.late) == tuple(map(reasons.count, ("absent", "dropped", "late")))
        each = 3 if kind == "all together" else 1  # models that a client is sent
        assert other.models_down == each * (len(one.cohort) - other.absent)
        assert other.models_up == other.client_updates == len(kept)
        assert (other.clusters is None) == (kind == "all together")
        assert other.clusters is None or len(other.clusters) == len(kept)
        assert (other.seconds, other.began, other.server, other.starts) == (
            *(one.seconds, one.began),
            *(one.server, one.starts),
        )


def test_events_of_several_inner_rounds_save_every_upload_that_is_lost() -> None:
    event = replace(schedule_of("cycling").events[0], intra_rounds=5, models_down=16, models_up=16)
    (after,) = lose_clients(Schedule((event,), 2, 1), dropout=0.6).events
    assert 0 < after.dropped < 3
    assert (after.models_down, after.models_up) == (16, 16 - 5 * after.dropped)


def test_who_is_absent_saves_its_own_models_and_none_of_those_between_servers() -> None:
    """Of 16 models 6 go to the three clients, in two inner rounds; the others are the aggregators'."""
    event = replace(schedule_of("cycling").events[0], intra_rounds=2, models_down=16, models_up=16)
    there = np.arange(CLIENTS)[:, None] != event.cohort[0]
    (after,) = lose_clients(Schedule((event,), 2, 1), slots=there).events
    assert (after.absent, after.models_down, after.models_up) == (1, 14, 14)


def test_clusters_that_began_at_different_times_are_in_different_slots() -> None:
    event = Event(
        *(0, 0, 90_000.0, (0, 1), (1_000.0, 50_000.0)), np.arange(4), np.array([0, 1, 0, 1]), np.ones(4), models_down=4
    )
    morning, evening = [True, False], [False, True]
    slots = np.array([morning, morning, evening, evening])
    (after,) = lose_clients(Schedule((event,), 2, 1), slots=slots).events
    assert after.cohort.tolist() == [0, 3]
    assert (after.absent, after.models_down) == (2, 2)


def test_a_day_is_as_the_one_before_it() -> None:
    """Slots are of the day, and runs take days."""
    slots = np.arange(4)[:, None] == np.arange(4)  # each client is there for six hours
    for day, hour in ((0, 7), (1, 7), (9, 7), (1, 23)):
        began = 3600.0 * (24 * day + hour)
        event = Event(0, 0, began + 60, (0,), (began,), np.arange(4), np.zeros(4, np.int64), np.ones(4), models_down=4)
        (after,) = lose_clients(Schedule((event,), 1, 1), slots=slots).events
        assert after.cohort.tolist() == [hour // 6]


def test_who_is_late_already_stays_counted() -> None:
    event = replace(schedule_of("cycling").events[0], late=2)
    assert SECONDS[event.cohort].tolist() == [4.0, 5.0, 6.0]
    (after,) = lose_clients(Schedule((event,), 2, 1), clock=clock(5.5)).events
    assert (after.late, len(after.cohort)) == (3, 2)


def test_a_deadline_ends_events_that_would_be_longer() -> None:
    schedule = schedule_of("cycling", clock(deadline=4.5), rounds=20)
    lengths = np.diff([0.0, *(event.seconds for event in schedule.events)])
    expected = [min(4.5, SECONDS[event.cohort].max()) for event in schedule.events]
    np.testing.assert_allclose(lengths, expected)
    assert min(expected) < max(expected) == 4.5


def test_a_deadline_that_nobody_keeps_is_refused_and_the_least_that_somebody_does_is_told() -> None:
    with pytest.raises(InputError, match=r"faults\.deadline_seconds = 0\.4: no client .* the fastest needs 1 s"):
        lose_clients(schedule_of("cycling"), clock=clock(0.4))
    kept = lose_clients(schedule_of("cycling", rounds=9), clock=clock(1.0))
    assert {client for event in kept.events for client in event.cohort.tolist()} == {0}


def test_a_deadline_is_no_matter_of_events_without_clients() -> None:
    nobody = make_event(0, np.array([], np.int64), np.array([]), 0.0, 1.0)
    somebody = make_event(1, np.array([0]), np.ones(1), 1.0, 2.0)
    clock = Clock(np.array([0.5]), np.zeros(1), 1.0)
    for events in ((nobody,), (nobody, somebody)):
        lost = lose_clients(Schedule(events, 1, len(events)), clock=clock)
        assert [len(event.cohort) for event in lost.events] == [len(event.cohort) for event in events]


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_a_dropout_that_is_no_probability_below_one_is_refused(dropout: float) -> None:
    with pytest.raises(InputError, match=r"faults\.dropout = .* at least 0 and less than 1"):
        lose_clients(schedule_of("cycling"), dropout=dropout)


# Runs


class Broken:
    """A trainer some of whose clients send back what cannot be used."""

    keeps_state = False
    why_one_by_one = "some are broken"

    def __init__(self, trainer: Trainer, breaks: dict[int, str], during: set[int] | None = None) -> None:
        self.trainer = trainer
        self.precision = trainer.precision
        self.breaks = breaks
        self.during = during
        self.losses, self.sample_losses = trainer.losses, trainer.sample_losses
        self.identity_rows, self.samples_a_step = trainer.identity_rows, trainer.samples_a_step

    def train(self, task: ClientTask) -> ClientUpdate:
        sent = self.trainer.train(task)
        if self.during is not None and task.event not in self.during:
            return sent
        return ClientUpdate(self.damage(sent.model, self.breaks.get(task.client)), sent.loss)

    def damage(self, model: Model, how: str | None) -> Model:
        (name,) = model
        damaged: dict[str | None, Model] = {
            None: model,
            "nan": {name: torch.full_like(model[name], torch.nan)},
            "one inf": {name: torch.cat([model[name][:, :-1], torch.tensor([[torch.inf]])], dim=1)},
            "name": {"other": model[name]},
            "too many": model | {"other": model[name]},
            "shape": {name: model[name][:, 1:]},
            "type": {name: model[name].float()},
            "far": {name: model[name] + 100},
        }
        return damaged[how]


def run_events(
    schedule: Schedule,
    breaks: dict[int, str],
    screening: Screening,
    cores: bool = False,
    during: set[int] | None = None,
) -> list[State]:
    module = linear_module(seed=2)
    method = Method(schedule, RULE, screening=screening)
    trainer = Broken(Trainer(module, POPULATION, RULE, seed=7), breaks, during)
    first = init(method, read_model(module))
    if not cores:
        return [step.state for step in train(method, Serial(trainer), first)]
    with Cores(trainer, workers=2, model_bytes=1000) as executor:
        return [step.state for step in train(method, executor, first)]


def without(schedule: Schedule, clients: Sequence[int]) -> Schedule:
    """The schedule without these clients, made by hand."""

    def strip(event: Event) -> Event:
        kept = ~np.isin(event.cohort, clients)
        assert event.clusters is not None
        return replace(event, cohort=event.cohort[kept], clusters=event.clusters[kept], weights=event.weights[kept])

    return replace(schedule, events=tuple(map(strip, schedule.events)))


def bits(states: Sequence[State]) -> list[list[bytes]]:
    return [[as_vector(model).tobytes() for model in (*state.starts, *state.published)] for state in states]


@pytest.mark.parametrize("cores", thinned([False, True], 1))
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        *(("nan", "not_finite"), ("one inf", "not_finite"), ("far", "too_large")),
        *((how, "wrong_form") for how in ("name", "too many", "shape", "type")),
    ],
)
def test_a_run_with_broken_results_is_the_run_without_those_clients(how: str, reason: str, cores: bool) -> None:
    schedule, broken = schedule_of("cycling"), [1, 4, 6]
    found = run_events(schedule, dict.fromkeys(broken, how), Screening(max_update_norm=50.0), cores)
    expected = run_events(without(schedule, broken), {}, Screening())
    assert bits(found) == bits(expected)
    count = np.cumsum([np.isin(event.cohort, broken).sum() for event in schedule.events])
    assert [dict(state.refused) for state in found] == [{reason: n} if n else {} for n in count.tolist()]
    assert count[-1] > 3


def test_the_loss_of_an_event_is_the_mean_over_all_results_that_count() -> None:
    everyone, module = np.arange(CLIENTS), linear_module(seed=2)
    event = make_event(0, everyone, POPULATION.sizes.astype(float), 0.0, 1.0, active=(0, 1), clusters=everyone % 2)
    method = Method(Schedule((event,), 2, 1), RULE, screening=Screening())
    trainer, start = Trainer(module, POPULATION, RULE, seed=7), read_model(module)
    counts = [k for k in range(CLIENTS) if k not in (1, 5, 6)]
    losses = [trainer.train(ClientTask(0, 0, 0, k % 2, k, start)).loss for k in counts]
    broken = Broken(trainer, dict.fromkeys((1, 5, 6), "nan"))
    (step,) = train(method, Serial(broken), init(method, start))
    assert step.loss == pytest.approx(np.average(losses, weights=POPULATION.sizes[counts]), rel=1e-12)


@pytest.mark.parametrize("how", ["nan", "dropped"])
def test_a_cluster_whose_whole_cohort_failed_publishes_what_it_started_from(how: str) -> None:
    """So the server's model stays; the cluster's earlier model would throw it back."""
    schedule = cycling(POPULATION, TWO, 3, order="fixed")
    events, nobody = schedule.events, np.empty(0, np.int64)
    if how == "dropped":
        gone = replace(events[2], cohort=nobody, clusters=nobody, weights=np.empty(0))
        states = run_events(replace(schedule, events=(*events[:2], gone, *events[3:])), {}, Screening())
    else:
        broken = dict.fromkeys(events[2].cohort.tolist(), "nan")
        states = run_events(schedule, broken, Screening(), during={2})
    before, after, later = states[1:4]
    assert before.server is not None
    assert after.server is before.server
    assert after.published[0] is before.server
    assert after.published[0] is not before.published[0]
    assert later.server is not after.server


@pytest.mark.parametrize("make", [Serial, Stacked, lambda trainer: Cores(trainer, 2, 1000)])
def test_events_without_any_client_have_no_loss(make: Callable[[Trainer], Executor]) -> None:
    module = linear_module(seed=2)
    method = Method(without(schedule_of("cycling"), range(CLIENTS)), RULE)
    with closing(make(Trainer(module, POPULATION, RULE, 7))) as executor:
        steps = list(train(method, executor, init(method, read_model(module))))
    assert [step.loss for step in steps] == [None] * len(method.schedule)
    assert steps[-1].state.server is not None
    assert update_norm(steps[-1].state.server, read_model(module)) == 0


def test_without_screening_a_result_of_another_form_is_an_error() -> None:
    with pytest.raises(RunError, match="event 0, cluster"):
        run_events(schedule_of("cycling"), dict.fromkeys(range(CLIENTS), "name"), Screening(False, 1e9))


def test_a_trainer_that_is_not_tolerant_ends_the_run_at_a_result_that_is_not_finite() -> None:
    wild = replace(RULE, lr=1e200, steps=9)
    module = linear_module(seed=2)
    method = Method(schedule_of("cycling"), wild, screening=Screening())
    first = init(method, read_model(module))
    with pytest.raises(RunError, match="not finite"):
        list(train(method, Serial(Trainer(module, POPULATION, wild, 7)), first))
    states = [step.state for step in train(method, Serial(Trainer(module, POPULATION, wild, 7, tolerant=True)), first)]
    assert states[-1].refused == {"not_finite": sum(len(event.cohort) for event in method.schedule.events)}


def test_a_rule_that_asks_for_some_results_only_takes_none_of_the_next_cohort() -> None:
    def first_of(models: Weighted, start: Model, cohort_weight: float) -> Model:
        return next(iter(models))[1]

    module = linear_module(seed=2)
    trainer, start = Trainer(module, POPULATION, RULE, seed=7), read_model(module)
    cohorts = [Cohort(0, 0, 0, c, TWO.members(c), np.ones(4), 8.0, start) for c in (0, 1)]
    averages = Serial(trainer).train(cohorts, first_of)
    expected = [trainer.train(ClientTask(0, 0, 0, c, c, start)) for c in (0, 1)]
    assert [as_vector(a.model).tobytes() for a in averages] == [as_vector(e.model).tobytes() for e in expected]


def test_a_slot_lasts_until_the_next_begins() -> None:
    assert _slot_of(np.array([0.0, 3599.0, 3600.0, 86_399.0, 86_401.0]), 24).tolist() == [0, 0, 1, 23, 0]
