"""The weighted pass against the clients trained one by one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import Event, InputError, LocalRule, Method, RunError, Schedule, Serial, State, Trainer, read_model
from atoll.aggregation.mean import Combine, average_gradients, average_models, mean, says
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.engine.train_events import EventResult, train_events
from atoll.executors.weighted import Weighted, why_not_weighted
from atoll.experiment.experiment import Experiment
from atoll.local.models import Model
from atoll.local.rule import MakeOptimizer, adam, momentum, sgd
from atoll.settings.experiment_file import make_runs
from atoll.support.arrays import Floats, Ids, Mask
from tests.problems import Tallying, as_vector, classification, linear_module, network, quadratics

POPULATION = classification(clients=7, samples=9)


def cohort(start: Model, clients: list[int], weights: list[float], event: int = 3) -> Cohort:
    return Cohort(event, event, 2, 1, np.array(clients), np.array(weights), sum(weights), start)


def train_both(trainer: Trainer, cohorts: list[Cohort], combine: Combine = average_models) -> tuple[Model, Model]:
    weighted, serial = (executor.train(cohorts, combine) for executor in (Weighted(trainer), Serial(trainer)))
    return weighted[0].model, serial[0].model


@pytest.mark.parametrize("optimizer", [sgd, momentum])
@pytest.mark.parametrize("batch_size", [1, 4, "full"])
def test_one_pass_equals_client_by_client(batch_size: int, optimizer: object) -> None:
    module = network()
    rule = LocalRule(optimizer, lr=0.3, steps=1, batch_size=batch_size, lr_decay=0.9, proximal=0.5)  # type: ignore[arg-type]
    trainer = Trainer(module, POPULATION, rule, seed=5)
    cohorts = [
        cohort(read_model(network(seed=1)), [0, 2, 5], [9.0, 11.0, 2.5]),
        cohort(read_model(network(seed=2)), [6], [4.0]),
    ]
    for one, many in zip(
        Weighted(trainer).train(cohorts, average_models), Serial(trainer).train(cohorts, average_models), strict=True
    ):
        np.testing.assert_allclose(as_vector(one.model), as_vector(many.model), rtol=0, atol=1e-13)
        assert one.loss == pytest.approx(many.loss, rel=1e-6)
        assert not np.array_equal(as_vector(one.model), as_vector(cohorts[0].start))


def test_float32_agrees_to_1e_5() -> None:
    module = network().float()
    trainer = Trainer(module, POPULATION, LocalRule(sgd, lr=0.3, steps=1, batch_size=4), seed=5)
    cohorts = [cohort(read_model(network(seed=1).float()), list(range(7)), [9.0, 10, 11, 9, 10, 11, 9])]
    one, many = train_both(trainer, cohorts)
    np.testing.assert_allclose(as_vector(one), as_vector(many), rtol=1e-5, atol=1e-6)


def test_squared_losses_are_weighted_too() -> None:
    population = quadratics(clients=4)
    trainer = Trainer(linear_module(), population, LocalRule(sgd, lr=0.1, steps=1, batch_size="full"), seed=0)
    cohorts = [cohort(read_model(linear_module(seed=3)), [0, 1, 3], population.sizes[[0, 1, 3]].tolist())]
    one, many = train_both(trainer, cohorts)
    np.testing.assert_allclose(as_vector(one), as_vector(many), rtol=0, atol=1e-14)


@pytest.mark.parametrize("by_hand", [True, False])
def test_targets_may_be_of_another_precision(by_hand: bool) -> None:
    population, module = quadratics(clients=4), linear_module().float()
    assert population.data.targets.dtype == np.float64
    rule = LocalRule(sgd, lr=0.1, steps=1, batch_size=4)
    trainer = Trainer(module, population, rule, seed=0, by_hand=by_hand)
    cohorts = [cohort(read_model(linear_module(seed=3).float()), [0, 1, 3], [1.0, 2.0, 3.0])]
    one, many = train_both(trainer, cohorts)
    np.testing.assert_allclose(as_vector(one), as_vector(many), rtol=1e-5, atol=1e-6)


def test_a_very_large_cohort_is_trained_client_by_client(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(network(), POPULATION, LocalRule(sgd, lr=0.3, steps=1, batch_size="full"), seed=5)
    cohorts = [cohort(read_model(network(seed=1)), [0, 2], [1.0, 2.0])]
    monkeypatch.setattr("atoll.executors.weighted.MOST_SAMPLES", 10)
    few, serial = (
        executor.train(cohorts, average_models)[0].model for executor in (Weighted(trainer), Serial(trainer))
    )
    assert as_vector(few).tobytes() == as_vector(serial).tobytes()


def one_at_a_time(executor: Executor, through: Cohort) -> ClusterUpdate:
    average = ClusterUpdate(through.start, 0.0)
    for repeat in range(through.repeat, through.repeat + through.repeats):
        alone = replace(through, repeat=repeat, repeats=1, start=average.model)
        (average,) = executor.train([alone], average_models)
    return average


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("batch_size", [4, "full"])
@pytest.mark.parametrize("optimizer", [sgd, momentum])
def test_intra_cluster_rounds_at_once_give_the_bits_of_one_at_a_time(
    optimizer: MakeOptimizer, batch_size: Literal["full"] | int, by_hand: bool
) -> None:
    rule = LocalRule(optimizer, lr=0.3, steps=1, batch_size=batch_size, lr_decay=0.9)
    trainer = Trainer(network(), POPULATION, rule, seed=5, by_hand=by_hand)
    weighted = Weighted(trainer)
    assert weighted.carries_through(average_models)
    through = [
        replace(cohort(read_model(network(seed=1)), [0, 2, 5], [9.0, 11.0, 2.5]), repeats=4),
        replace(cohort(read_model(network(seed=2)), [6], [4.0]), repeats=2),
    ]
    for whole, found in zip(through, weighted.train(through, average_models), strict=True):
        expected = one_at_a_time(weighted, whole)
        assert as_vector(found.model).tobytes() == as_vector(expected.model).tobytes()
        assert found.loss == expected.loss
        by_client = one_at_a_time(Serial(trainer), whole)
        np.testing.assert_allclose(as_vector(found.model), as_vector(by_client.model), rtol=0, atol=1e-13)
        assert found.loss == pytest.approx(by_client.loss, rel=1e-6)


def test_intra_cluster_rounds_of_a_very_large_cohort_are_trained_client_by_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = Trainer(network(), POPULATION, LocalRule(sgd, lr=0.3, steps=1, batch_size="full"), seed=5)
    through = replace(cohort(read_model(network(seed=1)), [0, 2], [1.0, 2.0]), repeats=3)
    monkeypatch.setattr("atoll.executors.weighted.MOST_SAMPLES", 10)
    (found,) = Weighted(trainer).train([through], average_models)
    expected = one_at_a_time(Serial(trainer), through)
    assert as_vector(found.model).tobytes() == as_vector(expected.model).tobytes()
    assert found.loss == expected.loss


def test_a_proximal_term_which_pulls_to_each_rounds_own_start_is_not_carried() -> None:
    rule = LocalRule(sgd, lr=0.3, steps=1, proximal=0.5)
    assert not Weighted(Trainer(network(), POPULATION, rule, seed=5)).carries_through(average_models)


class Counting:
    """An executor that notes what it is asked for, and says what it carries through as another one does."""

    def __init__(self, executor: Executor, carrying: bool) -> None:
        self.executor = executor
        self.asked: list[list[tuple[int, int]]] = []
        self.carrying = carrying
        self.bits = executor.bits

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        self.asked.append([(each.repeat, each.repeats) for each in cohorts])
        return self.executor.train(cohorts, combine, screening)

    def carries_through(self, combine: Combine) -> bool:
        return self.carrying and self.executor.carries_through(combine)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        return self.executor.losses(models, clients, round_)

    def close(self) -> None:
        self.executor.close()


def trained(executor: Executor, answered: Mask | None = None, combine: Combine = average_models) -> list[EventResult]:
    clients, weights, clusters = np.array([0, 2, 5, 6]), np.array([9.0, 11.0, 2.5, 4.0]), np.array([0, 1, 1, 0])
    one = Event(0, 0, 1.0, (0, 1), (0.0, 0.0), clients, clusters, weights, intra_rounds=3, answered=answered)
    other = Event(1, 0, 1.0, (2,), (0.0,), np.array([1]), np.array([2]), np.ones(1), intra_rounds=5)
    starts = tuple(read_model(network(seed=s)) for s in range(3))
    method = Method(
        Schedule([one, other], clusters=3, rounds=1, has_server=False), LocalRule(sgd, lr=0.3), combine=combine
    )
    return train_events(method, executor, State(0, None, starts, starts), [one, other])


def test_events_ask_for_all_their_intra_cluster_rounds_at_once_where_that_is_possible() -> None:
    trainer = Trainer(network(), POPULATION, LocalRule(sgd, lr=0.3, steps=1, batch_size=4), seed=5)
    carrying, plain = Counting(Weighted(trainer), carrying=True), Counting(Weighted(trainer), carrying=False)
    for found, expected in zip(trained(carrying), trained(plain), strict=True):
        assert found.models.keys() == expected.models.keys()
        for cluster, model in found.models.items():
            assert as_vector(model).tobytes() == as_vector(expected.models[cluster]).tobytes()
        assert (found.loss, found.weights) == (expected.loss, expected.weights)
    assert carrying.asked == [[(0, 3), (0, 3), (0, 5)]]
    assert plain.asked == [[(r, 1)] * (3 if r < 3 else 1) for r in range(5)]
    many = Counting(Weighted(trainer), carrying=True)
    trained(many, combine=average_gradients)
    assert many.asked == plain.asked


def test_where_others_answer_in_each_intra_cluster_round_it_is_asked_for_alone() -> None:
    trainer = Trainer(network(), POPULATION, LocalRule(sgd, lr=0.3, steps=1, batch_size=4), seed=5)
    answered = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0]], bool)
    carrying, plain = Counting(Weighted(trainer), carrying=True), Counting(Weighted(trainer), carrying=False)
    for found, expected in zip(trained(carrying, answered), trained(plain, answered), strict=True):
        for cluster, model in found.models.items():
            assert as_vector(model).tobytes() == as_vector(expected.models[cluster]).tobytes()
        assert (found.loss, found.weights) == (expected.loss, expected.weights)
    assert carrying.asked == [[(0, 1), (0, 1), (0, 5)], [(1, 1)], [(2, 1), (2, 1)]]


def test_another_combine_rule_is_honoured() -> None:
    trainer = Trainer(network(), POPULATION, LocalRule(sgd, lr=0.3, steps=1), seed=5)
    half = Cohort(0, 0, 0, 0, np.array([1, 2]), np.ones(2), 4.0, read_model(network(seed=1)))
    one, many = (
        executor.train([half], average_gradients)[0].model for executor in (Weighted(trainer), Serial(trainer))
    )
    assert as_vector(one).tobytes() == as_vector(many).tobytes()


def test_a_rule_of_ones_own_is_the_weighted_mean_only_if_it_says_so() -> None:
    asked: list[int] = []

    def own(models: Iterable[tuple[float, Model]], start: Model, cohort_weight: float) -> Model:
        pairs = list(models)
        asked.append(len(pairs))
        return mean(pairs)

    trainer = Trainer(network(), POPULATION, LocalRule(sgd, lr=0.3, steps=1), seed=5)
    whole = Cohort(0, 0, 0, 0, np.array([1, 2]), np.ones(2), 2.0, read_model(network(seed=1)))
    Weighted(trainer).train([whole], own)
    assert asked == [2]
    assert not Weighted(trainer).carries_through(own)
    marked = says("is_weighted_mean")(own)
    (found,) = Weighted(trainer).train([whole], marked)
    assert asked == [2]
    assert Weighted(trainer).carries_through(marked)
    (expected,) = Weighted(trainer).train([whole], average_models)
    assert as_vector(found.model).tobytes() == as_vector(expected.model).tobytes()


def test_with_screening_results_come_one_by_one() -> None:
    trainer = Trainer(network(), POPULATION, LocalRule(sgd, lr=0.3, steps=1), seed=5)
    whole = Cohort(0, 0, 0, 0, np.array([1, 2]), np.ones(2), 2.0, read_model(network(seed=1)))
    expected = Serial(trainer).train([whole], average_models)[0]
    found = Weighted(trainer).train([whole], average_models, Screening(max_update_norm=1e9))[0]
    assert as_vector(found.model).tobytes() == as_vector(expected.model).tobytes()
    (none,) = Weighted(trainer).train([whole], average_models, Screening(max_update_norm=1e-9))
    assert none.refused == {"too_large": 2}


def test_a_step_that_is_not_finite_names_the_client() -> None:
    population = classification(clients=3)
    population.data.inputs[population.samples(1)] = np.nan
    trainer = Trainer(network(), population, LocalRule(sgd, lr=0.3, steps=1, batch_size="full"), seed=5)
    once = cohort(read_model(network()), [0, 1, 2], [1.0, 1, 1])
    for each in once, replace(once, repeats=3):
        with pytest.raises(RunError, match="event 3, cluster 1, client 1"):
            Weighted(trainer).train([each], average_models)


class Picky(nn.Linear):
    """Takes one client's batch, but not a cohort's."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and len(inputs) > 9:
            raise ValueError("too many")
        return super().forward(inputs)


def test_a_model_that_fails_on_a_whole_cohort_is_told_in_a_sentence() -> None:
    rule = LocalRule(sgd, lr=0.3, steps=1, batch_size="full")
    trainer = Trainer(Picky(4, 3).double(), POPULATION, rule, seed=5)
    start = read_model(trainer.module)
    Weighted(trainer).train([cohort(start, [0], [1.0])], average_models)
    with pytest.raises(RunError, match=r"event 3, cluster 1: training failed \(ValueError: too many, test_weighted.py"):
        Weighted(trainer).train([cohort(start, [0, 1], [1.0, 1.0])], average_models)


def test_each_pass_begins_with_the_first_buffers_that_are_no_part_of_the_model() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), Tallying(), nn.Linear(5, 3)).double()
    trainer = Trainer(module, POPULATION, LocalRule(sgd, lr=0.3, steps=1, batch_size=4), seed=5)
    cohorts = [cohort(read_model(module), [0, 2], [9.0, 11.0], event) for event in (3, 4)]
    weighted, serial = (executor.train(cohorts, average_models) for executor in (Weighted(trainer), Serial(trainer)))
    for one, many in zip(weighted, serial, strict=True):
        np.testing.assert_allclose(as_vector(one.model), as_vector(many.model), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("rule", "module", "reason"),
    [
        (LocalRule(sgd, lr=0.1, steps=2), network(), "local.steps = 2"),
        (LocalRule(adam, lr=0.1, steps=1), network(), "must be SGD"),
        (LocalRule(momentum, lr=0.1, steps=1, carry_moments=True), network(), "keep no state"),
        (LocalRule(sgd, lr=0.1, steps=1), nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), "Dropout"),
        (LocalRule(sgd, lr=0.1, steps=1), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "BatchNorm1d"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(rule: LocalRule, module: nn.Module, reason: str) -> None:
    assert reason in why_not_weighted(rule, module)
    with pytest.raises(ValueError, match=reason):
        Weighted(Trainer(module.double(), POPULATION, rule, seed=0))


@pytest.mark.parametrize(
    ("steps", "executor", "kind"), [(1, "auto", Weighted), (2, "auto", Serial), (1, "serial", Serial)]
)
def test_auto_takes_it_where_it_fits(steps: int, executor: str, kind: type) -> None:
    (settings,) = make_runs({"rounds": 1, "local": {"steps": steps}, "run": {"executor": executor}})
    assert type(Experiment(settings).execution.make_executor()) is kind


def test_asking_for_it_where_it_does_not_fit_is_an_error() -> None:
    (settings,) = make_runs({"rounds": 1, "run": {"executor": "weighted"}})
    with pytest.raises(InputError, match=r"run.executor = 'weighted': local.steps = 20: must be 1; use 'serial'"):
        Experiment(settings).execution.make_executor()


def test_dtype_follows_the_module() -> None:
    trainer = Trainer(network().float(), POPULATION, LocalRule(sgd, lr=0.1, steps=1), seed=0)
    (average,) = Weighted(trainer).train([cohort(read_model(network().float()), [0], [1.0])], average_models)
    assert {tensor.dtype for tensor in average.model.values()} == {torch.float32}
