"""The built-in recipes: each is valid and makes its schedule at every scale; the smallest runs to its end.

Recipes on MNIST or CIFAR-10 need their files: set ATOLL_DATA to a folder that holds them, or their tests are skipped.
"""

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.data.datasets import BUILT_IN, find
from atoll.data.tabular.packaged import PACKAGED
from atoll.experiment.clients import Clients
from atoll.experiment.experiment import Experiment
from atoll.runs.run_folders import name_folders
from atoll.settings.experiment_file import overlay, read_experiment, recipe_names, resolved
from atoll.settings.validation import validate
from tests.cli.conftest import Command
from tests.tiers import thinned

ROOT = os.environ.get("ATOLL_DATA")


def scales_of(table: dict[str, Any]) -> list[str]:
    layers = (table, *table.get("panels", []), *table.get("runs", []))
    return sorted({"paper", *(name for layer in layers for name in layer.get("scales", {}))})


CHEAP = {"initial_gap": 2.3, "xi": "shares", "refine": False}  # no schedule needs better
CASES = [(name, scale) for name in recipe_names() for scale in scales_of(read_experiment(name))]
FIRST = [case for case in CASES if case[1] == "tiny" and case[0] not in ("feduc-table-6", "baselines", "codecs")][::5]


@pytest.mark.parametrize(("name", "scale"), thinned(CASES, FIRST))
def test_settings_are_valid(name: str, scale: str) -> None:
    table = read_experiment(name)
    runs = [Experiment(settings) for settings in atoll.make_runs(table, scale)]
    assert table["name"] == name
    assert table["description"]
    assert len(set(name_folders(runs))) == len(runs)  # every run has a folder of its own
    panels = {run.settings.panel for run in runs}
    assert len(panels) == len(table.get("panels", [1]))


@pytest.mark.parametrize(("name", "scale"), thinned(CASES, FIRST))
def test_schedules_are_made(name: str, scale: str) -> None:
    for made in atoll.make_runs(read_experiment(name), scale):
        if made.seed:  # as that of seed 0
            continue
        cheap = {key: value for key, value in CHEAP.items() if key in dict(made.clustering)}
        settings = validate(overlay(resolved(made), {"clustering": cheap}))
        if settings.data.dataset == "table":
            pytest.skip("needs its table; tests/cli/test_flights.py makes one")
        if settings.data.dataset == "packaged" and find_spec(PACKAGED[settings.data.get("table")].package) is None:
            pytest.skip("needs a package with its table")
        require_files(settings.data.dataset)
        schedule = experiment(settings).method.schedule
        assert schedule.rounds_done(len(schedule)) == schedule.rounds
        if settings.run.virtual_seconds is None:
            assert schedule.rounds == settings.rounds
        else:
            assert schedule.rounds < settings.rounds
            assert 0.9 * settings.run.virtual_seconds < schedule.events[-1].seconds <= settings.run.virtual_seconds


def require_files(dataset: str) -> None:
    if dataset in (*BUILT_IN, "packaged") or ":" in dataset:
        return
    if not ROOT or find(dataset, ROOT) is None:
        pytest.skip(f"needs {dataset} files: set ATOLL_DATA to a folder that holds them")


def experiment(settings: atoll.Settings) -> Experiment:
    """Return the experiment with its clients and its clustering, which runs share that differ in nothing they need."""
    clients = next((each for each in dealt if each.serve(settings)), Clients(settings))
    if clients not in dealt:
        dealt.append(clients)
    made = Experiment(settings, clients=clients)
    key = settings.model_dump_json(exclude={"name", "description", "panel", "label", "rounds", "run"})
    clusterings[key] = clusterings.get(key) or made.clustering
    return replace(made, fixed_clustering=clusterings[key])


dealt: list[Clients] = []
clusterings: dict[str, atoll.Clustering] = {}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.more
def test_the_regression_recipe_finds_the_planted_parameters(atoll: Command, folder: Path) -> None:
    atoll("run", "cfl-mgd-regression", "--scale", "small", "--out", "out").succeeded()
    runs = [rows_of(folder / "out" / name) for name in ("cfl-mgd-beta-0.9", "cfl-mgd-beta-0.5", "ifca")]
    for rows in runs:
        assert len(rows) == 61
        assert rows[-1]["ari"] == 1
        assert rows[-1]["parameter_error"] < 0.1
    _, half, plain = ([row["parameter_error"] for row in rows] for rows in runs)
    target = 2 * plain[-1]
    assert np.argmax(np.array(half) <= target) < np.argmax(np.array(plain) <= target)


# Bad input of methods whose clients find their cluster

FOUND = """
name = "found"
rounds = 2

[data]
dataset = "regression"
partition = "planted"
clients = 6
samples = 12
groups = 2
width = 4

[model]
name = "linear"
bias = false

[local]
steps = 2
batch_size = 4

[method]
name = "cfl-mgd"
clusters = 2
fraction = 1.0
"""

REFUSED = [
    (["method.clusters=0"], ["method.clusters = 0", "at least 1"]),
    (["method.clusters=-3"], ["method.clusters = -3", "at least 1"]),
    (["method.beta=1"], ["method.beta = 1", "at least 0 and less than 1"]),
    (["method.beta=-0.1"], ["method.beta = -0.1", "at least 0 and less than 1"]),
    (["method.beta=nan"], ["method.beta = nan", "at least 0 and less than 1"]),
    (["method.option=both"], ["method.option = 'both'", "'models' or 'gradients'"]),
    (["method.option=gradients"], ["local.steps = 2", "must be 1", "gradients"]),
    (["method.restarts=0"], ["method.restarts = 0", "at least 1"]),
    (["method.resample=true", "rounds=7"], ["method.resample = true", "12 samples", "2 x rounds = 14"]),
    (["local.optimizer=adam"], ["local.optimizer = Adam", "must be 'sgd'", "method.beta", "'ifca'"]),
    (["local.optimizer=momentum"], ["local.optimizer = SGD with momentum", "must be 'sgd'"]),
    (["method.shared_layers=1"], ["method.shared_layers = 1", "1 layer"]),
    (["method.shared_layers=-1"], ["method.shared_layers = -1", "at least 0"]),
    (["data.rotations=4"], ["data.rotations = 4", "square images", "[4]"]),
    (["data.rotations=3"], ["data.rotations = 3", "1 or 2 or 4"]),
    (["data.groups=5"], ["data.groups = 5", "width = 4"]),
    (["data.groups=0"], ["data.groups = 0", "at least 1"]),
    (["data.noise=-1"], ["noise = -1"]),
    (["data.widht=5"], ["widht", "width"]),
    (["run.heterogeneity=true"], ["run.heterogeneity = true", "'cfl-mgd'"]),
]


@pytest.fixture
def found(folder: Path) -> str:
    (folder / "found.toml").write_text(FOUND)
    return "found.toml"


@pytest.mark.parametrize(("changes", "told"), REFUSED, ids=[" ".join(changes) for changes, _ in REFUSED])
def test_refused(atoll: Command, folder: Path, found: str, changes: list[str], told: list[str]) -> None:
    sentence = atoll("run", found, *(word for change in changes for word in ("--set", change))).refused()
    for words in told:
        assert words in sentence
    assert not (folder / "runs").exists()


def test_rotations_of_images_that_are_not_square(atoll: Command, folder: Path) -> None:
    (folder / "wide.py").write_text(
        "import atoll, numpy as np\n"
        "def images():\n"
        "    x, y = np.zeros((20, 1, 4, 6), np.float32), np.arange(20) % 2\n"
        "    return atoll.Dataset('wide', x, y, x, y, classes=2)\n"
    )
    changes = ["data.dataset=wide:images", "data.partition=rotated", "data.samples="]
    sentence = atoll("run", "tiny.toml", *(word for change in changes for word in ("--set", change))).refused()
    assert "data.rotations = 4" in sentence
    assert "[1, 4, 6]" in sentence


def test_all_clients_in_one_cluster_from_the_start_warns_once(atoll: Command, folder: Path, found: str) -> None:
    (folder / "same.py").write_text(
        "import torch\n"
        "def start(shape, classes, bias):\n"
        "    layer = torch.nn.Linear(4, 1, bias=bias)\n"
        "    torch.nn.init.zeros_(layer.weight)\n"  # equal models: ties go to cluster 0
        "    return layer\n"
    )
    done = atoll("run", found, "--set", "model.name=same:start")
    done.succeeded()
    assert done.err.count("warning: ") == 1
    assert "at the start all clients choose cluster 0 of 2" in done.err
    assert "method.restarts" in done.err
    summary = json.loads((folder / "runs/found/summary.json").read_text())
    assert summary["clusters_nobody_chooses"] == [
        c for c, count in enumerate(summary["final"]["cluster_clients"]) if not count
    ]


TURNED = ["method.name=cfl-mgd", "data.partition=rotated", "data.clients=8"]
COMBINATIONS = [
    ("found.toml", ["local.proximal=0.1"]),
    ("found.toml", ["method.name=ifca", "local.proximal=0.1"]),
    ("found.toml", ["method.name=ifca", "local.optimizer=adam"]),
    ("found.toml", ["method.name=ifca", "local.optimizer=momentum"]),
    ("found.toml", ["method.name=ifca", "method.option=gradients", "local.steps=1"]),
    ("found.toml", ["method.resample=true"]),
    ("found.toml", ["method.restarts=3", "method.restart_rounds=1"]),
    ("found.toml", ["local.lr_decay=0.9"]),
    ("found.toml", ["method.clusters=1"]),
    ("found.toml", ["method.clusters=5"]),  # more models than groups
    ("tiny.toml", [*TURNED]),
    ("tiny.toml", [*TURNED, "data.rotations=2", "method.shared_layers=1"]),
    ("tiny.toml", [*TURNED, "data.partition=iid"]),  # nothing is turned
]


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    ("file", "changes"), thinned(COMBINATIONS, 5), ids=[" ".join(changes) for _, changes in COMBINATIONS]
)
def test_combinations_run(atoll: Command, folder: Path, file: str, changes: list[str]) -> None:
    words = [word for change in changes for word in ("--set", change)]
    atoll("run", file, *words, "--out", "out").succeeded()
    rows = rows_of(folder / "out")
    assert [row["round"] for row in rows] == [0, 1, 2]
    clients = 6 if file == "found.toml" else 8
    assert all(sum(row["cluster_clients"]) == clients for row in rows)


def test_test_clients_are_of_every_group(folder: Path) -> None:
    """Though 8 clients hold so little of the pool that their share of the test samples is less than one client."""
    settings = settings_of("data.clients=8", "data.samples=8", "data.partition=rotated", "method.name=ifca")
    assert Experiment(settings).clients.test.groups().tolist() == [0, 1, 2, 3]


def settings_of(*changes: str) -> atoll.Settings:
    return atoll.make_runs({}, changes=changes)[0]
