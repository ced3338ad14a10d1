"""The executor `ray` against `Serial` to the bit, and what happens when its workers, nodes or cluster die."""

import importlib.util
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import (
    Clustering,
    Experiment,
    InputError,
    LocalRule,
    Method,
    Population,
    RunError,
    Serial,
    Trainer,
    init,
    make_runs,
    read_model,
    run_events,
    train,
)
from atoll.aggregation.mean import average_models
from atoll.engine.chain import Chain
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.executors.cores.cores_workers import RETRIES
from atoll.executors.distributed import Measuring, Training, TrainingUnit, cut
from atoll.executors.packing import pack, unpack
from atoll.executors.ray.cluster import _require_answer, connect
from atoll.executors.ray.ray_executor import Ray
from atoll.executors.ray.ray_worker import require_same
from atoll.executors.weighted import Weighted
from atoll.experiment import executor_choice as executing
from atoll.local.models import Model
from atoll.local.rule import adam, sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.methods.papers.cfl_mgd import cfl_mgd
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.papers.fedcluster import fedcluster
from atoll.methods.papers.ifca import ifca
from atoll.support.environment import package_versions
from tests.attackers import attacked_by
from tests.clusters import RULE, Trouble, Troubled, nodes
from tests.problems import classification, linear_module, network, quadratics

SEED = 5
POPULATION = quadratics(clients=7)

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")


@pytest.fixture(scope="module", autouse=True)
def _token() -> None:
    """Give all clusters of this process one token: Ray's threads may read it after a cluster's end."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)


def cohort_of(start: Model, clients: Sequence[int], event: int = 3) -> Cohort:
    weights = np.arange(1.0, len(clients) + 1)
    return Cohort(event, event, 0, 1, np.array(clients), weights, float(weights.sum()), start)


def some_cohorts(events: int = 4) -> list[Cohort]:
    return [cohort_of(read_model(linear_module(seed=e)), range(7), e) for e in range(events)]


def expected(cohorts: Sequence[Cohort]) -> list[ClusterUpdate]:
    return Serial(Trainer(linear_module(), POPULATION, RULE, SEED)).train(cohorts, average_models)


def assert_same(ours: Model, theirs: Model) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert tensor.numpy().tobytes() == theirs[name].numpy().tobytes(), name


def assert_same_averages(ours: Sequence[ClusterUpdate], theirs: Sequence[ClusterUpdate]) -> None:
    assert [each.loss for each in ours] == [each.loss for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one.model, other.model)


def compare(method: Method, module: nn.Module, population: Population, *initial: Model, make: Any = Trainer) -> None:
    """Run a method with `Serial` and with `Ray`."""
    trainer = make(module, population, method.rule, SEED)
    initial = initial or (read_model(module),)
    theirs = list(train(method, Serial(trainer), init(method, *initial)))
    with Ray(trainer, 2) as executor:
        assert executor.bits == "serial"
        ours = list(train(method, executor, init(method, *initial)))
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.loss == other.loss
        assert one.clusters.tolist() == other.clusters.tolist()
        for model, same in zip(one.state.starts, other.state.starts, strict=True):
            assert_same(model, same)


def last_checkpoint(folder: Path) -> Path:
    return sorted((folder / "checkpoint").glob("*.safetensors"))[-1]


def children_of(pid: int) -> dict[int, str]:
    """Return the processes that this one has started, with their names."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, rest = (entry / "stat").read_text().partition("(")[2].rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == pid and rest.split()[0] != "Z":
            found[int(entry.name)] = name
    return found


def own_process(name: str) -> int:
    (pid,) = [pid for pid, its in children_of(os.getpid()).items() if name in its]
    return pid


def listening(pids: Sequence[int]) -> set[str]:
    """Return the addresses that these processes accept connections at, as the kernel writes them."""
    inodes = set()
    for pid in pids:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[1].rpartition(":")[0] for line in lines if line[3] == "0A" and line[9] in inodes}


# Without a cluster.


def test_models_are_packed_whatever_their_types_and_shapes() -> None:
    model = {
        "w": torch.randn(5, 4).T,
        "steps": torch.tensor(7),
        "half": torch.randn(3, dtype=torch.bfloat16),
        "none": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
    }
    copy = unpack(pack(model))
    assert list(copy) == list(model)
    for name, tensor in copy.items():
        assert tensor.dtype == model[name].dtype
        assert tensor.shape == model[name].shape
        assert torch.equal(tensor, model[name])
    copy["steps"] += 1
    assert model["steps"] == 7


@pytest.mark.parametrize("attackers", [0, 2])
def test_a_trainer_is_sent_with_the_pool_once_and_in_memory_that_workers_can_share(attackers: int) -> None:
    trainer = attacked_by(Trainer(linear_module(), POPULATION, RULE, SEED), np.arange(attackers), "noise")
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(trainer, protocol=5, buffer_callback=buffers.append)
    pool = POPULATION.data.inputs
    assert sum(len(buffer.raw()) == pool.nbytes for buffer in buffers) == 1
    held: Chain = pickle.loads(content, buffers=buffers)
    assert np.shares_memory(vars(held.trainer)["batches"].inputs.numpy(), pool)


@pytest.mark.parametrize(("clients", "size", "sizes"), [(7, 3, [3, 3, 1]), (2, 8, [2]), (4, 1, [1, 1, 1, 1])])
def test_cohorts_are_cut_in_order(clients: int, size: int, sizes: list[int]) -> None:
    cohort = cohort_of({}, range(clients))
    parts = list(cut(cohort, size))
    assert [len(part.clients) for part in parts] == sizes
    assert np.concatenate([part.clients for part in parts]).tolist() == cohort.clients.tolist()
    assert np.concatenate([part.weights for part in parts]).tolist() == cohort.weights.tolist()


def test_requests_say_what_they_are_about() -> None:
    cohort = cohort_of({}, [4, 2])
    assert str(Training(TrainingUnit(cohort), {})) == "event 3, cluster 1, clients 4, 2: training"
    assert str(Training(TrainingUnit(cohort_of({}, [4])), {})) == "event 3, cluster 1, client 4: training"
    assert str(Training(TrainingUnit(cohort, whole=True), {})) == "event 3, cluster 1: training"
    assert str(Measuring(np.zeros(1, np.int32))) == "measuring the models on the clients' samples"


def test_workers_with_other_packages_are_refused() -> None:
    require_same(package_versions())
    with pytest.raises(RunError, match=r"a worker has torch .*, the run's process 1\.0; all machines need the same"):
        require_same(package_versions() | {"torch": "1.0"})


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"run.executor = 'ray': needs ray; run pip install 'ray"):
        connect(None, 1)


@pytest.mark.parametrize("address", ["auto", "local", "ray://a:1", "host", ":1", "host:", "host:0", "host:70000", ""])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(InputError, match=r"run\.address = '.*': must be host:port"):
        connect(address, None)


@pytest.mark.more
@needs_ray
def test_an_address_where_nothing_listens_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"run\.address = '{address}': does not answer; start the cluster"):
            next(run_events(experiment(address=address), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@needs_ray
@pytest.mark.slow
def test_an_address_that_accepts_but_says_nothing_is_refused_within_15_seconds() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(InputError, match=r"run\.address = .* a(s a| )?.*Ray cluster"):
            connect(f"127.0.0.1:{silent.getsockname()[1]}", None)
        assert time.monotonic() - began < 15


def experiment(**wanted: Any) -> Experiment:
    (settings,) = make_runs(
        {
            "rounds": 4,
            "data": {"clients": 8, "samples": 8},
            "local": {"steps": 2, "batch_size": 4},
            "method": {"name": "fedavg", "fraction": 1.0},
            "run": {"executor": "ray"} | wanted,
        }
    )
    return Experiment(settings)


def test_the_choice_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executing, "count_cores", lambda: 3)
    assert experiment().execution.choice.workers == 3
    assert experiment(workers=2).execution.choice.workers == 2
    assert experiment(address="host:1").execution.choice.workers == 0  # all that the cluster has
    assert str(experiment().execution.choice) == "ray (as run.executor says)"
    with pytest.raises(InputError, match=r"run\.debug = true: .* run\.executor = 'ray' does not"):
        experiment(debug=True).check()


# On a cluster of its own.


@pytest.mark.more
@needs_ray
def test_a_cluster_of_its_own_gives_serials_bits_and_leaves_nothing() -> None:
    """Training, and losses of several models; signals and processes afterwards are as before.

    Workers have the priority of this process: on a busy machine others would not start within a minute.
    """
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], set(children_of(os.getpid()))
    trainer, cohorts = Trainer(linear_module(), POPULATION, RULE, SEED), some_cohorts()
    models = [cohort.start for cohort in cohorts]
    with Ray(trainer, 2) as executor:
        cluster = executor._cluster
        assert cluster is not None
        assert cluster.folder is not None
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before[0]
        assert_same_averages(executor.train(cohorts, average_models), expected(cohorts))
        found = executor.losses(models, np.array([6, 0, 3]), 0)
        started = set(children_of(os.getpid())) - before[1]
        everyone = [*started, *(child for pid in started for child in children_of(pid))]
        assert listening(everyone) == {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, in both notations
        workers = [pid for head in started for pid, name in children_of(head).items() if "Worker" in name]
        assert len(workers) == 2
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in workers} == {os.getpriority(os.PRIO_PROCESS, 0)}
        with pytest.raises(InputError, match="already connected to a Ray cluster"):
            Ray(trainer, 1)
    assert found.tobytes() == trainer.losses(models, np.array([6, 0, 3]), 0).tobytes()
    assert not cluster.folder.exists()
    assert not started & set(children_of(os.getpid()))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before[0]


@needs_ray
@pytest.mark.slow
def test_clients_that_choose_their_cluster_and_moments_that_travel() -> None:
    starts = [{name: 3 * t for name, t in read_model(linear_module(seed=s)).items()} for s in range(3)]
    carrying = replace(RULE, carry_moments=True)
    for method in (
        cfl_mgd(POPULATION, replace(RULE, optimizer=sgd), 3, 3, fraction=1.0, seed=SEED),
        ifca(POPULATION, carrying, 3, 3, fraction=1.0, seed=SEED),
    ):
        compare(method, linear_module(), POPULATION, *starts)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("attack", ["label-flip", "not-finite"])
def test_clients_that_attack_and_drop_out(attack: str) -> None:
    method = {"name": "fedavg", "fraction": 1.0, "combine": "median"}
    faults = {"dropout": 0.2, "tolerate": True, "attackers": 0.25, "attack": attack}
    small = {"rounds": 2, "data": {"clients": 8, "samples": 20}, "local": {"steps": 2, "batch_size": 4}}
    ends = []
    for executor in ("serial", "ray"):
        (settings,) = make_runs(
            small | {"method": method, "faults": faults, "run": {"executor": executor, "workers": 2}}
        )
        experiment = Experiment(settings)
        with closing(experiment.execution.make_executor()) as trains:
            *_, last = train(experiment.method, trains, init(experiment.method, *experiment.training.initial_models()))
        ends.append(last.state)
    assert ends[0].refused == ends[1].refused
    assert bool(ends[0].refused) == (attack == "not-finite")
    assert_same(experiment.method.global_model(ends[1]), experiment.method.global_model(ends[0]))


@needs_ray
@pytest.mark.slow
def test_clients_that_add_noise_and_code_what_they_send() -> None:
    pytest.importorskip("dp_accounting")
    small = {"rounds": 2, "data": {"clients": 8, "samples": 20}, "local": {"steps": 2, "batch_size": 4}}
    private = {"trust": "client", "clip": 0.3, "noise": 2.0}
    ends = []
    for executor in ("serial", "ray"):
        run = {"executor": executor, "workers": 2}
        changes = {"method": {"name": "fedavg"}, "privacy": private, "travel": {"codec": "int8"}, "run": run}
        (settings,) = make_runs(small | changes)
        experiment = Experiment(settings)
        with closing(experiment.execution.make_executor()) as trains:
            *_, last = train(experiment.method, trains, init(experiment.method, *experiment.training.initial_models()))
        ends.append(experiment.method.global_model(last.state))
    assert_same(ends[1], ends[0])


@needs_ray
@pytest.mark.slow
def test_cycles() -> None:
    clustering = Clustering(np.array([0, 1, 0, 1, 0, 1, 1]), 2)
    method = fedcluster(POPULATION, clustering, RULE, rounds=2, fraction=1.0, seed=SEED)
    compare(method, linear_module(), POPULATION)


@needs_ray
@pytest.mark.slow
def test_buffers_counters_dropout_and_single_precision() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 33), nn.BatchNorm1d(33), nn.Dropout(0.5), nn.Linear(33, 3))
    population = classification()
    rule = LocalRule(adam, lr=0.01, steps=2, batch_size=4)
    compare(fedavg(population, rule, 2, 1.0, seed=SEED), module, population)


@needs_ray
@pytest.mark.slow
def test_augmented_batches() -> None:
    rule = LocalRule(sgd, lr=0.1, steps=2, batch_size=4, augment=lambda inputs: inputs + torch.randn_like(inputs))
    compare(fedavg(classification(), rule, 2, 1.0, seed=SEED), network(), classification())


@needs_ray
@pytest.mark.slow
def test_whole_cohorts_in_one_weighted_pass() -> None:
    population = classification(clients=7)
    trainer = Trainer(network(), population, LocalRule(sgd, lr=0.3, steps=1, batch_size=4), SEED)
    cohorts = [cohort_of(read_model(network(seed=s)), [s, 6, 5][: 1 + s % 3], event=s) for s in range(5)]
    with Ray(trainer, 2, whole=True) as executor:
        assert executor.bits == "weighted"
        found = executor.train(cohorts, average_models)
        assert executor.carries_through(average_models)
        through = [replace(each, repeats=1 + s) for s, each in enumerate(cohorts)]
        found += executor.train(through, average_models)
    assert_same_averages(found, Weighted(trainer).train([*cohorts, *through], average_models))


@needs_ray
@pytest.mark.slow
def test_serial_cores_and_ray_may_take_turns_in_a_run(tmp_path: Path) -> None:
    def steps_of(name: str, folder: str, events: int | None) -> None:
        progress = run_events(experiment(executor=name, workers=2), tmp_path / folder, resume=True)
        with closing(progress):
            for each in progress:
                if each.events_done == events:
                    break

    steps_of("serial", "whole", None)
    for name, events in (("cores", 1), ("ray", 3), ("serial", None)):
        steps_of(name, "turns", events)
    first, second = (last_checkpoint(tmp_path / name) for name in ("whole", "turns"))
    assert first.read_bytes() == second.read_bytes()


# Trouble.


@needs_ray
@pytest.mark.slow
def test_killed_workers_are_replaced_and_the_bits_are_the_same(tmp_path: Path) -> None:
    cohorts = some_cohorts()
    trouble = {2: Trouble(tmp_path / "2", "kill"), 3: Trouble(tmp_path / "3", "kill", times=RETRIES - 1)}
    with Ray(Troubled(trouble, POPULATION), 2) as executor:
        assert_same_averages(executor.train(cohorts, average_models), expected(cohorts))
        assert [each.happened for each in trouble.values()] == [1, RETRIES - 1]
        raylet = own_process("raylet")
        idle = [pid for pid, name in children_of(raylet).items() if "Worker" in name]
        assert idle
        for pid in idle:
            os.kill(pid, signal.SIGKILL)
        assert_same_averages(executor.train(cohorts, average_models), expected(cohorts))


@needs_ray
@pytest.mark.slow
def test_a_client_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    trouble = Trouble(tmp_path / "2", "kill", times=99)
    message = r"event 3, cluster 1, client 2: training ended its worker process 4 times \(the last one ended with "
    start = read_model(linear_module())
    with Ray(Troubled({2: trouble}, POPULATION), 2) as executor:
        with pytest.raises(RunError, match=message):
            executor.train([cohort_of(start, range(7))], average_models)
        assert trouble.happened == 1 + RETRIES
        others = [cohort_of(start, [0, 1, 3])]
        assert_same_averages(executor.train(others, average_models), expected(others))


@needs_ray
@pytest.mark.slow
def test_errors_are_those_of_serial(tmp_path: Path) -> None:
    told, cohorts = [], some_cohorts()
    for make in (Serial, partial(Ray, workers=2)):
        executor = make(Troubled({3: Trouble(tmp_path / make.__class__.__name__, "fail")}, POPULATION))
        with closing(executor), pytest.raises(RunError, match="cluster 1, client 3: training failed") as caught:
            executor.train(cohorts, average_models)
        told.append(str(caught.value))
    assert told[0].partition(",")[2] == told[1].partition(",")[2]  # with two workers another event may be first


class Unsendable(Trainer):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(linear_module(), POPULATION, RULE, SEED)
        self.lock = threading.Lock()


@needs_ray
@pytest.mark.slow
def test_a_trainer_that_cannot_be_sent_is_an_error_and_nothing_is_left() -> None:
    before = set(children_of(os.getpid()))
    with pytest.raises(RunError, match=r"cannot be put into the object store \(TypeError: "):
        Ray(Unsendable(), 1)
    assert set(children_of(os.getpid())) == before


def train_for(seconds: float, executor: Ray, cohorts: Sequence[Cohort]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        executor.train(cohorts, average_models)


@needs_ray
@pytest.mark.slow
def test_the_head_of_a_cluster_of_its_own_is_killed() -> None:
    cohorts = some_cohorts(1)
    executor = Ray(Trainer(linear_module(), POPULATION, RULE, SEED), 1)
    with closing(executor):
        executor.train(cohorts, average_models)
        os.kill(own_process("gcs"), signal.SIGKILL)
        with pytest.raises(RunError, match=r"the cluster's head 127\.0\.0\.1:\d+ no longer answers; go on with --r"):
            train_for(30, executor, cohorts)
        executor.close()
        assert_same_averages(executor.train(cohorts, average_models), expected(cohorts))  # on a new one


# On GPUs, which are only said to be there; see `test_gpu.py` for real ones.


class Noting(Trainer):
    """Leaves a file that names the process that trained, and the GPU that it may use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(linear_module(), POPULATION, RULE, SEED)
        self.folder = folder

    def train(self, task: ClientTask) -> ClientUpdate:
        (self.folder / f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}").touch()
        return super().train(task)


@needs_ray
@pytest.mark.slow
def test_two_workers_share_a_gpu_with_the_same_bits(tmp_path: Path) -> None:
    cohorts = some_cohorts(8)
    with nodes(2, gpus=1) as cluster, Ray(Noting(tmp_path), 2, cluster.address, on_gpus=True) as executor:
        assert executor._cluster is not None
        assert executor._cluster.gpus == 0.5
        until = time.monotonic() + 120
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < until
            assert_same_averages(executor.train(cohorts, average_models), expected(cohorts))
    assert {each.name.split()[1] for each in tmp_path.iterdir()} == {"0"}


@needs_ray
@pytest.mark.slow
def test_a_cluster_without_gpus_is_refused() -> None:
    with nodes(1) as cluster:
        for workers in (None, 2):
            with pytest.raises(InputError, match=r"^run\.address = .*: the cluster has no GPUs for workers"):
                connect(cluster.address, workers, on_gpus=True)
    with pytest.raises(RunError, match=r"Ray finds no GPU, but run\.device = 'cuda'"):
        connect(None, 2, on_gpus=True)
    with Ray(Trainer(linear_module(), POPULATION, RULE, SEED), 1):  # what was begun has been ended
        pass


def test_models_return_to_the_kind_of_device_that_they_come_from() -> None:
    ((name, dtype, shape, device, array),) = pack({"w": torch.ones(2)})
    assert device == "cpu"
    there = unpack(((name, dtype, shape, "meta", array),))
    assert there["w"].is_meta


# On a cluster of two nodes.


@needs_ray
@pytest.mark.slow
def test_a_worker_and_then_a_node_are_killed_in_an_event_and_the_bits_are_the_same(tmp_path: Path) -> None:
    cohorts = some_cohorts(8)
    trouble = {1: Trouble(tmp_path / "worker", "kill", node="1"), 2: Trouble(tmp_path / "node", "kill node", node="1")}
    with nodes(1, 1) as cluster, Ray(Troubled(trouble, POPULATION), address=cluster.address) as executor:
        assert executor._cluster is not None
        assert executor._cluster.workers == 2
        until = time.monotonic() + 240
        while not all(each.happened for each in trouble.values()):  # a new worker takes seconds to start
            assert time.monotonic() < until
            assert_same_averages(executor.train(cohorts, average_models), expected(cohorts))
        assert [each.happened for each in trouble.values()] == [1, 1]
        while [node["Alive"] for node in executor._cluster.ray.nodes()].count(True) > 1:  # Ray notices it later
            assert time.monotonic() < until
            time.sleep(0.5)
        assert_same_averages(executor.train(cohorts, average_models), expected(cohorts))


@pytest.fixture
def cluster_of_one_worker() -> Iterator[str]:
    """A cluster whose head has no cores; its other node has one."""
    with nodes(0, 1) as cluster:
        yield cluster.address


@needs_ray
@pytest.mark.slow
def test_no_workers_left_is_an_error_and_the_checkpoint_is_kept(
    cluster_of_one_worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executing, "Ray", partial(Ray, patience=25.0))
    folder, wanted = tmp_path / "run", {"address": cluster_of_one_worker}
    with pytest.raises(RunError, match=r"no workers are left, for 25 s \(.*\); go on with --resume"):
        carry_on_without_workers(experiment(**wanted), folder)
    assert last_checkpoint(folder).exists()
    list(run_events(experiment(executor="serial"), folder, resume=True))
    list(run_events(experiment(executor="serial"), tmp_path / "serial"))
    first, second = last_checkpoint(folder), last_checkpoint(tmp_path / "serial")
    assert first.read_bytes() == second.read_bytes()


def carry_on_without_workers(run_: Experiment, folder: Path) -> None:
    for progress in run_events(run_, folder):
        if progress.events_done == 2:
            kill_workers_node()


def kill_workers_node() -> None:
    """Kill the raylet whose child is training."""
    starters = [pid for pid in children_of(os.getpid()) if b"ray.scripts.scripts" in command_of(pid)]
    raylets = [pid for starter in starters for pid, name in children_of(starter).items() if "raylet" in name]
    (node,) = [pid for pid in raylets if any("Worker" in name for name in children_of(pid).values())]
    os.kill(node, signal.SIGKILL)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@needs_ray
@pytest.mark.slow
def test_a_machine_that_imports_ray_slowly_joins_a_cluster(
    cluster_of_one_worker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(10)\n")  # as Ray's import on a busy machine
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _require_answer(cluster_of_one_worker)


@needs_ray
@pytest.mark.slow
def test_a_wrong_token_is_not_let_in(cluster_of_one_worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    with pytest.raises(InputError, match=r"is not a Ray cluster that admits this process .*RAY_AUTH_TOKEN"):
        connect(cluster_of_one_worker, None)
