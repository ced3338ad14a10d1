"""What is not proven is refused, in one sentence that says why, before anything is written."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from atoll import Experiment, InputError, Settings
from atoll.privacy.mechanism import Mechanism
from atoll.privacy.needs import refuse_module
from atoll.support.errors import SettingWarning

pytest.importorskip("dp_accounting")

BASE: dict[str, Any] = {
    "rounds": 2,
    "data.clients": 8,
    "model.name": "linear",
    "local.steps": 2,
    "clustering.clusters": 2,
    "method.name": "fedavg",
    "method.fraction": 0.5,
    "privacy.trust": "server",
    "privacy.clip": 1.0,
    "privacy.noise": 1.0,
}
IFCA = {"method.name": "ifca", "method.clusters": 2}
HIERARCHICAL = {"method.name": "hierarchical", "method.fraction": None, "rounds": 20}
CLUSTERED = {"method.name": "fedcluster"}
SIX = {"rounds": 6}
NOT_PROVEN = "no proof bounds one client's effect on what is released"

NOT_ACCOUNTED: dict[str, dict[str, Any]] = {
    "scaffold": {},
    "feddyn": {},
    "fednova": {"local.epochs": 0.1},
    "fedasync": {"method.fraction": None, "method.concurrency": 4},
    "fedbuff": {"method.fraction": None, "method.concurrency": 4, "method.buffer": 2},
    "centralized": {"method.fraction": None},
    "bcd": {},
    "ditto": {},
    "local": {},
    "fedper": {"model.name": "mlp"},
    "fedem": {},
    "fedrc": {},
    "fedsoft": {},
    "pfedme": {},
    "apfl": {},
    "perfedavg": {},
    "fedamp": {"method.fraction": None},
    "moon": {},
    "cfl": {"method.fraction": None, "method.eps1": 9.0, "method.eps2": 0.0},
    "flhc": {"method.warmup": 1},
    "pacfl": {},
    "fmcl": {},
    "stocfl": {},
    "lcfed": {"model.name": "mlp"},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such trust": ({"privacy.trust": "nobody"}, "privacy.trust = 'nobody'"),
    "a function": ({"privacy.trust": "os:getcwd", "privacy.clip": None, "privacy.noise": None}, "not a function"),
    "clip 0": ({"privacy.clip": 0.0}, "privacy.clip"),
    "clip missing": ({"privacy.clip": None}, "privacy.clip is not set"),
    "noise below 0": ({"privacy.noise": -1.0}, "privacy.noise"),
    "noise 0 with a budget": ({"privacy.noise": 0.0, "privacy.epsilon": 3.0}, "must be more than 0 with a budget"),
    "epsilon 0": ({"privacy.epsilon": 0.0}, "privacy.epsilon"),
    "delta 0": ({"privacy.delta": 0.0}, "privacy.delta"),
    "delta 1": ({"privacy.delta": 1.0}, "privacy.delta"),
    "a budget below one event": ({"privacy.epsilon": 0.1}, "the first event alone costs"),
    "a budget below one event, after events without clients": (
        {"privacy.epsilon": 0.5, "data.clients": 4, "method.fraction": 0.25, "faults.dropout": 0.6, "seed": 3, **SIX},
        "the first event alone costs",
    ),
    "settings without trust": ({"privacy.trust": "none"}, "privacy.clip: is taken by privacy.trust = 'server'"),
    "robust": ({"method.combine": "median"}, "method.combine = 'median': noise hides a client in a sum"),
    "a robust mean": ({"method.combine": "norm-clipping", "method.clip_norm": 1.0}, "noise hides a client in a sum"),
    "tolerance": ({"faults.tolerate": True}, "single results are looked at, or left out"),
    "limits": ({"faults.max_update_norm": 1.0}, "single results are looked at, or left out"),
    "collusion": ({"faults.attackers": 0.3, "faults.attack": "inner-product"}, "faults.attack = 'inner-product'"),
    "attackers whom nobody clips": (
        {"privacy.trust": "client", "faults.attackers": 0.3, "faults.attack": "sign-flip"},
        "clients that attack would neither clip",
    ),
    "samples without a cap": ({"method.weights": "samples"}, "set privacy.samples_cap"),
    "choice by losses": ({"method.select": "power-of-choice", "method.candidates": 6}, "who trains depends on losses"),
    "a choice of one's own": (
        {"method.select": "tests.methods.test_selection:evens"},
        "may choose clients by their data",
    ),
    "a quantile without noise": ({"privacy.quantile": 0.5}, "privacy.quantile_noise is not set"),
    "a quantile of clients that trust nobody": (
        {"privacy.trust": "client", "privacy.quantile": 0.5},
        "privacy.quantile: is taken by privacy.trust = 'server' or 'aggregator'",
    ),
    "a codec that remembers": ({"travel.codec": "int8"}, "travel.codec = 'int8' and travel.feedback = true"),
    "a codec of one's own": (
        {"travel.codec": "tests.codecs.test_codecs:half", "travel.feedback": False},
        "your own function may mix",
    ),
    "no aggregators": ({"privacy.trust": "aggregator"}, "has no aggregators between"),
    "labels": (CLUSTERED | {"clustering.method": "major-class"}, "uses clients' data"),
    "travels": ({"model.name": "mlp", "model.travels": ["*weight"]}, "state that clients keep between tasks"),
    "many starts": (IFCA | {"method.restarts": 2, "privacy.count_noise": 2.0}, "by clients' losses, without noise"),
    "shared layers": (
        IFCA | {"model.name": "mlp", "method.shared_layers": 1, "privacy.count_noise": 2.0},
        "layers that clusters share",
    ),
    "no noise in counts": (IFCA, "privacy.count_noise is not set"),
    "no noise in counts for the clip": (
        IFCA | {"method.option": "gradients", "privacy.quantile": 0.5, "privacy.quantile_noise": 2.0, "local.steps": 1},
        "privacy.count_noise is not set",
    ),
    "the choice told": (IFCA | {"privacy.trust": "client"}, "privacy.identity_epsilon is not set"),
    "a choice of any epsilon": (
        IFCA | {"privacy.trust": "client", "privacy.identity_epsilon": 800.0},
        "privacy.identity_epsilon = 800.0: must be a finite number of at least 1e-09 and at most 700",
    ),
    "the choice told to others": (IFCA | {"privacy.trust": "aggregator"}, "no aggregators"),
    "weighted": ({"local.steps": 1, "run.executor": "weighted"}, "run.executor = 'weighted'"),
    "stacks of local noise": (
        {"privacy.trust": "client", "run.executor": "stacked"},
        "privacy.trust = 'client' changes each client's",
    ),
    **{name: ({"method.name": name, **changes}, NOT_PROVEN) for name, changes in NOT_ACCOUNTED.items()},
}


def settings_of(flat: dict[str, Any]) -> Settings:
    table: dict[str, Any] = {}
    for path, value in flat.items():
        section, _, key = path.rpartition(".")
        if value is not None:
            (table.setdefault(section, {}) if section else table)[key] = value
    return Settings(**table)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_proven_is_refused(what: str) -> None:
    changes, told = REFUSED[what]
    with pytest.raises(InputError) as refused:
        Experiment(settings_of(BASE | changes)).check()
    assert told in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_a_trust_of_ones_own_is_refused_and_not_offered() -> None:
    with pytest.raises(InputError, match=r"^privacy\.trust = 'nobody': .*Allowed: aggregator, client, none, server$"):
        Experiment(settings_of(BASE | {"privacy.trust": "nobody"})).check()


def test_a_delta_that_gives_a_client_away_is_warned_of() -> None:
    with pytest.warns(SettingWarning, match=r"privacy.delta = 0.2: is at least 1 / data.clients = 0.125"):
        Experiment(settings_of(BASE | {"privacy.delta": 0.2})).check()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Experiment(settings_of(BASE)).check()


def test_clusters_may_be_declared_public() -> None:
    changes = CLUSTERED | {"clustering.method": "major-class", "privacy.clusters_are_public": True}
    Experiment(settings_of(BASE | changes)).check()


def test_another_schedule_is_refused() -> None:
    made = Experiment(settings_of(BASE))
    with pytest.raises(InputError, match=r"--schedule: cannot be used with privacy\.trust"):
        Experiment(made.settings, schedule=made.method.schedule).check()


ANY = Mechanism("server", 1.0, 1.0, 1e-5)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.other.weight = self.one.weight


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "layer '1' (BatchNorm1d) keeps running statistics"),
        (Counting(), "'steps' holds integers"),
        (Tied(), "'other.weight' is the same tensor"),
    ],
)
def test_models_that_noise_cannot_hide_are_refused(module: nn.Module, told: str) -> None:
    with pytest.raises(InputError) as refused:
        refuse_module(module, ANY)
    assert told in str(refused.value)
    refuse_module(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)), ANY)


def test_frozen_tensors_of_two_names_get_no_noise_and_are_no_fault() -> None:
    """Such as a language model's tied embedding below adapters."""
    module = Tied()
    module.one.weight.requires_grad_(False)
    refuse_module(module, ANY)


def test_without_privacy_nothing_is_loaded_or_changed() -> None:
    made = Experiment(settings_of({key: value for key, value in BASE.items() if not key.startswith("privacy")}))
    assert made.planned.private is None
    assert made.method.release is None
