"""A run that was killed, as often as you like and wherever, ends with the bits and the rows of one that was not."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from atoll import Experiment, make_runs, run_events
from tests.killing import carry_to_end, count_steps, kill_after, kill_at
from tests.made_runs import timeless
from tests.tiers import thinned

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and /proc to name a descriptor's file")

BASE = {
    "rounds": 4,
    "data": {"clients": 8, "samples": 12, "partition": "dirichlet", "alpha": 1.0},
    "model": {"name": "linear"},
    "local": {"lr": 0.2, "steps": 2, "batch_size": 4},
    "clustering": {"clusters": 3},
    "method": {"fraction": 0.5, "intra_rounds": 2},
    "run": {"executor": "serial", "checkpoint_every": 1, "evaluate_samples": 50},
}
HIERARCHICAL = ("method.name=hierarchical", "rounds=8", "run.evaluate_every=2", "network.bandwidth_hz=1e4")
CLIENT_PROBES = "run.probes=['client_accuracy', 'trained_client_accuracy']"
ROTATED = ("data.partition=rotated", "data.alpha=", "data.rotations=2", "method.clusters=2")
UNEQUAL = ("network.seconds_per_sample=[0.01, 1.0]", "rounds=6")
METHODS = {
    "fedavg": ("method.name=fedavg", "local.optimizer=adam", "local.lr=0.01"),
    "fedcluster": ("method.name=fedcluster", "rounds=2"),
    "faults": (
        *("method.name=fedcluster", "rounds=2", "method.combine=median", "faults.dropout=0.3", "faults.tolerate=true"),
        *("faults.attackers=0.25", "faults.attack=not-finite"),
    ),
    "every minute": ("method.name=fedcluster", "rounds=2", "run.checkpoint_every=", "run.checkpoint_minutes=1e-6"),
    "centralized": ("method.name=centralized", "local.optimizer=momentum"),
    "centralized adam": ("method.name=centralized", "local.optimizer=adam", "local.lr=0.01"),
    "censyn": (*HIERARCHICAL, "method.pattern=censyn"),
    "cenasy": (*HIERARCHICAL, "method.pattern=cenasy", "local.proximal=0.1"),
    "decsyn": (*HIERARCHICAL, "method.pattern=decsyn", "local.steps=1"),
    "decasy": (*HIERARCHICAL, "method.pattern=decasy"),
    "weighted": (*HIERARCHICAL, "method.pattern=cenasy", "local.steps=1", "run.executor=weighted"),
    "stacked": (*HIERARCHICAL, "method.pattern=decasy", "clustering.clusters=4", "run.executor=stacked"),
    "moving": (
        *(*HIERARCHICAL, "method.pattern=decasy", "network.metres_per_round=5.0"),
        *("network.recluster_every=4", "clustering.method=comaw"),
    ),
    "ifca": (*ROTATED, "method.name=ifca", "method.restarts=2", "method.restart_rounds=1"),
    "cfl-mgd models": (*ROTATED, "method.name=cfl-mgd", "method.restarts=2", "method.restart_rounds=1"),
    "cfl-mgd gradients": (*ROTATED, "method.name=cfl-mgd", "method.option=gradients", "local.steps=1"),
    "fedper": ("method.name=fedper", "model.name=mlp", "run.executor=cores", "run.workers=2"),
    "fedrep": ("method.name=fedrep", "model.name=mlp", "data.held_out_clients=2", CLIENT_PROBES),
    "ditto": ("method.name=ditto", CLIENT_PROBES),
    "local": ("method.name=local", CLIENT_PROBES),
    "cfl": (*ROTATED, "method.name=cfl", "method.fraction=", "method.eps1=9", "method.eps2=0"),
    "flhc": (*ROTATED, "method.name=flhc", "method.warmup=1"),
    "fedgroup": (*ROTATED, "method.name=fedgroup", "method.pretrained=2"),
    "fesem": (*ROTATED, "method.name=fesem", "method.fraction="),
    "pacfl": (*ROTATED, "method.name=pacfl"),
    "stocfl": (*ROTATED, "method.name=stocfl"),
    "lcfed": (*ROTATED, "method.name=lcfed", "model.name=mlp"),
    "fedem": (*ROTATED, "method.name=fedem", CLIENT_PROBES),
    "fedrc": (*ROTATED, "method.name=fedrc"),
    "fedsoft": (*ROTATED, "method.name=fedsoft", CLIENT_PROBES),
    "pfedme": ("method.name=pfedme", CLIENT_PROBES),
    "apfl": ("method.name=apfl", CLIENT_PROBES),
    "perfedavg": ("method.name=perfedavg", CLIENT_PROBES),
    "fedamp": (*ROTATED, "method.name=fedamp", "method.fraction=", "method.clusters="),
    "moon": ("method.name=moon", "model.name=mlp", CLIENT_PROBES),
    "fedavgm": ("method.name=fedavgm",),
    "fedadagrad": ("method.name=fedadagrad",),
    "fedadam": ("method.name=fedadam",),
    "fedyogi": ("method.name=fedyogi",),
    "scaffold": ("method.name=scaffold", "method.server_lr=0.7"),
    "fednova": ("method.name=fednova", "local.epochs=0.05", "data.samples="),
    "feddyn": ("method.name=feddyn",),
    "fedasync": (*UNEQUAL, "method.name=fedasync", "method.concurrency=4"),
    "fedbuff": (*UNEQUAL, "method.name=fedbuff", "method.concurrency=4", "method.buffer=2"),
    "fedat": (*UNEQUAL, "method.name=fedat", "method.tiers=3"),
    "hierfavg": (*HIERARCHICAL, "method.name=hierfavg"),
}


@dataclass(frozen=True)
class Whole:
    """A run that nothing interrupted: what made it, its folder, the seconds and the steps on files that it took."""

    experiment: Experiment
    folder: Path
    seconds: float
    steps: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """Return uninterrupted runs by method, each carried out once."""
    made: dict[str, Whole] = {}

    def make(method: str) -> Whole:
        if method not in made:
            experiment = Experiment(make_runs(BASE, changes=METHODS[method])[0])
            experiment.check()
            folder = tmp_path_factory.mktemp("whole")
            began = time.perf_counter()
            carry_to_end(experiment, folder / "run")
            between = time.perf_counter()
            steps = count_steps(experiment, folder / "counted")
            seconds = min(between - began, time.perf_counter() - between)  # one may have stalled
            made[method] = Whole(experiment, folder / "run", seconds, steps)
        return made[method]

    return make


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows without the wall-clock time, the one value that may differ; each must be whole."""
    text = (folder / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [timeless(line) for line in text.splitlines()]


def assert_same(folder: Path, whole: Path) -> None:
    """Compare rows, models and what else the folders hold."""
    assert rows(folder) == rows(whole)
    first, second = (max((each / "checkpoint").glob("*.safetensors")) for each in (folder, whole))
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    assert load_file(first).keys(), "there is something to compare"
    assert first.with_suffix(".json").read_bytes() == second.with_suffix(".json").read_bytes()
    told = [json.loads((each / "summary.json").read_bytes()) for each in (folder, whole)]
    for each in told:
        each["final"].pop("wall_time")
    assert told[0] == told[1]
    names = [sorted(path.name for path in each.iterdir()) for each in (folder, whole)]
    assert names[0] == names[1], "nothing is left of what was killed"
    assert len(list((folder / "checkpoint").iterdir())) <= 4


def kill_often(whole: Whole, folder: Path, times: int, rng: np.random.Generator, by_clock: bool = False) -> int:
    """Kill a run at most so often, go on to its end, and compare; return how often it was killed."""
    killed = 0
    for _ in range(times):
        if by_clock:
            killed += kill_after(whole.experiment, folder, rng.uniform(0, whole.seconds))
        else:
            killed += kill_at(whole.experiment, folder, int(rng.integers(whole.steps)), rng.uniform(0, 1))
    carry_to_end(whole.experiment, folder)
    assert_same(folder, whole.folder)
    return killed


@pytest.mark.parametrize("method", thinned(METHODS, ("faults", "cenasy")))
def test_a_run_that_was_killed_where_it_writes(whole: Callable[[str], Whole], tmp_path: Path, method: str) -> None:
    """One kill somewhere, drawn for each method; the next tests kill everywhere."""
    rng = np.random.default_rng(list(METHODS).index(method))
    each = whole(method)
    assert kill_often(each, tmp_path / "run", 1, rng) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("by_clock", [False, True], ids=["where it writes", "at a random moment"])
def test_a_run_that_was_killed_again_and_again(
    whole: Callable[[str], Whole], tmp_path: Path, method: str, by_clock: bool
) -> None:
    """Each method is killed three times or more, in two ways: more than 250 kills in all."""
    rng = np.random.default_rng([list(METHODS).index(method), by_clock])
    each, killed, folders = whole(method), 0, (tmp_path / f"run{i}" for i in range(30))
    while killed < 3:
        killed += kill_often(each, next(folders), 3, rng, by_clock)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedcluster", "stacked", "cfl-mgd models"])
def test_a_run_that_was_killed_at_each_step_on_a_file(
    whole: Callable[[str], Whole], tmp_path: Path, method: str
) -> None:
    each = whole(method)
    for number in range(each.steps):
        folder = tmp_path / f"run{number}"
        assert kill_at(each.experiment, folder, number, kept=0.5)
        carry_to_end(each.experiment, folder)
        assert_same(folder, each.folder)


@pytest.mark.parametrize("method", thinned(["cenasy", "stacked", "fedcluster", "moving"], 1))
def test_a_run_that_was_stopped_after_each_event(whole: Callable[[str], Whole], tmp_path: Path, method: str) -> None:
    """Also where other events that were trained together with it are still to be merged."""
    each = whole(method)
    schedule = each.experiment.method.schedule
    unsettled = 0
    for stop in range(len(schedule)):
        folder = tmp_path / f"run{stop}"
        for progress in run_events(each.experiment, folder):
            unsettled += not progress.is_settled
            if progress.events_done == stop:
                break
        carry_to_end(each.experiment, folder)
        assert_same(folder, each.folder)
    assert (unsettled > 0) == (method != "fedcluster")
