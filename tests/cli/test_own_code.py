"""The user's own functions by module:name from a file beside the experiment: used, and refused in one sentence."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.tiers import thinned

GOOD = '''
from __future__ import annotations  # types as text are checked too
import numpy as np
import torch
from torch import nn
import atoll
from dataclasses import replace


def halves(labels, clients: int, rng, share: float = 0.5):
    """A partition: a random share of the pool each."""
    return [rng.permutation(len(labels))[: int(share * 100)] for _ in range(clients)]


def narrow(shape, classes: int, units: int = 7):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.Tanh(), nn.Linear(units, classes))


def alternate(population, clusters: int, start: int = 0):
    return (np.arange(len(population)) + start) % clusters


def nesterov(parameters, lr: float, momentum: float, damping: float = 0.0):
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum + damping, nesterov=True)


def flipped():
    digits = atoll.load("digits")
    return replace(digits, name="flipped", inputs=16 - digits.inputs)


def plain(population, clustering, rule, rounds: int, turns: int = 1):
    return atoll.fedcluster(population, clustering, rule, rounds * turns, order="fixed")
'''
USED = {
    "data.dataset": "own:flipped",
    "data.partition": "own:halves",
    "data.share": "0.25",
    "model.name": "own:narrow",
    "model.units": "5",
    "local.optimizer": "own:nesterov",
    "local.momentum": "0.5",
    "local.damping": "0.1",
    "clustering.method": "own:alternate",
    "clustering.start": "1",
    "method.name": "own:plain",
    "method.turns": "2",
}
BAD = """
import numpy as np, torch, atoll
from torch import nn; from dataclasses import replace
number = 5; digits = atoll.load("digits")
def two_clients(labels): return [np.arange(5), np.arange(5)]
def one_empty(labels, clients): return [np.arange(k) for k in range(clients)]
def nothing(): pass
def flat(labels): return np.arange(6)
def deep(clients): return [np.zeros((2, 2), int)] * clients
def outside(labels, clients): return np.full((clients, 3), len(labels))
def fractions(labels, clients): return np.full((clients, 3), 0.5)
def raises(): return [][1]
def asks(unknown_thing): pass
def nine(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))
def wide(shape, classes): return nn.Linear(99, 10)
def bare(shape, classes): return nn.Flatten()
def in_training(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10), Halts())
class Halts(nn.Module):
    def forward(self, x):
        if self.training: raise RuntimeError("no training")
        return x
def closure(parameters, lr): return torch.optim.LBFGS(parameters, lr)
def shifted(population, clusters): return np.full(len(population), clusters)
def short(population): return [0, 1]
def lonely(population): return np.zeros(len(population), int)
def words(population): return ["a"] * len(population)
def masks(labels, clients): return [labels < 5] * clients
def says_masks(labels, clients): return [[True, False]] * clients
def huge(): return 10**400
def exits(): raise SystemExit(0)
def torn(): return replace(digits, targets=digits.targets[:5])
def eleven(): return replace(digits, targets=digits.targets + 1)
def reals(): return replace(digits, targets=digits.targets * 0.5)
"""
REFUSED = [
    ("data.partition=own:two_clients", ["data.partition = 'own:two_clients'", "made 2 clients", "data.clients = 6"]),
    ("data.partition=own:one_empty", ["data.partition = 'own:one_empty'", "client 0 has no samples", "1 of 6"]),
    ("data.partition=own:nothing", ["data.partition = 'own:nothing'", "not nothing"]),
    ("data.partition=own:flat", ["an array of int64 with shape [6]"]),
    ("data.partition=own:deep", ["client 0 has an array of int64 with shape [2, 2]"]),
    ("data.partition=own:outside", ["data.partition", "from 0 to 1436"]),
    ("data.partition=own:fractions", ["an array of float64"]),
    ("data.partition=own:masks", ["client 0 has a mask of booleans; give np.flatnonzero(mask), its indices"]),
    ("data.partition=own:says_masks", ["client 0 has a mask of booleans"]),
    ("data.partition=own:exits", ["data.partition = 'own:exits': calling it failed (SystemExit: 0"]),
    ("data.partition=own:raises", ["data.partition = 'own:raises'", "IndexError", "own.py line 12"]),
    ("data.partition=own:asks", ["data.unknown_thing", "needs it"]),
    ("data.partition=own:two_clents", ["'two_clents'", "did you mean 'two_clients'?"]),
    ("data.partition=own:number", ["must be a function", "int"]),
    ("data.partition=own:", ["'module:function'"]),
    ("data.partition=:flat", ["'module:function'"]),
    ("data.partition=own.py:flat", ["data.partition = 'own.py:flat'", "no module"]),
    ("data.partition=absent:flat", ["no module 'absent'", "beside the experiment file"]),
    ("data.partition=broken:flat", ["importing it failed", "ZeroDivisionError", "broken.py line 2"]),
    ("data.partition=needy:flat", ["importing it failed", "No module named 'nowhere_to_be_found'"]),
    ("data.partition=quits:flat", ["importing it failed", "SystemExit"]),
    ("data.partition=typo:flat", ["importing it failed", "SyntaxError"]),
    ("model.name=own:nine", ["model.name = 'own:nine'", "[2, 10]", "10 classes", "[2, 9]"]),
    ("model.name=own:wide", ["model.name = 'own:wide'", "cannot take inputs of shape [2, 1, 8, 8]"]),
    ("model.name=own:bare", ["model.name = 'own:bare'", "no parameters"]),
    ("model.name=own:nothing", ["torch.nn.Module", "NoneType"]),
    ("model.name=own:in_training", ["model.name = 'own:in_training'", "no training"]),
    ("local.optimizer=own:closure", ["local.optimizer = 'own:closure'", "closure"]),
    ("local.optimizer=own:nothing", ["local.optimizer = ", "'own:nothing'", "calling it failed"]),
    ("clustering.method=own:shifted", ["clustering.method = 'own:shifted'", "from 2 to 2"]),
    ("clustering.method=own:short", ["clustering.method = 'own:short'", "2 labels for 6 clients"]),
    ("clustering.method=own:lonely", ["clustering.method = 'own:lonely'", "cluster 1 without clients"]),
    ("clustering.method=own:words", ["clustering.method = 'own:words'", "must hold numbers, not texts; np.unique"]),
    ("data.dataset=own:raises", ["data.dataset = 'own:raises': calling it failed (IndexError"]),
    ("data.dataset=own:nothing", ["data.dataset = 'own:nothing'", "atoll.Dataset", "it returned nothing"]),
    ("data.dataset=own:torn", ["data.dataset = 'own:torn'", "1437 samples", "5"]),
    ("data.dataset=own:eleven", ["data.dataset = 'own:eleven'", "from 1 to 10"]),
    ("data.dataset=own:reals", ["data.dataset = 'own:reals'", "must be whole numbers, one is 0.5"]),
    ("method.name=own:nothing", ["method.name = 'own:nothing'", "atoll.Method"]),
    ('run.probes=["own:nothing"]', ["run.probes = 'own:nothing'", "must return a number", "it returned None"]),
    ('run.probes=["own:huge"]', ["run.probes = 'own:huge'", "must return a number"]),
    ('run.probes=["own:raises"]', ["run.probes = 'own:raises'", "IndexError", "own.py line 12"]),
    ('run.probes=["own:asks"]', ["run.probes = 'own:asks'", "'unknown_thing' is unknown", "Allowed: clustering"]),
    ('run.probes=["own:absent"]', ["run.probes = 'own:absent'", "is unknown"]),
    ("run.probes=own:nothing", ["run.probes = 'own:nothing'", "a list, each entry a text"]),
]


@pytest.mark.parametrize("command", ["run", "schedule"])
def test_own_functions_are_used(atoll: Command, folder: Path, command: str) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "own.py").write_text(GOOD)
    (folder / "tiny.toml").rename(folder / "elsewhere" / "tiny.toml")
    words = [word for key, value in USED.items() for word in ("--set", f"{key}={value}")]
    (result,) = json.loads(atoll(command, "elsewhere/tiny.toml", *words, "--json").succeeded())
    if command == "run":
        summary = json.loads((folder / "runs" / "tiny" / "summary.json").read_bytes())
        assert summary["train_loss_samples"] == 6 * 25
        assert summary["model_bytes"] == 4 * (64 * 5 + 5 + 5 * 10 + 10)
        assert summary["rounds"] == 4
    else:
        assert [row["clusters"] for row in result["rows"][:2]] == [[0], [1]]
        assert set(result["rows"][0]["cohort"]) < {1, 3, 5}


@pytest.mark.more
def test_a_probe_is_a_metric_of_a_sweep(atoll: Command, folder: Path) -> None:
    (folder / "own.py").write_text("def gap(evaluator, model):\n    return evaluator.score(model).train_loss / 2\n")
    words = ("sweep", "tiny.toml", "--over", "seed=0..1", "--set", 'run.probes=["own:gap"]')
    told = atoll(*words, "--metric", "gep").refused()
    assert told.startswith("--metric gep: unknown, did you mean 'gap'?")
    assert not (folder / "sweeps").exists()
    (line,) = json.loads(atoll(*words, "--metric", "gap", "--json").succeeded())["settings"]
    runs = [json.loads(path.read_bytes())["final"] for path in folder.glob("runs/tiny/*/summary.json")]
    assert [run["gap"] for run in runs] == [run["train_loss"] / 2 for run in runs]
    assert line["last_mean"] == pytest.approx(sum(run["gap"] for run in runs) / 2)


def test_a_bad_probe_of_the_second_run_is_met_before_the_first(atoll: Command, folder: Path) -> None:
    (folder / "own.py").write_text(BAD)
    runs = '[[runs]]\nlabel = "a"\n[[runs]]\nlabel = "b"\nrun.probes = ["own:nothing"]\n'
    (folder / "two.toml").write_text((folder / "tiny.toml").read_text() + runs)
    assert "run.probes = 'own:nothing'" in atoll("run", "two.toml").refused()
    assert not (folder / "runs").exists()


def test_a_clustering_may_ask_for_the_clock(atoll: Command, folder: Path) -> None:
    (folder / "own.py").write_text(
        "import numpy as np\n\n\ndef by_speed(clock, clusters: int):\n"
        "    rank = np.argsort(np.argsort(clock.compute_seconds, kind='stable'))\n"
        "    return rank * clusters // len(rank)\n"
    )
    changes = ("clustering.method=own:by_speed", "network.seconds_per_sample=[0.001, 0.01]", "method.fraction=1.0")
    words = [word for change in changes for word in ("--set", change)]
    (result,) = json.loads(atoll("schedule", "tiny.toml", *words, "--json").succeeded())
    seconds: dict[int, set[float]] = {0: set(), 1: set()}
    before = 0.0
    for row in result["rows"]:
        seconds[row["clusters"][0]].add(round(row["seconds"] - before, 9))
        before = row["seconds"]
    assert max(seconds[0]) < min(seconds[1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("data.share=much", ["data.share = 'much'", "a finite number"]),
        ("data.shar=0.5", ["data.shar", "did you mean 'share'?"]),
        ("model.units=2.5", ["model.units = 2.5", "a whole number"]),
        ("model.units=-2", ["model.name = "]),
        ("local.damping=true", ["local.damping = true", "a finite number"]),
        ("clustering.start=a", ["clustering.start = 'a'", "a whole number"]),
        ("local.momentum=", ["local.momentum = unset", "a finite number"]),
    ],
)
def test_options_are_checked(atoll: Command, folder: Path, change: str, told: list[str]) -> None:
    (folder / "own.py").write_text(GOOD)
    words = [word for key, value in USED.items() for word in ("--set", f"{key}={value}")]
    sentence = atoll("run", "tiny.toml", *words, "--set", change).refused()
    for expected in told:
        assert expected in sentence
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(("change", "told"), thinned(REFUSED, 12), ids=[change for change, _ in REFUSED])
def test_own_functions_that_fail(atoll: Command, folder: Path, change: str, told: list[str]) -> None:
    (folder / "own.py").write_text(BAD)
    (folder / "broken.py").write_text("x = 0\n1 / x\n")
    (folder / "needy.py").write_text("import nowhere_to_be_found\n")
    (folder / "quits.py").write_text("raise SystemExit(0)\n")
    (folder / "typo.py").write_text("def flat(:\n")
    sentence = atoll("run", "tiny.toml", "--set", "data.samples=", "--set", change).refused()
    for expected in told:
        assert expected in sentence
    assert sentence.count(f"{change.partition('=')[0]} = ") < 2
    assert not (folder / "runs").exists()
