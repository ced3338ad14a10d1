"""Which executor is chosen: by the settings, by `auto`, and what is refused."""

import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import Clustering, InputError, LocalRule, Method, Serial, Trainer, fedavg, read_model
from atoll.aggregation.mean import Combine
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.cost import Units, time_unit
from atoll.executors.stacked.fit import try_stack
from atoll.executors.stacked.stacked_executor import Stacked
from atoll.executors.weighted import Weighted
from atoll.experiment import executor_choice as e
from atoll.experiment.executor_choice import ExecutorChoice, choose_executor, count_cores, make_executor, why_not_fork
from atoll.experiment.experiment import Experiment
from atoll.local.rule import sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.methods.papers.fedcluster import fedcluster
from atoll.methods.papers.ifca import ifca
from atoll.schedules.events import Schedule
from atoll.settings.experiment_file import make_runs
from atoll.settings.sections import RunSettings
from tests.problems import classification, network

POPULATION = classification(clients=7)
RULE = LocalRule(sgd, lr=0.1, steps=2, batch_size=4)
ONE_STEP = replace(RULE, steps=1)


def experiment(**run: Any) -> Experiment:
    (settings,) = make_runs(
        {"rounds": 1, "data": {"clients": 8, "samples": 8}, "method": {"name": "fedavg", "fraction": 1.0}, "run": run}
    )
    return Experiment(settings)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, and training that takes a tenth of a second a client or cohort."""
    monkeypatch.setattr(e, "count_cores", lambda: 4)
    monkeypatch.setattr(e, "time_unit", lambda executor, unit: 0.1)


def choose(
    method: Method,
    wanted: RunSettings | None = None,
    device: str = "cpu",
    module: nn.Module | None = None,
    sent_bytes: int = 1000,
) -> ExecutorChoice:
    module = module or network()
    trainer = Trainer(module, POPULATION, method.rule, 0)
    return choose_executor(wanted or RunSettings(), method, trainer, read_model(module), sent_bytes, device)


def fedavg_of(rule: LocalRule, rounds: int = 50) -> Method:
    return fedavg(POPULATION, rule, rounds, 1.0, seed=0)


@pytest.mark.usefixtures("cores")
def test_auto_spreads_clients_over_the_cores_where_that_pays() -> None:
    choice = choose(fedavg_of(RULE))
    assert (choice.name, choice.whole, choice.workers) == ("cores", False, 4)
    assert str(choice) == "cores (client by client; a client takes 100 ms, all 35 s, 9 s with 4 workers)"
    assert choose(fedavg_of(RULE), RunSettings(workers=2)).workers == 2
    assert choose(fedavg_of(RULE), RunSettings(workers=99)).workers == 4


@pytest.mark.parametrize(
    ("rule", "rounds", "seconds", "name"),
    [
        (RULE, 50, 0.1, "cores"),
        (RULE, 50, 1e-4, "serial"),  # handing out takes longer than training
        (RULE, 1, 0.02, "serial"),  # forking takes longer than all training
        (ONE_STEP, 50, 0.1, "weighted"),  # a cohort is one pass, and the events of fedavg follow each other
    ],
)
@pytest.mark.usefixtures("cores")
def test_auto_follows_what_work_takes(
    monkeypatch: pytest.MonkeyPatch, rule: LocalRule, rounds: int, seconds: float, name: str
) -> None:
    monkeypatch.setattr(e, "time_unit", lambda executor, unit: seconds)
    assert choose(fedavg_of(rule, rounds)).name == name


@pytest.mark.usefixtures("cores")
def test_auto_spreads_whole_cohorts_that_are_ready_together() -> None:
    method = ifca(POPULATION, ONE_STEP, 50, 3, fraction=1.0, seed=0)
    choice = choose(method)
    assert (choice.name, choice.whole) == ("cores", True)
    executor = make_executor(choice, RunSettings(), Trainer(network(), POPULATION, ONE_STEP, 0), 1000)
    assert isinstance(executor, Cores)
    assert isinstance(executor.by_cohort, Weighted)
    gradients = ifca(POPULATION, ONE_STEP, 50, 3, "gradients", fraction=1.0, seed=0)
    assert choose(gradients).whole is False  # that combine rule needs every client's model


@pytest.mark.parametrize(("rule", "plain"), [(RULE, "serial"), (ONE_STEP, "weighted")])
def test_auto_never_flips_between_executors_of_different_bits(
    monkeypatch: pytest.MonkeyPatch, rule: LocalRule, plain: str
) -> None:
    """Whatever the machine, its load and its platform are, the bits are those of `plain`."""
    method = ifca(POPULATION, rule, 9, 3, fraction=1.0, seed=0)
    found = set()
    for count in (1, 2, 64):
        for seconds in (0.0, 1e-4, 1e-2, 10.0):
            for methods in (["fork", "spawn"], ["spawn"]):
                monkeypatch.setattr(e, "count_cores", lambda count=count: count)
                monkeypatch.setattr(e, "time_unit", lambda executor, unit, seconds=seconds: seconds)
                monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda methods=methods: methods)
                choice = choose(method)
                assert choice.whole is (plain == "weighted")
                found.add(choice.name)
    assert found == {plain, "cores"}


@pytest.mark.parametrize(
    ("target", "attribute", "value", "told"),
    [
        (multiprocessing, "get_all_start_methods", lambda: ["spawn"], "this platform cannot fork processes"),
        (sys, "platform", "darwin", "macOS"),
        (torch.cuda, "is_initialized", lambda: True, "this process uses CUDA"),
    ],
)
@pytest.mark.usefixtures("cores")
def test_auto_does_not_fork_where_that_is_unsafe(
    monkeypatch: pytest.MonkeyPatch, target: Any, attribute: str, value: Any, told: str
) -> None:
    assert why_not_fork() == ""
    monkeypatch.setattr(target, attribute, value)
    choice = choose(fedavg_of(RULE))
    assert choice.name == "serial"
    assert told in choice.why


@pytest.mark.usefixtures("cores")
def test_auto_stays_in_this_process_where_nothing_can_be_done_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = fedcluster(POPULATION, Clustering(np.arange(7), 7), RULE, 3, 1.0, seed=0)
    assert "one client trains at a time" in choose(alone).why
    monkeypatch.setattr(e, "count_cores", lambda: 1)
    assert "one core" in choose(fedavg_of(RULE)).why


@pytest.mark.usefixtures("cores")
def test_auto_stays_in_this_process_where_memory_has_no_room_for_the_workers_models() -> None:
    choice = choose(fedavg_of(RULE), sent_bytes=1 << 44)
    assert choice.name == "serial"
    assert "24 models of 1.76e+04 GB do not fit into memory" in choice.why


class Normed(nn.Module):
    """Has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.norm(self.first(inputs)))
        return outputs


class Branching(nn.Module):
    """Cannot be vmapped, but can take one weighted pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs if inputs.sum() > 0 else inputs * 1)
        return outputs


def test_auto_on_a_gpu_takes_the_first_that_fits() -> None:
    assert choose(fedavg_of(RULE), device="cuda").name == "stacked"
    assert choose(fedavg_of(ONE_STEP), device="cuda").name == "stacked"
    fallback = choose(fedavg_of(RULE), device="cuda", module=Normed().double())
    assert str(fallback) == (
        "serial (not stacked: the model's layer 'norm' (BatchNorm1d) changes its buffer 'running_mean' in every step; "
        "with run.executor = 'ray' several clients share a GPU)"
    )
    whole = choose(fedavg_of(ONE_STEP), device="cuda", module=Branching().double())
    assert (whole.name, whole.whole) == ("weighted", True)
    assert "Branching" in whole.why


def test_an_explicit_choice_that_does_not_fit_names_the_layer() -> None:
    with pytest.raises(InputError, match=r"run.executor = 'stacked': the model's layer 'norm' \(BatchNorm1d\)"):
        choose(fedavg_of(RULE), RunSettings(executor="stacked"), module=Normed().double())


@pytest.mark.parametrize(
    ("name", "kind"), [("serial", Serial), ("cores", Cores), ("stacked", Stacked), ("auto", Serial)]
)
def test_the_settings_name_the_executor(name: Any, kind: type) -> None:
    made = experiment(executor=name, workers=1).execution.make_executor()
    assert type(made) is kind
    made.close()


def test_the_limit_of_a_stack_is_handed_on() -> None:
    made = experiment(executor="stacked", stack_bytes=1234567).execution.make_executor()
    assert isinstance(made, Stacked)
    assert made.stack_bytes == 1234567


def test_more_workers_than_cores_are_allowed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e, "count_cores", lambda: 2)
    chosen = experiment(executor="cores", workers=5).execution.choice
    assert chosen.workers == 5
    assert chosen.warning == "run.workers = 5: this process may use 2 cores; more workers are no faster"
    assert experiment(executor="cores", workers=2).execution.choice.warning == ""


def test_bfloat16_where_it_is_emulated_is_allowed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e, "lacks_bfloat16", lambda: True)
    told = "run.precision = 'bfloat16': slower than float32, as this processor has no bfloat16 arithmetic"
    assert experiment(executor="serial", precision="bfloat16").execution.choice.warning == told
    assert experiment(executor="serial").execution.choice.warning == ""
    monkeypatch.setattr(e, "lacks_bfloat16", lambda: False)
    assert experiment(executor="serial", precision="bfloat16").execution.choice.warning == ""


@pytest.mark.parametrize("rule", [RULE, ONE_STEP, replace(RULE, steps=1, batch_size=1)])
def test_auto_never_stacks_on_the_cpu(rule: LocalRule, cores: None) -> None:
    """Not even a small model for a single step: groups of clients gain less there than they take (docs/performance)."""
    trainer = Trainer(network(), POPULATION, rule, 0)
    assert try_stack(trainer).reason == ""
    assert choose(fedavg_of(rule)).name != "stacked"


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"executor": "cores", "debug": True}, "run.debug = true: .* run.executor = 'cores' does not; use 'serial'"),
        ({"executor": "stacked", "debug": True}, "run.debug = true"),
        ({"precision": "tf32"}, "run.precision = 'tf32': needs run.device = 'cuda'"),
    ],
)
def test_refused_before_anything_is_trained(run: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        experiment(**run).check()


@pytest.mark.parametrize(
    ("name", "device", "told"),
    [
        ("cores", "cuda", "trains on the CPU, but run.device = 'cuda'"),
        ("ray", "cuda:1", "chooses workers' GPUs: 'cpu' or 'cuda', but run.device = 'cuda:1'"),
    ],
)
def test_what_workers_may_train_on(name: Any, device: str, told: str) -> None:
    with pytest.raises(InputError, match=f"run.executor = '{name}': {told}"):
        choose(fedavg_of(RULE), RunSettings(executor=name, device=device), device=device)


@pytest.mark.parametrize(("workers", "address", "expected"), [(None, None, 3), (5, None, 5), (None, "host:1", 0)])
def test_rays_workers_are_as_many_as_gpus_unless_they_are_to_share_them(
    workers: int | None, address: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    wanted = RunSettings(executor="ray", device="cuda", workers=workers, address=address)
    assert choose(fedavg_of(RULE), wanted, device="cuda").workers == expected


def test_debug_is_serial() -> None:
    made = experiment(debug=True).execution.make_executor()
    assert isinstance(made, Serial)
    assert made.debug
    assert isinstance(made.trainer, Trainer)
    assert made.trainer.dense is None  # else steps could not be watched


def test_work_that_fails_is_not_timed_and_the_run_tells_of_it() -> None:
    class Fails:
        trained = 0

        def train(self, cohorts: Sequence[Cohort], combine: Combine) -> list[ClusterUpdate]:
            return Serial(Failing(network(), POPULATION, RULE, 0)).train(cohorts, combine)

    class Failing(Trainer):
        def train(self, task: ClientTask) -> ClientUpdate:
            raise ValueError

    unit = Units(fedavg_of(RULE).schedule, whole=False).first(read_model(network()))
    assert unit.clients.tolist() == [fedavg_of(RULE).schedule.events[0].cohort[0]]
    assert time_unit(Fails(), unit) == 0.0  # type: ignore[arg-type]


def test_what_is_timed_is_a_client_or_an_average_cohort() -> None:
    start = read_model(network())
    schedule = ifca(POPULATION, RULE, 2, 3, fraction=1.0, seed=0).schedule
    assert len(Units(schedule, whole=True).first(start).clients) == 7 // 3
    unit = Units(schedule, whole=False).first(start)
    assert len(unit.clients) == 1
    assert time_unit(Serial(Trainer(network(), POPULATION, RULE, 0)), unit) > 0


def test_what_is_carried_through_intra_cluster_rounds_is_handed_out_once() -> None:
    schedule = ifca(POPULATION, RULE, 2, 3, fraction=1.0, seed=0).schedule
    events = tuple(replace(event, intra_rounds=5) for event in schedule.events)
    again = Schedule(events, schedule.clusters, schedule.rounds, has_server=False)
    megabytes = 1_000_000
    plain, after_plain = Units(again, whole=True).predict(0.01, megabytes, 3)
    carried, after_carried = Units(again, whole=True, carried=True).predict(0.01, megabytes, 3)
    assert plain == carried == pytest.approx(2 * 5 * 3 * 0.01)
    assert after_plain == pytest.approx(2 * 5 * 3 * (0.01 + 0.0006 + 0.003) / 3 + 3 * 0.05)
    assert after_carried == pytest.approx(2 * 5 * 0.01 + 2 * (0.0006 + 0.003) + 3 * 0.05)


def test_cuda_is_not_woken_up_before_workers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("CUDA must not be initialised")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", fail)
    chosen = experiment(executor="cores", workers=2)
    chosen.check()
    chosen.execution.make_executor().close()
    assert count_cores() >= 1
