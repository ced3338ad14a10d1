"""Sums of models taken by workers: to the bits of `Serial`, for any number of workers, though some are lost."""

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import Experiment, RunError, Serial, Trainer, make_runs, read_model, run_events
from atoll.aggregation.mean import Combine, average_gradients, average_models
from atoll.aggregation.screening import Screening
from atoll.aggregation.sum_tree import LEAF
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.distributed import TrainingUnit, why_single
from atoll.executors.ray.ray_executor import Ray
from atoll.experiment import executor_choice
from atoll.faults.attacks import Colluding
from atoll.local.models import Model
from atoll.local.rule import LocalRule, sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.weights import count_bytes
from atoll.support.arrays import Ids
from tests.problems import classification, network
from tests.tiers import thinned

CLIENTS = 100
POPULATION = classification(clients=CLIENTS)
RULE = LocalRule(sgd, lr=0.1, steps=1, batch_size=4)
BYTES = 10_000


class Faulty(Trainer):
    """Does something to the update of some clients, or to the process that trains them."""

    def __init__(self, faults: dict[int, Callable[[], object]], tolerant: bool = False) -> None:
        super().__init__(network().float(), POPULATION, RULE, 5, tolerant=tolerant)
        self.faults = faults

    def train(self, task: ClientTask) -> ClientUpdate:
        fault = self.faults.get(task.client, bool)()
        update = super().train(task)
        return ClientUpdate({name: tensor * np.nan for name, tensor in update.model.items()}, 1.0) if fault else update


def cohort_of(clients: Sequence[int], event: int = 3) -> Cohort:
    weights = np.arange(1.0, len(clients) + 1)
    start = read_model(network(seed=event).float())
    return Cohort(event, event, 0, 1, np.array(clients), weights, 2 * float(weights.sum()), start)


def assert_same(ours: Sequence[ClusterUpdate], theirs: Sequence[ClusterUpdate]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert (one.loss, one.arrived, one.refused) == (other.loss, other.arrived, other.refused)
        assert all(torch.equal(tensor, other.model[name]) for name, tensor in one.model.items())


def units_of(cohorts: Sequence[Cohort], workers: int, combine: Combine = average_models) -> list[TrainingUnit]:
    with Cores(Faulty({}), workers, BYTES) as cores:
        return list(cores.units(cohorts, combine, None, workers))


@given(st.lists(st.integers(1, 5 * LEAF), min_size=1, max_size=4), st.integers(1, 9))
def test_units_are_the_cohorts_clients_in_order(sizes: list[int], workers: int) -> None:
    cohorts = [cohort_of(range(size), event) for event, size in enumerate(sizes)]
    units = units_of(cohorts, workers)
    for event, cohort in enumerate(cohorts):
        own = [unit.cohort for unit in units if unit.cohort.event == event]
        assert np.concatenate([part.clients for part in own]).tolist() == cohort.clients.tolist()
        assert np.concatenate([part.weights for part in own]).tolist() == cohort.weights.tolist()
    assert all(len(unit.cohort.clients) == 1 for unit in units if not unit.span)


@pytest.mark.parametrize(("workers", "most"), [(1, 30), (2, 40), (4, 160), (8, 300)])
def test_a_thousand_clients_are_few_units_of_which_none_holds_up_the_others(workers: int, most: int) -> None:
    trainer = Trainer(network().float(), classification(clients=1_000, samples=1), RULE, 5)
    with Cores(trainer, workers, BYTES) as cores:
        units = list(cores.units([cohort_of(range(1_000))], average_models, None, workers))
    assert len(units) <= most
    busy = [0] * workers  # whoever is free takes the next, which all take equally long a client
    for unit in units:
        busy[busy.index(min(busy))] += len(unit.cohort.clients)
    assert max(busy) <= 1.1 * 1_000 / workers


@pytest.mark.more
@pytest.mark.parametrize("workers", thinned([2, 1, 3, 8], 1))
@pytest.mark.parametrize("combine", [average_models, average_gradients])
def test_workers_sum_to_the_bits_of_serial_though_one_is_killed(workers: int, combine: Combine, tmp_path: Path) -> None:
    cohorts = [cohort_of(range(CLIENTS)), cohort_of([7, 3, 5], 4), cohort_of(range(40, 97), 5)]
    assert any(unit.span for unit in units_of(cohorts, workers))

    def kill() -> None:
        if not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    with Cores(Faulty({9: kill}), workers, BYTES) as cores:
        ours = cores.train(cohorts, combine)
    assert (tmp_path / "killed").exists()
    assert_same(ours, Serial(Faulty({})).train(cohorts, combine))


@pytest.mark.parametrize("broken", [[4, 18, 33, 99], range(LEAF), range(CLIENTS)])
def test_broken_results_are_left_out_where_they_are_trained(broken: Sequence[int]) -> None:
    trainer, screening = Faulty(dict.fromkeys(broken, lambda: True), tolerant=True), Screening(max_update_norm=1.0)
    cohorts = [cohort_of(range(CLIENTS))]
    with Cores(trainer, 2, BYTES) as cores:
        assert any(unit.span for unit in cores.units(cohorts, average_models, screening, 2))
        ours = cores.train(cohorts, average_models, screening)
    theirs = Serial(trainer).train(cohorts, average_models, screening)
    assert_same(*([replace(each, loss=0.0) for each in both] for both in (ours, theirs)))
    assert str(ours[0].loss) == str(theirs[0].loss)  # NaN if no result counts
    assert ours[0].refused == {"not_finite": len(broken)}
    kept = [client for client in range(CLIENTS) if client not in broken]
    assert ours[0].arrived == pytest.approx(cohorts[0].weights[kept].sum() / cohorts[0].weights.sum())


def fail() -> None:
    raise ValueError("no such thing")


def test_the_first_client_that_fails_in_a_sum_is_named_as_by_serial() -> None:
    told = []
    for make in (Serial, lambda trainer: Cores(trainer, 2, BYTES)):
        with closing(make(Faulty({5: fail, 6: fail, 90: fail}))) as executor, pytest.raises(RunError) as caught:
            executor.train([cohort_of(range(CLIENTS))], average_models)
        told.append(str(caught.value))
    assert told[0] == told[1] == "event 3, cluster 1, client 5: training failed (ValueError: no such thing)"


class Renaming(Faulty):
    """Sends a model of other names for some clients, which no screening looks at."""

    def train(self, task: ClientTask) -> ClientUpdate:
        update = super().train(task)
        return replace(update, model={"other": torch.zeros(1)}) if task.client == 7 else update


def test_models_that_cannot_be_added_are_an_error_of_the_cluster() -> None:
    told = []
    for make in (Serial, lambda trainer: Cores(trainer, 2, BYTES)):
        with closing(make(Renaming({}))) as executor, pytest.raises(RunError) as caught:
            executor.train([cohort_of(range(CLIENTS))], average_models)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "event 3, cluster 1: combining the clients' models failed (KeyError: " in told[0]


def test_a_client_that_kills_every_worker_ends_the_run_and_its_unit_is_named() -> None:
    message = r"event 3, cluster 1, clients 0, 1, .*, 15: training ended its worker process 4 times"
    trainer = Faulty({2: lambda: os.kill(os.getpid(), signal.SIGKILL)})
    with Cores(trainer, 2, BYTES) as cores, pytest.raises(RunError, match=message):
        cores.train([cohort_of(range(CLIENTS))], average_models)


def test_what_needs_single_models_is_sent_them_and_says_why() -> None:
    def own(models: Any, start: Model, cohort_weight: float) -> Model:
        return average_models(models, start, cohort_weight)

    assert why_single(average_models, None, keeps_state=False) == ""
    assert why_single(average_gradients, Screening(max_update_norm=1.0), keeps_state=False) == ""
    assert why_single(average_models, None, keeps_state=True) == "clients keep state"
    assert why_single(own, None, False, "my rule") == "my rule needs more than their mean"
    for screening in (Screening(usual_norms="note"), Screening(usual_norms="refuse"), Colluding()):
        assert why_single(average_models, screening, keeps_state=False) == "results are compared with each other"
    assert all(len(unit.cohort.clients) == 1 and not unit.span for unit in units_of([cohort_of(range(90))], 2, own))


def received(cores: Cores, combine: Combine, cohort: Cohort) -> int:
    """Count the bytes that workers give the run's process in an event: in slots, and through pipes."""
    count, plain, workers = 0, cores.workers.map, vars(cores.workers)

    def counted(*given: Any) -> Any:
        nonlocal count
        for layout, outcome, states in plain(*given):
            count += sum(int(np.prod(shape)) * dtype.itemsize for _, dtype, shape in layout)
            count += len(pickle.dumps((layout, outcome, states)))
            yield layout, outcome, states

    workers["map"] = counted
    cores.train([cohort], combine)
    del workers["map"]
    return count


@pytest.mark.more
def test_workers_send_one_sum_for_many_clients() -> None:
    def own(models: Any, start: Model, cohort_weight: float) -> Model:
        return average_models(models, start, cohort_weight)

    cohort = cohort_of(range(CLIENTS))
    size = count_bytes(cohort.start)
    with Cores(Faulty({}), 2, BYTES) as cores:
        singly, in_sums = (received(cores, rule, cohort) for rule in (own, average_models))
        units = list(cores.units([cohort], average_models, None, 2))
    assert singly > CLIENTS * size
    assert len(units) * size < in_sums < len(units) * (size + 1_000)
    assert len(units) < 0.6 * CLIENTS


class Idle(Faulty):
    """Sends what it was sent."""

    def train(self, task: ClientTask) -> ClientUpdate:
        return ClientUpdate({"w": task.start["w"]}, float(task.client))

    def samples_a_step(self, clients: Ids) -> int:
        return len(clients)


@pytest.mark.slow
def test_requests_and_answers_larger_than_a_pipe_do_not_wait_for_each_other() -> None:
    clients = np.arange(1 << 17)
    weights = np.ones(len(clients))
    cohort = Cohort(0, 0, 0, 0, clients, weights, float(len(clients)), {"w": torch.ones(3)})
    with Cores(Idle({}), 1, BYTES) as cores:
        assert max(len(unit.cohort.clients) for unit in cores.units([cohort], average_models, None, 1)) == 1 << 15
        (update,) = cores.train([cohort], average_models)
    assert update.loss == clients.mean()
    assert torch.equal(update.model["w"], torch.ones(3))


METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": ("method.name=fedavg", "method.fraction=1.0"),
    "fedcluster": ("method.name=fedcluster", "method.fraction=1.0", "clustering.clusters=2"),
    "ifca": ("method.name=ifca", "method.clusters=2", "method.fraction=1.0"),
    "hierfavg": ("method.name=hierfavg", "method.intra_rounds=2", "clustering.clusters=2"),
    "censyn": ("method.name=hierarchical", "method.pattern=censyn", "clustering.clusters=2", "method.intra_rounds=2"),
    "cenasy": ("method.name=hierarchical", "method.pattern=cenasy", "clustering.clusters=2", "method.intra_rounds=2"),
}
SMALL = {
    "rounds": 8,
    "data": {"clients": 90, "samples": 8, "partition": "rotated", "rotations": 2},
    "model": {"name": "linear"},
    "local": {"lr": 0.2, "steps": 2, "batch_size": 4},
    "network": {"seconds_per_sample": [0.01, 1.0], "bandwidth_hz": 1e4},
    "run": {"checkpoint_every": 1, "evaluate_every": 4, "evaluate_samples": 20},
}
ON = [
    *(pytest.param("cores", workers, marks=pytest.mark.more) for workers in (2, 8)),
    *(pytest.param("cores", workers, marks=pytest.mark.slow) for workers in (1, 4)),
    *(pytest.param("ray", workers, marks=pytest.mark.slow) for workers in (1, 2, 4, 8)),
]


KILLED, OURS = "ATOLL_TEST_KILLED", "ATOLL_TEST_PROCESS"
"""In the environment: a file that the first worker to train makes before it kills itself; who is no worker."""


def sgd_that_dies_once(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Return plain SGD; the first time, in a worker, end its process."""
    if KILLED in os.environ and os.environ[OURS] != str(os.getpid()):
        with suppress(FileExistsError):
            Path(os.environ[KILLED]).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return torch.optim.SGD(parameters, lr)


def end_of(folder: Path, method: str, executor: str, workers: int, events: int | None = None, *more: str) -> bytes:
    """Go on with a run until it ends, or so many events are done; return its last checkpoint."""
    changes = f"run.executor={executor}", f"run.workers={workers}", *more
    (settings,) = make_runs(SMALL, changes=[*METHODS[method], *changes])
    made = Experiment(settings)
    assert executor == "serial" or str(made.execution.choice) == f"{executor} (as run.executor says)"
    with closing(run_events(made, folder, resume=folder.exists())) as progress:
        for each in progress:
            if each.events_done == events:
                break
    return max((folder / "checkpoint").glob("*.safetensors")).read_bytes()


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """Return the last checkpoint of a method's run by `serial`."""
    return cache(lambda method: end_of(tmp_path_factory.mktemp("serial") / "run", method, "serial", 1))


@pytest.mark.filterwarnings("ignore:run.workers:UserWarning")
@pytest.mark.parametrize(("executor", "workers"), ON)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_on_workers_ends_as_by_serial(
    serial: Callable[[str], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    executor: str,
    workers: int,
) -> None:
    monkeypatch.setattr(executor_choice, "Ray", partial(Ray, patience=300.0))  # eight workers start slowly
    assert end_of(tmp_path / "run", method, executor, workers) == serial(method)


@pytest.mark.more
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_goes_on_elsewhere_ends_as_by_serial(
    serial: Callable[[str], bytes], tmp_path: Path, method: str
) -> None:
    end_of(tmp_path / "run", method, "cores", 3, events=2 if method == "cenasy" else 1)
    assert end_of(tmp_path / "run", method, "cores", 2) == serial(method)


DYING = f"local.optimizer={__name__}:sgd_that_dies_once"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:run.workers:UserWarning")
@pytest.mark.parametrize(
    ("executor", "workers"), [("cores", 1), ("cores", 2), ("cores", 8), ("ray", 1), ("ray", 2), ("ray", 8)]
)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_whose_worker_is_killed_within_a_sum_ends_as_by_serial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, executor: str, workers: int
) -> None:
    monkeypatch.setattr(executor_choice, "Ray", partial(Ray, patience=300.0))
    expected = end_of(tmp_path / "serial", method, "serial", 1, None, DYING)
    monkeypatch.setenv(KILLED, str(tmp_path / "killed"))
    monkeypatch.setenv(OURS, str(os.getpid()))
    assert end_of(tmp_path / "run", method, executor, workers, None, DYING) == expected
    assert (tmp_path / "killed").exists()
