"""The engine on a hand-written table with stale starts, against the same table worked out by hand.

Two clusters, asynchronous: the one that finishes moves the server's model by theta and alone gets the result; the
other goes on from an older model. One more event mixes published models without a server.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from atoll import Event, InputError, LocalRule, Method, Mix, Schedule, Serial, Trainer, init, read_model, train
from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.aggregation.usual_norms import Norms
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.engine.combining import combine_updates
from atoll.engine.engine import merge
from atoll.engine.train_events import train_events
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.schedules.events import FROM_SERVER
from atoll.support.arrays import Floats
from atoll.support.seeds import generator
from tests.problems import as_vector, linear_module, quadratics

POPULATION = quadratics(clients=4)
CLUSTERS = {0: [0, 2], 1: [1, 3]}
RULE = LocalRule(sgd, lr=0.05, steps=3, batch_size=2)
SEED = 11


def make_event(
    index: int,
    active: tuple[int, ...],
    intra_rounds: int = 1,
    server: Mix | None = None,
    starts: tuple[tuple[int, Mix], ...] = (),
) -> Event:
    cohort = np.array([k for c in active for k in CLUSTERS[c]])
    return Event(
        index=index,
        round=index,
        seconds=float(index + 1),
        active=active,
        began=tuple(float(index) for _ in active),
        cohort=cohort,
        clusters=np.array([c for c in active for _ in CLUSTERS[c]]),
        weights=POPULATION.sizes[cohort].astype(float),
        intra_rounds=intra_rounds,
        server=server,
        starts=starts,
    )


EVENTS = (
    make_event(0, (0,), server=Mix(0.7, ((0, 0.3),)), starts=((0, FROM_SERVER),)),
    make_event(1, (0,), intra_rounds=2, server=Mix(0.7, ((0, 0.3),)), starts=((0, FROM_SERVER),)),
    make_event(2, (1,), server=Mix(0.4, ((1, 0.6),)), starts=((1, FROM_SERVER),)),
    make_event(
        3, (0, 1), starts=((0, Mix(published=((0, 0.25), (1, 0.75)))), (1, Mix(published=((0, 0.5), (1, 0.5)))))
    ),
    make_event(4, (0, 1), server=Mix(published=((0, 0.5), (1, 0.5)))),
)


def train_by_hand(w: Floats, event: int, repeat: int, client: int) -> Floats:
    own = POPULATION.samples(client)
    for rows in generator(SEED, "batches", event, repeat, client).integers(len(own), size=(3, 2)):
        x, y = POPULATION.data.inputs[own[rows]], POPULATION.data.targets[own[rows]]
        w = w - 0.05 * x.T @ (x @ w - y) / 2
    return w


def cluster_by_hand(w: Floats, event: int, repeats: int, cluster: int) -> Floats:
    n = POPULATION.sizes
    for repeat in range(repeats):
        trained = [(n[k], train_by_hand(w, event, repeat, k)) for k in CLUSTERS[cluster]]
        w = sum(n_k * v for n_k, v in trained) / sum(n_k for n_k, _ in trained)
    return w


def states_by_hand(w0: Floats) -> list[tuple[Floats, Floats, Floats]]:
    """(server, start of cluster 0, start of cluster 1) after each event."""
    a0 = cluster_by_hand(w0, 0, 1, 0)
    s0 = 0.7 * w0 + 0.3 * a0
    a1 = cluster_by_hand(s0, 1, 2, 0)
    s1 = 0.7 * s0 + 0.3 * a1
    b2 = cluster_by_hand(w0, 2, 1, 1)  # cluster 1 still trains from the initial model
    s2 = 0.4 * s1 + 0.6 * b2
    a3, b3 = cluster_by_hand(s1, 3, 1, 0), cluster_by_hand(s2, 3, 1, 1)
    x3, y3 = 0.25 * a3 + 0.75 * b3, 0.5 * a3 + 0.5 * b3
    a4, b4 = cluster_by_hand(x3, 4, 1, 0), cluster_by_hand(y3, 4, 1, 1)
    return [(s0, s0, w0), (s1, s1, w0), (s2, s1, s2), (s2, x3, y3), (0.5 * a4 + 0.5 * b4, x3, y3)]


class Backwards:
    """Trains the last client first, and combines the updates in order: what a parallel executor may do."""

    bits = "serial"

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        tasks = [task for cohort in cohorts for task in cohort.tasks]
        return combine_updates(
            cohorts, combine, [self.trainer.train(task) for task in reversed(tasks)][::-1], screening
        )

    def carries_through(self, combine: Combine) -> bool:
        return False


def run_events(executor_type: type) -> list[tuple[Model, Model, Model]]:
    module = linear_module(seed=4)
    method = Method(Schedule(EVENTS, clusters=2, rounds=5), RULE)
    executor = executor_type(Trainer(module, POPULATION, RULE, SEED))
    found = []
    for step in train(method, executor, init(method, read_model(module))):
        assert step.state.server is not None
        found.append((step.state.server, step.state.starts[0], step.state.starts[1]))
    return found


def test_each_event_equals_the_hand_worked_state() -> None:
    expected = states_by_hand(as_vector(read_model(linear_module(seed=4))))
    found = run_events(Serial)
    assert len(found) == len(expected)
    for index, (ours, by_hand) in enumerate(zip(found, expected, strict=True)):
        for what, model, vector in zip(("server", "start 0", "start 1"), ours, by_hand, strict=True):
            np.testing.assert_allclose(as_vector(model), vector, rtol=0, atol=1e-12, err_msg=f"event {index}, {what}")


def test_bits_do_not_depend_on_the_order_in_which_clients_train() -> None:
    for forwards, backwards in zip(run_events(Serial), run_events(Backwards), strict=True):
        for one, other in zip(forwards, backwards, strict=True):
            assert as_vector(one).tobytes() == as_vector(other).tobytes()


def test_events_that_have_their_starts_are_ready_together() -> None:
    schedule = Schedule(EVENTS, clusters=2, rounds=5)
    ready = {done: [event.index for event in schedule.ready(done)] for done in range(6)}
    assert ready == {0: [0], 1: [1, 2], 2: [2], 3: [3], 4: [4], 5: []}


class Counting(Serial):
    """Notes how many cohorts it is given at a time."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.given: list[list[int]] = []

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        self.given.append([cohort.event for cohort in cohorts])
        return super().train(cohorts, combine, screening)


def test_events_that_train_together_come_to_the_same_bits_as_one_by_one() -> None:
    module = linear_module(seed=4)
    method = Method(Schedule(EVENTS, clusters=2, rounds=5), RULE)
    executor = Counting(Trainer(module, POPULATION, RULE, SEED))
    state = init(method, read_model(module))
    together = list(train(method, executor, state))
    assert executor.given == [[0], [1, 2], [1], [3, 3], [4, 4]]  # event 1 has a second intra-cluster round
    for event, step in zip(EVENTS, together, strict=True):
        (trained,) = train_events(method, executor, state, [event])
        state = merge(method, state, trained).state
        for one, other in zip(
            (*state.starts, *state.published), (*step.state.starts, *step.state.published), strict=True
        ):
            assert as_vector(one).tobytes() == as_vector(other).tobytes()


def test_a_cohort_is_given_the_norms_that_were_known_when_its_cluster_got_its_start() -> None:
    given: dict[tuple[int, int], Norms] = {}

    class Noting(Serial):
        def train(
            self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
        ) -> list[ClusterUpdate]:
            given.update({(cohort.event, cohort.cluster): cohort.usual for cohort in cohorts})
            return super().train(cohorts, combine, screening)

    module = linear_module(seed=4)
    method = Method(Schedule(EVENTS, clusters=2, rounds=5), RULE, screening=Screening(usual_norms="note"))
    executor = Noting(Trainer(module, POPULATION, RULE, SEED))
    known = [step.state.norms for step in train(method, executor, init(method, read_model(module)))]
    assert [len(norms) for norms in known] == [2, 6, 8, 12, 16]
    first = {(0, 0): (), (1, 0): known[0], (2, 1): ()}  # cluster 1 still trains from the initial model
    assert given == first | {(3, 0): known[1], (3, 1): known[2], (4, 0): known[3], (4, 1): known[3]}


def test_a_schedule_without_clusters_needs_an_identity() -> None:
    event = make_event(0, (0,))
    lost = Event(**{**{name: getattr(event, name) for name in Event.__dataclass_fields__}, "clusters": None})
    module = linear_module()
    method = Method(Schedule((lost,), 2, 1), RULE)
    with pytest.raises(InputError, match="least loss"):
        next(train(method, Serial(Trainer(module, POPULATION, RULE, 0)), init(method, read_model(module))))
