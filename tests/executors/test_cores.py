"""The executor `cores` against `Serial` to the bit, and what happens to its processes when something goes wrong."""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import (
    Clustering,
    InputError,
    LocalRule,
    Method,
    Population,
    RunError,
    Serial,
    State,
    Step,
    Trainer,
    fedavg,
    generator,
    init,
    make_population,
    read_model,
    train,
)
from atoll.aggregation.mean import average_gradients, average_models
from atoll.engine.cohorts import Cohort, Executor, Rows
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.cores.cores_workers import RETRIES, Workers
from atoll.executors.distributed import cut
from atoll.executors.weighted import Weighted
from atoll.local.models import Model
from atoll.local.rule import adam, momentum, sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.weights import count_bytes
from atoll.methods.papers.cfl_mgd import cfl_mgd
from atoll.methods.papers.fedcluster import fedcluster
from atoll.methods.papers.hierarchical import hierarchical
from atoll.methods.papers.ifca import ifca
from atoll.network.network import Network
from atoll.support.arrays import Floats
from tests.problems import Tallying, classification, linear_module, network, quadratics
from tests.tiers import thinned

SEED = 5
POPULATION = quadratics(clients=7)
RULE = LocalRule(momentum, lr=0.05, steps=3, batch_size=4)
BYTES = 10_000
WORKERS = pytest.mark.parametrize("workers", thinned([1, 2, 3], (2,)))


def assert_same(ours: Model, theirs: Model) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert tensor.shape == theirs[name].shape
        assert tensor.numpy().tobytes() == theirs[name].numpy().tobytes(), name


def assert_same_steps(ours: Sequence[Step], theirs: Sequence[Step]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.loss == other.loss
        assert one.clusters.tolist() == other.clusters.tolist()
        assert (one.state.server is None) == (other.state.server is None)
        if one.state.server is not None and other.state.server is not None:
            assert_same(one.state.server, other.state.server)
        for each, its in (("starts", other.state.starts), ("published", other.state.published)):
            for model, same in zip(getattr(one.state, each), its, strict=True):
                assert_same(model, same)


def compare(
    method: Method, module: nn.Module, population: Population, workers: int, *initial: Model, make: Any = Trainer
) -> list[Step]:
    """Run a method with `Serial` and with `Cores`."""
    trainer = make(module, population, method.rule, SEED)
    initial = initial or (read_model(module),)
    theirs = list(train(method, Serial(trainer), init(method, *initial)))
    with Cores(trainer, workers, BYTES) as cores:
        ours = list(train(method, cores, init(method, *initial)))
    assert_same_steps(ours, theirs)
    return ours


def clusters_of(labels: Sequence[int]) -> Clustering:
    return Clustering(np.array(labels), max(labels) + 1)


def far_starts(count: int) -> list[Model]:
    models = [read_model(linear_module(seed=s)) for s in range(count)]
    return [{name: 3 * tensor for name, tensor in model.items()} for model in models]


@WORKERS
def test_fedcluster(workers: int) -> None:
    method = fedcluster(POPULATION, clusters_of([0, 1, 0, 1, 0, 1, 1]), RULE, rounds=2, fraction=1.0, seed=SEED)
    compare(method, linear_module(), POPULATION, workers)


@WORKERS
def test_clients_that_choose_their_cluster_and_moments_that_travel(workers: int) -> None:
    method = cfl_mgd(POPULATION, replace(RULE, optimizer=sgd), 3, 3, fraction=1.0, seed=SEED)
    steps = compare(method, linear_module(), POPULATION, workers, *far_starts(3))
    assert any("@" in name for name in steps[-1].state.starts[0])
    assert len(np.unique([step.clusters for step in steps])) > 1


def test_gradients_shared_layers_and_resampling() -> None:
    rule = LocalRule(sgd, lr=0.05, steps=1, batch_size=4, resample_parts=4, proximal=0.1, lr_decay=0.9)
    method = ifca(POPULATION, rule, 2, 2, "gradients", fraction=1.0, seed=SEED)
    compare(method, linear_module(), POPULATION, 2, *far_starts(2))


@pytest.mark.more
@WORKERS
@pytest.mark.parametrize("pattern", thinned(["censyn", "cenasy", "decasy"], 1))
def test_events_that_train_together(pattern: Any, workers: int) -> None:
    rng = generator(0, "network")
    links = Network(
        compute_seconds=rng.uniform(0.2, 2, 7),
        upload_seconds=rng.uniform(0.1, 1, (7, 4)),
        transfer_seconds=rng.uniform(0.1, 1, 4),
        exchange_seconds=np.ones((4, 4)) - np.eye(4),
        neighbours=((1, 3), (0, 2), (1, 3), (0, 2)),
    )
    method = hierarchical(POPULATION, clusters_of([0, 1, 2, 3, 1, 0, 3]), links, RULE, 8 * 2 * 3, pattern, 2)
    if pattern != "censyn":
        assert max(len(method.schedule.ready(done)) for done in range(8)) > 1
    compare(method, linear_module(), POPULATION, workers)


def test_buffers_counters_dropout_and_single_precision() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 33), nn.BatchNorm1d(33), nn.Dropout(0.5), nn.Linear(33, 3))
    population = classification()
    method = fedavg(population, LocalRule(adam, lr=0.01, steps=2, batch_size=4), 2, 1.0, seed=SEED)
    steps = compare(method, module, population, 2)
    assert steps[-1].state.starts[0]["1.num_batches_tracked"].item() == 2 * 2  # two steps of two events


def test_no_client_finds_what_another_left_in_a_buffer_that_is_no_part_of_the_model() -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), Tallying(), nn.Linear(5, 3))

    population, start = classification(clients=3), read_model(made())
    tasks = [ClientTask(0, 0, 0, 0, client, start) for client in (0, 1)]
    apart = [Trainer(made(), population, RULE, SEED).train(task) for task in tasks]
    trainer = Trainer(made(), population, RULE, SEED)
    for task, alone in zip(tasks, apart, strict=True):
        assert_same(trainer.train(task).model, alone.model)
    compare(fedavg(population, RULE, 2, 1.0, seed=SEED), made(), population, 2)


def test_losses_do_not_depend_on_buffers_that_a_client_left() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), Tallying(), nn.Linear(5, 3))
    population, models = classification(clients=3), [read_model(module)]
    trainer, everyone, rows = Trainer(module, population, RULE, SEED), np.arange(3), np.arange(5, dtype=np.int32)
    before = trainer.losses(models, everyone, 0), trainer.sample_losses(models, rows)
    trainer.train(ClientTask(0, 0, 0, 0, 1, models[0]))
    np.testing.assert_array_equal(trainer.losses(models, everyone, 0), before[0])
    trainer.train(ClientTask(0, 0, 0, 0, 1, models[0]))
    np.testing.assert_array_equal(trainer.sample_losses(models, rows), before[1])


@WORKERS
def test_losses_in_batches_across_clients_and_more_models_than_slots(workers: int) -> None:
    population = classification(clients=7, samples=300)  # 1506 samples of five clients: two batches
    trainer = Trainer(network(hidden=37).float(), population, RULE, SEED)
    models = [read_model(network(hidden=37, seed=s).float()) for s in range(15)]
    clients = np.array([6, 0, 3, 1, 2])
    with Cores(trainer, workers, BYTES) as cores:
        found = cores.losses(models, clients, 0)
    expected = trainer.losses(models, clients, 0)
    assert found.shape == (5, 15)
    assert found.tobytes() == expected.tobytes()
    with Cores(trainer, workers, BYTES) as cores:
        assert cores.losses(models[:1], clients, 0).tobytes() == trainer.losses(models[:1], clients, 0).tobytes()


@WORKERS
def test_whole_cohorts_in_one_weighted_pass(workers: int) -> None:
    population = classification(clients=7)
    trainer = Trainer(network(), population, LocalRule(sgd, lr=0.3, steps=1, batch_size=4), SEED)
    starts = [read_model(network(seed=s)) for s in range(5)]
    cohorts = [cohort_of(start, [c, 6, 5][: 1 + c % 3], event=c) for c, start in enumerate(starts)]
    weighted = Weighted(trainer)
    with Cores(trainer, workers, BYTES, weighted) as cores:
        for ours, theirs in zip(
            cores.train(cohorts, average_models), weighted.train(cohorts, average_models), strict=True
        ):
            assert_same(ours.model, theirs.model)
            assert ours.loss == theirs.loss
        through = [replace(each, repeats=1 + 3 * i % 5) for i, each in enumerate(cohorts)]
        assert cores.carries_through(average_models)
        assert not cores.carries_through(average_gradients)
        for ours, theirs in zip(
            cores.train(through, average_models), weighted.train(through, average_models), strict=True
        ):
            assert_same(ours.model, theirs.model)
            assert ours.loss == theirs.loss
        for ours, theirs in zip(
            cores.train(cohorts, average_gradients), Serial(trainer).train(cohorts, average_gradients), strict=True
        ):
            assert_same(ours.model, theirs.model)


@pytest.mark.parametrize("workers", thinned([1, 2], 1))
@pytest.mark.parametrize("change", thinned([{"batch_size": "full"}, {"epochs": 1.0}]))
def test_the_last_clients_are_trained_by_falling_cost_to_the_same_bits(workers: int, change: dict[str, Any]) -> None:
    sizes = np.random.default_rng(0).permutation(np.arange(1, 24))
    samples = np.split(np.arange(sizes.sum()) % len(POPULATION.data), np.cumsum(sizes)[:-1])
    trainer = Trainer(linear_module(), make_population(POPULATION.data, samples), replace(RULE, **change), SEED)
    cohorts = [cohort_of(start, range(23), event) for event, start in enumerate(far_starts(2))]
    with Cores(trainer, workers, BYTES) as cores:
        units = [unit for cohort in cohorts for unit in cut(cohort, 1)]
        order, last = cores._order(units, cores._ahead), 46 - (2 * workers + 4)
        assert order[:last] == list(range(last))
        assert [sizes[units[i].clients[0]] for i in order[last:]] == sorted(sizes[last - 23 :], reverse=True)
        expected = Serial(trainer).train(cohorts, average_models)
        for ours, theirs in zip(cores.train(cohorts, average_models), expected, strict=True):
            assert_same(ours.model, theirs.model)
            assert ours.loss == theirs.loss


@pytest.mark.more
def test_workers_end_together_though_the_last_client_is_by_far_the_largest() -> None:
    def work(samples: int) -> Callable[[], None]:
        return lambda: time.sleep(0.03 * samples)

    sizes = [3, 3, 3, 3, 3, 3, 18]  # in order two workers take 0.81 s, with the largest first 0.54 s
    samples = np.split(np.arange(36) % len(POPULATION.data), np.cumsum(sizes)[:-1])
    population = make_population(POPULATION.data, samples)
    trainer = Troubled({k: work(size) for k, size in enumerate(sizes)}, population)
    trainer.rule = replace(RULE, batch_size="full")
    taken = []
    with Cores(trainer, 2, BYTES) as cores:
        for _ in range(3):
            began = time.perf_counter()
            cores.train([cohort_of(far_starts(1)[0], range(7))], average_models)
            taken.append(time.perf_counter() - began)
    assert min(taken) < 0.75


def test_results_do_not_share_memory_with_later_ones() -> None:
    def last(models: Any, start: Model, cohort_weight: float) -> Model:
        return [model for _, model in models][-1]

    trainer = Trainer(linear_module(), POPULATION, RULE, SEED)
    first, second = (cohort_of(far_starts(2)[i], [i, 2], event=i) for i in range(2))
    with Cores(trainer, 2, BYTES) as cores:
        kept = cores.train([first], last)[0].model
        before = {name: tensor.clone() for name, tensor in kept.items()}
        cores.train([second] * 10, last)
    assert_same(kept, before)


def test_clients_that_workers_train_alone_are_not_carried_through() -> None:
    with Cores(Trainer(linear_module(), POPULATION, RULE, SEED), 1, BYTES) as cores:
        assert not cores.carries_through(average_models)


def test_a_run_goes_on_from_a_state_to_the_same_bits() -> None:
    method = cfl_mgd(POPULATION, replace(RULE, optimizer=sgd), 4, 2, fraction=1.0, seed=SEED)
    trainer = Trainer(linear_module(), POPULATION, method.rule, SEED)
    whole = list(train(method, Serial(trainer), init(method, *far_starts(2))))
    with Cores(trainer, 2, BYTES) as cores:
        steps = train(method, cores, init(method, *far_starts(2)))
        next(steps)
        halfway: State = next(steps).state
    with Cores(trainer, 3, BYTES) as cores:
        assert_same_steps(list(train(method, cores, halfway)), whole[2:])


def cohort_of(start: Model, clients: Sequence[int], event: int = 3) -> Cohort:
    weights = np.arange(1.0, len(clients) + 1)
    return Cohort(event, event, 0, 1, np.array(clients), weights, float(weights.sum()), start)


class Troubled(Trainer):
    """Does something else first where a client's number says so."""

    def __init__(self, trouble: dict[int, Callable[[], object]], population: Population = POPULATION) -> None:
        super().__init__(linear_module(), population, RULE, SEED)
        self.trouble = trouble

    def train(self, task: ClientTask) -> ClientUpdate:
        self.trouble.get(task.client, bool)()
        return super().train(task)

    def sample_losses(self, models: Sequence[Model], rows: Rows) -> Floats:
        self.trouble.get(-1, bool)()
        return super().sample_losses(models, rows)


def killed(times: int, notes: Path) -> Callable[[], None]:
    """End the process that calls this, so many times."""

    def kill() -> None:
        with notes.open("a") as file:
            file.write("x")
        if notes.stat().st_size <= times:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def fail() -> None:
    raise ValueError("no such thing")


@WORKERS
def test_a_killed_worker_is_replaced_and_the_bits_are_the_same(workers: int, tmp_path: Path) -> None:
    cohorts = [cohort_of(start, range(7), event) for event, start in enumerate(far_starts(4))]
    expected = Serial(Trainer(linear_module(), POPULATION, RULE, SEED)).train(cohorts, average_models)
    trouble = Troubled({2: killed(1, tmp_path / "2"), 3: killed(RETRIES - 1, tmp_path / "3")})  # in one sum
    with Cores(trouble, workers, BYTES) as cores:
        for ours, theirs in zip(cores.train(cohorts, average_models), expected, strict=True):
            assert_same(ours.model, theirs.model)
            assert ours.loss == theirs.loss


def test_a_worker_killed_while_it_measures(tmp_path: Path) -> None:
    trouble = Troubled({-1: killed(2, tmp_path / "notes")})
    with Cores(trouble, 2, BYTES) as cores:
        found = cores.losses(far_starts(3), np.arange(7), 0)
    assert found.tobytes() == trouble.losses(far_starts(3), np.arange(7), 0).tobytes()


def test_a_worker_killed_while_it_has_nothing_to_do() -> None:
    trainer = Trainer(linear_module(), POPULATION, RULE, SEED)
    cohorts = [cohort_of(far_starts(1)[0], range(7))]
    with Cores(trainer, 2, BYTES) as cores:
        (before,) = cores.train(cohorts, average_models)
        for process in cores.workers.processes:
            os.kill(process.pid or 0, signal.SIGKILL)
        (after,) = cores.train(cohorts, average_models)
    assert_same(after.model, before.model)


def test_a_client_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    message = r"event 3, cluster 1, client 2: training ended its worker process 4 times \(exit code -9\)"
    with Cores(Troubled({2: killed(99, notes)}), 2, BYTES) as cores, pytest.raises(RunError, match=message):
        cores.train([cohort_of(far_starts(1)[0], range(7))], average_models)
    assert notes.stat().st_size == 1 + RETRIES


@pytest.mark.parametrize("workers", thinned([1, 3], 1))
def test_errors_are_those_of_serial_and_name_the_first_client_that_fails(workers: int) -> None:
    def slowly() -> None:
        time.sleep(0.2)
        fail()

    inputs = POPULATION.data.inputs.copy()
    cohorts = [cohort_of(far_starts(1)[0], range(7))]
    troubles: list[dict[int, Callable[[], object]]] = [{1: slowly, 2: fail}, {5: lambda: inputs.fill(np.nan)}]
    for trouble in troubles:
        told = []
        for make in (Serial, lambda trainer: Cores(trainer, workers, BYTES)):
            data = POPULATION.data.__class__(**{**vars(POPULATION.data), "inputs": inputs})
            samples = [POPULATION.samples(k) for k in range(7)]
            executor = make(Troubled(trouble, make_population(data, samples)))
            with pytest.raises(RunError, match=r"event 3, cluster 1, client [15]: training ") as caught:
                executor.train(cohorts, average_models)
            told.append(str(caught.value))
            np.copyto(inputs, POPULATION.data.inputs)
        assert told[0] == told[1]


def test_a_failure_where_no_client_is_at_fault() -> None:
    with (
        Cores(Troubled({-1: fail}), 2, BYTES) as cores,
        pytest.raises(RunError, match=r"clients' samples failed \(ValueError: no such thing\)"),
    ):
        cores.losses(far_starts(2), np.arange(7), 0)


def test_a_model_that_is_larger_than_was_said() -> None:
    module = nn.Sequential(nn.Linear(100_000, 1)).double()
    trainer = Trainer(module, quadratics(width=100_000, clients=1, samples=1), RULE, SEED)
    with Cores(trainer, 1, 8) as cores, pytest.raises(RunError, match="does not fit into the 8 bytes"):
        cores.train([cohort_of(read_model(module), [0])], average_models)
    assert count_bytes(read_model(module)) > 8


class Masked(nn.Module):
    """Leaves values out by a buffer of one byte each, so that a model's bytes are no multiple of 4."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.eye(5, dtype=torch.bool))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.mask.to(inputs.dtype)


def test_a_model_whose_bytes_are_no_multiple_of_a_number() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), Masked(), nn.Linear(5, 3))
    trainer = Trainer(module, classification(clients=3), RULE, SEED)
    start = read_model(module)
    assert count_bytes(start) % 4
    cohort = cohort_of(start, range(3))
    (expected,) = Serial(trainer).train([cohort], average_models)
    with Cores(trainer, 1, count_bytes(start)) as cores:
        (found,) = cores.train([cohort], average_models)
    assert_same(found.model, expected.model)


class Echoing(Trainer):
    """Sends its start model back, and finds every model perfect."""

    def train(self, task: ClientTask) -> ClientUpdate:
        return ClientUpdate(task.start, 0.0)

    def sample_losses(self, models: Sequence[Model], rows: Any) -> Floats:
        return np.zeros((len(rows), len(models)))


@pytest.mark.more
@pytest.mark.timeout(20)
def test_layouts_that_exceed_a_pipe_s_buffer() -> None:
    """Both ends of a pipe would wait for each other if a worker had two requests at a time."""
    start = {f"{number:080}": torch.zeros(1, 1) for number in range(3000)}
    small = far_starts(1)
    with Cores(Echoing(linear_module(), POPULATION, RULE, SEED), 1, count_bytes(start)) as cores:
        (found,) = cores.train([cohort_of(start, range(4))], lambda models, *_: next(iter(models))[1])
        assert_same(found.model, start)
        cores.losses(small, np.arange(7), 0)
        assert cores.workers.at_a_time == 2
        cores.losses([start], np.arange(7), 0)
        assert cores.workers.at_a_time == 1, "with many models, losses exceed it too"


def test_bad_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(linear_module(), POPULATION, RULE, SEED)
    with pytest.raises(InputError, match=r"run.workers = 0: must be at least 1"):
        Cores(trainer, 0, BYTES)
    told = r"run.workers = 2: 16 models of 1.76e\+04 GB do not fit into memory; use fewer, or run.executor = 'serial'"
    with pytest.raises(InputError, match=told):
        Cores(trainer, 2, 1 << 44)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(InputError, match="cannot fork processes; use 'serial'"):
        Cores(trainer, 2, BYTES)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for counts too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def pids_of(executor: Executor) -> list[int]:
    assert isinstance(executor, Cores)
    return [process.pid or 0 for process in executor.workers.processes]


def shared_bytes() -> int:
    """Bytes of this process's unnamed shared memory."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if "/dev/zero" in line]
    return sum(int(high, 16) - int(low, 16) for low, high in spans)


@pytest.mark.more
def test_more_workers_than_clients_and_nothing_is_left() -> None:
    before = shared_bytes()
    cores = Cores(Trainer(linear_module(), POPULATION, RULE, SEED), 50, BYTES)
    cores.train([cohort_of(far_starts(1)[0], range(3))], average_models)
    pids = pids_of(cores)
    assert 1 <= len(pids) <= 3
    assert shared_bytes() > before
    cores.close()
    cores.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)  # no zombie either
    del cores
    assert shared_bytes() == before


@pytest.mark.parametrize(
    ("error", "told"), thinned([(KeyboardInterrupt, KeyboardInterrupt), (ValueError, RunError)], 1)
)
def test_the_workers_are_gone_when_training_is_interrupted(
    error: type[BaseException], told: type[BaseException]
) -> None:
    pids = []

    def interrupted(models: Any, start: Model, cohort_weight: float) -> Model:
        next(models)
        pids.extend(pids_of(cores))
        raise error

    trainer = Trainer(linear_module(), POPULATION, RULE, SEED)
    cohorts = [cohort_of(far_starts(1)[0], range(7))]
    cores = Cores(trainer, 2, BYTES)
    with pytest.raises(told):
        cores.train(cohorts, interrupted)
    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert_same(cores.train(cohorts, average_models)[0].model, Serial(trainer).train(cohorts, average_models)[0].model)
    cores.close()


def train_for_long(pipe: Connection) -> None:
    gc.callbacks.clear()  # Hypothesis has one, and an interrupt that comes within it is lost
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are begun deaf to it
    cores = Cores(Troubled({k: lambda: time.sleep(0.3) for k in (5, 6)}), 3, BYTES)

    def told(models: Any, start: Model, cohort_weight: float) -> Model:
        next(models)
        pipe.send(pids_of(cores))
        return average_models(models, start, cohort_weight)

    try:
        cores.train([cohort_of(far_starts(1)[0], range(7))] * 100, told)
    except KeyboardInterrupt:
        pipe.send("interrupted")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("way", thinned([signal.SIGKILL, signal.SIGINT], 1))
def test_the_workers_end_with_the_process_that_forked_them(way: signal.Signals) -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    parent = fork.Process(target=train_for_long, args=(theirs,))
    parent.start()
    theirs.close()  # so that what the process leaves unsaid is an error here, not a wait
    pids = ours.recv()
    try:
        assert len(pids) >= 2
        if way == signal.SIGINT:  # as from a terminal, to every process
            for pid in pids:
                os.kill(pid, way)
            time.sleep(0.1)
            assert not any(is_gone(pid) for pid in pids)
        os.kill(parent.pid or 0, way)
        parent.join()
        if way == signal.SIGINT:
            while (said := ours.recv()) != "interrupted":
                assert isinstance(said, list)
        until = time.monotonic() + 5
        while not all(is_gone(pid) for pid in pids):
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        for pid in pids:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_worker_has_its_next_request_before_it_answers_but_not_the_last_ones() -> None:
    """Two workers, the second held up by its first request: nobody waits behind it but what it was given early."""
    last_began = multiprocessing.get_context("fork").Event()

    def answer(number: int) -> tuple[int, int]:
        if number == 1:
            last_began.wait(30)
        if number == 7:
            last_began.set()
        return number, os.getpid()

    workers = Workers(2, answer)
    try:
        answers = list(workers.map(range(8), 8, ahead=8))
    finally:
        workers.close()
    assert [number for number, _ in answers] == list(range(8))
    slow = answers[1][1]
    assert [number for number, pid in answers if pid == slow] == [1, 3]


def test_all_that_a_killed_worker_had_is_handed_out_again(tmp_path: Path) -> None:
    first = tmp_path / "killed"

    def answer(number: int) -> int:
        if number == 0 and not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number**2

    workers = Workers(1, answer)
    try:
        assert list(workers.map(range(5), 5, ahead=5)) == [0, 1, 4, 9, 16]
    finally:
        workers.close()


def test_answers_come_in_order_and_requests_are_not_taken_too_early() -> None:
    taken = []

    def requests() -> Iterator[int]:
        for number in range(30):
            taken.append(number)
            yield number

    def answer(number: int) -> int:
        time.sleep(0.01 * (number % 3))
        return number**2

    workers = Workers(3, answer)
    for number, found in enumerate(workers.map(requests(), 30, ahead=5)):
        assert found == number**2
        assert len(taken) <= number + 5
    assert len(taken) == 30
    assert len(workers.processes) == 3
    workers.close()
