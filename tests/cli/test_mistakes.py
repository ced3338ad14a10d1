"""What users do by mistake, and would not notice: warned of, or refused in one sentence."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll as library
from atoll.support.errors import InputError, SettingWarning
from tests.cli.conftest import Command

TABLE = """
rounds = 1
[data]
dataset = "table"
root = "hospital.csv"
target = "ill"
client = "hospital"
partition = "natural"
clients = 4
"""
OWN = """
from torch import nn


class Lookup(nn.Embedding):
    def forward(self, inputs):
        return super().forward(inputs.flatten(1).sum(1).long())


def lookup(shape, classes):
    return Lookup(2000, classes)


def shares(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Softmax(dim=1))


def plain(shape, classes):
    return shares(shape, classes)[:-1]
"""
misspelt: Any = library.fedavg
LINKS = "from,to,up_seconds,down_seconds\nA,server,1,1\nB,server,1,1\n0,A,1,1\n1,A,1,1\n2,B,1,1\n3,B,1,1\n"


@pytest.fixture
def hospital(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        f"{1000 + i},h{i % 4},{rng.integers(20, 70)},{rng.uniform():.2f},{rng.choice(['yes', 'no'])}"
        for i in range(200)
    ]
    (folder / "hospital.csv").write_text("\n".join(["patient_id,hospital,age,dose,ill", *rows]))
    (folder / "h.toml").write_text(TABLE)
    return folder / "h.toml"


def test_inspect_shows_task_inputs_and_clients_and_warns_of_names_of_rows(hospital: Path, atoll: Command) -> None:
    done = atoll("data", "inspect", hospital)
    assert "predicted: one of 2 classes (no, yes); from inputs of 3 (patient_id, age, dose)" in done.succeeded()
    assert " h3 " in done.out
    (told,) = done.err.splitlines()
    assert told.startswith("warning: data.inputs: column 'patient_id' is an input, but has another value in every row")


def test_a_text_among_numbers_is_told(hospital: Path, atoll: Command, folder: Path) -> None:
    place = folder / "hospital.csv"
    head, first, *rest = place.read_text().splitlines()
    rows = [first, *(row.replace(row.split(",")[2], "?", 1) if i == 7 else row for i, row in enumerate(rest))]
    place.write_text("\n".join([head, *rows]))
    words = ("data", "inspect", hospital, "--set", "data.id=patient_id")
    (told,) = atoll(*words).err.splitlines()
    assert told.startswith("warning: data.inputs: column 'age' holds numbers, but also '?', which makes them ")
    assert not atoll(*words, "--set", "data.categorical=['age']").err


def test_a_named_column_is_no_input(hospital: Path, atoll: Command) -> None:
    done = atoll("data", "inspect", hospital, "--set", "data.id=patient_id")
    assert (done.err, "from inputs of 2 (age, dose)" in done.succeeded()) == ("", True)


@pytest.mark.parametrize(("task", "warnings"), [("", 1), ("classes", 0), ("regression", 0)])
def test_whole_numbers_as_classes_are_warned_of(task: str, warnings: int, hospital: Path, atoll: Command) -> None:
    changes = ["--set", "data.target=age", "--set", "data.inputs=dose", "--set", f"data.task={task}"]
    done = atoll("data", "inspect", hospital, *changes)
    done.succeeded()
    assert done.err.count("different whole numbers are taken as") == warnings


def test_a_softmax_in_a_model_is_warned_of(folder: Path, atoll: Command) -> None:
    (folder / "own_softmax.py").write_text(OWN)
    told = "its outputs are shares that sum to 1"
    assert told in atoll("schedule", "tiny.toml", "--set", "model.name=own_softmax:shares").err
    assert told not in atoll("schedule", "tiny.toml", "--set", "model.name=own_softmax:plain").err
    done = atoll("schedule", "tiny.toml", "--set", "model.name=own_softmax:lookup")
    assert done.succeeded()  # though it takes no numbers below 0
    assert told not in done.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; `atoll recipes show quickstart` prints one"),
        ("[[run]]\nlabel = 'a'\n", "[[run]]: unknown, did you mean [[runs]]?"),
        ("[[panel]]\npanel = 'a'\n", "[[panel]]: unknown, did you mean [[panels]]?"),
        ("[[runs]]\nlabel='a'\n[[runs]]\nlabel='a'\n[[runs]]\nlabel='b'\n", "of its own, but 2 have 'a', 'a'"),
    ],
)
def test_a_file_of_another_form_gets_a_sentence(text: str, told: str, folder: Path, atoll: Command) -> None:
    (folder / "x.toml").write_text(text)
    assert told in atoll("run", "x.toml").refused()
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("nested", [False, True])
def test_a_data_set_of_pytorch_is_told_what_reads_it(nested: bool) -> None:
    given = [(np.zeros(3), 0), (np.ones(3), 1)]
    with pytest.raises(InputError, match=r"^data: is 'list', not an atoll\.Dataset; read it with atoll\.from_torch"):
        library.run(data={"dataset": given} if nested else given, rounds=1)


def test_planning_without_links_between_aggregators_says_what_it_assumes(folder: Path) -> None:
    (folder / "links.csv").write_text(LINKS)
    table: dict[str, Any] = {
        "method": {"name": "hierarchical", "pattern": "decasy", "intra_rounds": 1},
        "network": {"file": "links.csv"},
        "data": {"clients": 4},
        "clustering": {"method": "random", "clusters": 2},
    }
    experiment = library.Experiment(library.Settings(rounds=20, **table))
    with pytest.warns(SettingWarning, match="no link between aggregators is given, so decasy assumes"):
        assert experiment.method.schedule


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: library.run("quickstart", olny="FedAvg"), "olny: unknown, did you mean 'only'?"),
        (lambda: library.run(rouns=1), "rouns: unknown, did you mean 'rounds'?"),
        (partial(misspelt, fractoin=1), "fedavg: fractoin is unknown, did you mean 'fraction'?"),
    ],
)
def test_a_misspelt_parameter_gets_the_nearest_name(call: Callable[[], object], told: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(told)}"):
        call()


def test_an_error_of_one_run_among_several_names_the_run(folder: Path, atoll: Command) -> None:
    runs = "[[runs]]\nlabel = 'good'\n[[runs]]\nlabel = 'bad'\nlocal.lr = -1\n"
    (folder / "x.toml").write_text(runs)
    assert atoll("run", "x.toml").refused().startswith("run 'bad': local.lr = -1: must be")
    told = atoll("run", "x.toml", "--set", "local.setps=3").refused()
    assert told.startswith("local.setps: unknown")
