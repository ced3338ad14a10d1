"""Every method of the table, every selection and every codec, on every executor, killed once: the bits of `serial`.

A method, selection or codec that is added to its table is tested here without being named. Its settings are defaults
but for those in `SMALLER`; `NEEDS` holds what a method asks of the other sections.
"""

import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atoll import Experiment, InputError, make_runs
from atoll.codecs.named_codecs import CODECS
from atoll.local.task import ClientTask
from atoll.methods.named_methods import METHODS
from atoll.methods.parts.kind import kind_of
from atoll.methods.selection import SELECTIONS
from atoll.settings.signatures import parameters_of
from tests.clusters import nodes
from tests.killing import carry_to_end, count_steps, fork, kill_at, void, wait_for
from tests.made_runs import timeless
from tests.methods.running import equal
from tests.tiers import thinned

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and /proc to name a descriptor's file")

BASE = {
    "rounds": 8,
    "data": {"clients": 8, "samples": 12, "partition": "rotated", "rotations": 2},
    "model": {"name": "linear"},
    "local": {"lr": 0.2, "steps": 2, "batch_size": 4},
    "network": {"seconds_per_sample": [0.01, 1.0], "bandwidth_hz": 1e4},
    "run": {"checkpoint_every": 1, "evaluate_every": 4, "evaluate_samples": 20},
}
SMALLER = {"fraction": 0.5, "clusters": 2, "intra_rounds": 2, "concurrency": 4, "buffer": 2, "tiers": 3}
SMALLER |= {"select_tiers": 2, "candidates": 6, "warmup": 1, "pretrained": 3}
NEEDS = {
    "hierarchical": ("clustering.clusters=2",),
    "hierfavg": ("clustering.clusters=2",),
    "fedcluster": ("clustering.clusters=2", "rounds=4"),
    "fednova": ("local.epochs=0.05", "data.partition=dirichlet", "data.rotations=", "data.samples="),  # unequal clients
    "fedbn": ("model.name=tests.problems:normalised",),
    "fedper": ("model.name=mlp",),
    "fedrep": ("model.name=mlp",),
    "lcfed": ("model.name=mlp",),
    "moon": ("model.name=mlp",),
}

ON = {
    "serial": ("run.executor=serial",),
    "cores": ("run.executor=cores", "run.workers=2"),
    "ray": ("run.executor=ray", "run.workers=2"),
    "stacked": ("run.executor=stacked",),
    "weighted": ("run.executor=weighted", "local.steps=1"),
}

METHOD_CASES = {name: (f"method.name={name}",) for name in METHODS}
SELECTION_CASES = {f"select {name}": ("method.name=fedavg", f"method.select={name}") for name in SELECTIONS}
CODEC_CASES = {
    f"codec {name}": ("method.name=fedcluster", f"travel.codec={name}", *NEEDS["fedcluster"])
    for name in CODECS
    if name != "none"
}
CASES = METHOD_CASES | SELECTION_CASES | CODEC_CASES


def experiment(case: str, *changes: str) -> Experiment:
    """Return a small experiment of this method, or with this selection."""
    functions = list(kind_of(METHODS.get(case, METHODS["fedavg"])).parts)
    functions += [SELECTIONS[case.removeprefix("select ")]] if case in SELECTION_CASES else []
    taken = {name for function in functions for name in parameters_of(function)}
    smaller = [f"method.{name}={value}" for name, value in SMALLER.items() if name in taken]
    return Experiment(make_runs(BASE, changes=[*CASES[case], *smaller, *NEEDS.get(case, ()), *changes])[0])


@pytest.mark.parametrize("case", thinned(METHOD_CASES))
def test_a_run_trains_a_client_at_most_once_a_round(case: str) -> None:
    """So a fleet's node may limit the trainings of a run that it knows the rounds of."""
    made = experiment(case)
    counts = np.zeros(made.settings.data.clients, np.int64)
    for event in made.method.schedule.events:
        np.add.at(counts, event.cohort, event.intra_rounds)
    assert 0 < counts.max() <= made.settings.rounds


@pytest.mark.parametrize("case", [case for case in METHOD_CASES if case != "feddrift"])  # whose clients recall data
def test_clients_train_on_the_data_that_they_hold_in_the_round_or_drift_is_refused(case: str) -> None:
    made = experiment(case, "drift.kind=partition", "drift.rounds=[2]", "rounds=4")
    if kind_of(METHODS[case]).fixed_data:
        assert kind_of(METHODS[case]).fixed_data in refusal(made)
        return
    task = ClientTask(event=2, round=2, repeat=0, cluster=0, client=0, start=made.training.start())
    changing, as_then, before = (each.training.trainer() for each in (made, made.at(2), made.at(0)))
    for _ in range(2):  # the first time some only set up their state
        found, expected, other = (trainer.train(task) for trainer in (changing, as_then, before))
        assert equal(found.model, expected.model)
        assert equal(found.state or {}, expected.state or {})
        assert not equal(found.model, other.model) or not equal(found.state or {}, other.state or {})
        task = replace(task, start=found.model, state=found.state)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, int]]:
    """Return the folder of an uninterrupted run and its steps on files, each carried out once."""
    made: dict[tuple[str, str], tuple[Path, int]] = {}

    def make(case: str, executor: str) -> tuple[Path, int]:
        if (case, executor) not in made:
            folder = tmp_path_factory.mktemp("whole") / "run"
            made[case, executor] = folder, count_steps(experiment(case, *ON[executor]), folder)
        return made[case, executor]

    return make


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Return the address of a Ray cluster, which outlives the runs that are killed."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the package ray is not installed")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with nodes(2) as started:
        yield started.address


def in_a_child(made: Experiment, folder: Path) -> None:
    """Go on with a run in a process of its own."""
    assert wait_for(fork(lambda: void(carry_to_end(made, folder)))) == 0


def kill_once_and_compare(
    case: str,
    made: Experiment,
    folder: Path,
    whole: tuple[Path, int],
    go_on: Callable[[Experiment, Path], object] = carry_to_end,
) -> None:
    """Kill a run, a child process, where it writes, go on, and compare it with the whole one."""
    made.check()
    expected, steps = whole
    rng = np.random.default_rng(zlib.crc32(case.encode()))
    assert kill_at(made, folder, int(rng.integers(steps)), rng.uniform(0, 1))
    go_on(made, folder)
    assert rows(folder) == rows(expected)
    ours, theirs = (max((each / "checkpoint").glob("*.safetensors")) for each in (folder, expected))
    assert ours.name == theirs.name
    assert ours.read_bytes() == theirs.read_bytes()


def refusal(made: Experiment) -> str:
    """Return why it cannot be carried out; an empty text if it can."""
    try:
        made.check()
    except InputError as error:
        return str(error)
    return ""


def rows(folder: Path) -> str:
    return "".join(str(timeless(line)) for line in (folder / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize("case", thinned(CASES, (*METHODS, "select tiers", "codec int8")))
def test_workers_killed_once_give_the_bits_of_serial(
    whole: Callable[[str, str], tuple[Path, int]], tmp_path: Path, case: str
) -> None:
    made = experiment(case, *ON["cores"])
    kill_once_and_compare(case, made, tmp_path / "run", whole(case, "serial"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_workers_of_ray_killed_once_give_the_bits_of_serial(
    whole: Callable[[str, str], tuple[Path, int]], cluster: str, tmp_path: Path, case: str
) -> None:
    made = experiment(case, *ON["ray"], f"run.address={cluster}")
    kill_once_and_compare(case, made, tmp_path / "run", whole(case, "serial"), in_a_child)


UNCODED = {
    "fedsoft": "updates are already encoded by then",
    "centralized": "whose one client holds all data",
    "local": "clients send nothing",
    **dict.fromkeys(
        ("cfl", "feddrift", "flhc", "fedgroup", "fesem", "stocfl", "lcfed", "fedamp"),
        "clusters are found from what clients train",
    ),
}


@pytest.mark.parametrize("case", METHODS)
def test_clients_of_every_method_code_their_updates_or_have_none(case: str) -> None:
    made = experiment(case, "travel.codec=int8")
    if case in UNCODED:
        assert UNCODED[case] in refusal(made)
        return
    made.check()
    assert 0.25 * made.traffic.message_bytes <= made.traffic.update_bytes <= 0.3 * made.traffic.message_bytes
    assert made.method.keeps_state


@pytest.mark.parametrize("case", thinned(CASES, ("scaffold",)))
@pytest.mark.parametrize("executor", ["stacked", "weighted"])
def test_one_batch_of_many_clients_killed_once_gives_its_own_bits_or_is_refused(
    whole: Callable[[str, str], tuple[Path, int]], tmp_path: Path, case: str, executor: str
) -> None:
    made = experiment(case, *ON[executor])
    if refused := refusal(made):
        assert re.match(rf"run\.executor = '{executor}': .*; use 'serial' or 'auto'$|method\..* local steps", refused)
    else:
        kill_once_and_compare(case, made, tmp_path / "run", whole(case, executor))
