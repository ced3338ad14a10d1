"""The field's methods on every executor that they allow, and what they cannot be used with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from atoll import (
    Experiment,
    InputError,
    Method,
    Stacked,
    fedadam,
    fedasync,
    fedat,
    fedavgm,
    fedbuff,
    feddyn,
    fednova,
    fedyogi,
    hierarchical,
    hierfavg,
    make_runs,
    scaffold,
)
from tests.killing import carry_to_end
from tests.methods.twins import CLOCK, POPULATION, RULE, make, run, server

MAKE: dict[str, Callable[[], Method]] = {
    "fedavgm": lambda: fedavgm(POPULATION, RULE, 4, fraction=0.5),
    "fedadam": lambda: fedadam(POPULATION, RULE, 4, fraction=0.5),
    "fedyogi": lambda: fedyogi(POPULATION, RULE, 4, fraction=0.5),
    "scaffold": lambda: scaffold(POPULATION, RULE, 4, 0.7, 0.5),
    "fednova": lambda: fednova(POPULATION, replace(RULE, epochs=1.0), 4, fraction=0.5),
    "feddyn": lambda: feddyn(POPULATION, RULE, 4, fraction=0.5),
    "fedasync": lambda: fedasync(POPULATION, RULE, CLOCK, 8, 4),
    "fedbuff": lambda: fedbuff(POPULATION, RULE, CLOCK, 6, 4, 2),
    "fedat": lambda: fedat(POPULATION, RULE, CLOCK, 8, 3, 0.7),
}
OWN_TRAINER = ("scaffold", "fednova", "feddyn")


@pytest.mark.parametrize("name", OWN_TRAINER)
def test_stacked_refuses_trainers_of_their_own(name: str) -> None:
    with pytest.raises(ValueError, match=r"keeps a state|different numbers of steps"):
        Stacked(make(MAKE[name]()))


@pytest.mark.parametrize("name", sorted(MAKE.keys() - set(OWN_TRAINER)))
def test_stacked_gives_the_same_to_rounding(name: str) -> None:
    method = MAKE[name]()
    for ours, theirs in zip(run(method, Stacked(make(method))), run(method), strict=True):
        assert abs(server(ours) - server(theirs)).max() < 1e-10


BASE = {
    "rounds": 4,
    "data": {"clients": 8, "samples": 12, "partition": "dirichlet", "alpha": 1.0},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "clustering": {"clusters": 3},
    "network": {"seconds_per_sample": [0.01, 1.0]},
    "run": {"checkpoint_every": 1, "evaluate_samples": 20, "executor": "serial"},
}
SMALL = {
    "fedasync": ("method.concurrency=4", "rounds=6"),
    "fedbuff": ("method.concurrency=4", "method.buffer=2"),
    "fedat": ("method.tiers=3", "method.fraction=0.5", "rounds=6"),
    "hierfavg": ("method.intra_rounds=2", "rounds=8", "run.evaluate_every=2"),
}


def experiment(name: str, *changes: str) -> Experiment:
    small = SMALL.get(name, ("method.fraction=0.5",))
    return Experiment(make_runs(BASE, changes=[f"method.name={name}", *small, *changes])[0])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("scaffold", ["local.optimizer=momentum"], r"local\.optimizer = SGD with momentum: must be 'sgd'"),
        ("scaffold", ["method.combine=median"], r"method\.combine = 'median'.*'scaffold' combines otherwise"),
        ("feddyn", ["method.combine=median"], r"method\.combine = 'median'.*'feddyn' combines otherwise"),
        (
            "fednova",
            ["local.epochs=1", "method.combine=median"],
            r"method\.combine = 'median'.*'fednova' combines otherwise",
        ),
        ("fedbuff", ["method.combine=median"], r"method\.combine = 'median'.*'fedbuff' combines otherwise"),
        ("fedasync", ["method.combine=median"], r"method\.combine = 'median'.*'fedasync' combines otherwise"),
        ("feddyn", ["run.executor=stacked"], r"run\.executor = 'stacked': .*keeps a state"),
        ("fednova", [], r"local\.epochs is not set, but method\.name = 'fednova' needs it"),
        ("fedasync", ["faults.dropout=0.1"], r"faults\.dropout: cannot be used with method\.name = 'fedasync', whose"),
        ("fedasync", ["method.exponent=-1"], r"method\.exponent"),
        ("fedasync", ["method.hinge_slope=0"], r"method\.hinge_slope"),
        ("fedasync", ["method.staleness=linear"], r"method\.staleness"),
        ("fedbuff", ["method.buffer=9"], r"method\.buffer = 9: .*data\.clients = 8"),
        ("fedbuff", ["method.concurrency=9"], r"method\.concurrency = 9: .*data\.clients = 8"),
        ("fedat", ["method.tiers=9"], r"method\.tiers = 9: .*data\.clients = 8"),
        ("fedadam", ["method.beta1=1"], r"method\.beta1"),
        ("fedadam", ["method.tau=0"], r"method\.tau"),
        ("feddyn", ["method.alpha=0"], r"method\.alpha"),
        ("feddyn", ["local.proximal=0.1"], r"local\.proximal"),
        ("hierfavg", ["method.pattern=decsyn"], r"method\.pattern"),
        ("fedavgm", ["method.pattern=decsyn"], r"method\.pattern"),
    ],
)
def test_what_does_not_go_with_them_is_refused(name: str, changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        experiment(name, *changes).check()


def test_hierfavg_is_censyn_to_the_bit(tmp_path: Path) -> None:
    pattern = ("rounds=8", "method.intra_rounds=2", "method.pattern=censyn")
    censyn = Experiment(make_runs(BASE, changes=["method.name=hierarchical", *pattern])[0])
    ours, theirs = run_of(experiment("hierfavg"), tmp_path / "a"), run_of(censyn, tmp_path / "b")
    assert ours == theirs
    assert hierfavg is not hierarchical


def run_of(made: Experiment, folder: Path) -> bytes:
    carry_to_end(made, folder)
    return max((folder / "checkpoint").glob("*.safetensors")).read_bytes()
