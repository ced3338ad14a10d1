"""What the methods with learned clusters have in common: planted groups found, the same bits anywhere, refusals."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, InputError, State, make_runs, run_events
from atoll.executors.cores.cores_executor import Cores
from atoll.executors.ray.ray_executor import Ray
from atoll.methods.parts.checking import with_common
from atoll.methods.parts.learned import agglomerate, numbered
from tests.by_hand import POPULATION, make_trainer, run
from tests.killing import carry_to_end
from tests.methods.twins import RULE
from tests.tiers import thinned

EASY: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 12, "samples": 100, "partition": "rotated", "rotations": 2},
    "model": {"name": "linear"},
    "local": {"lr": 0.1, "steps": 10, "batch_size": 50},
    "run": {"executor": "serial", "checkpoint_every": 1},
}
METHODS: dict[str, dict[str, Any]] = {
    "cfl": {"clusters": 3, "eps1": 1.0, "eps2": 0.5, "gamma": 0.5},
    "flhc": {"clusters": 2, "warmup": 1, "fraction": 0.5},
    "fedgroup": {"clusters": 2, "pretrained": 3, "fraction": 1.0},
    "fesem": {"clusters": 2},
    "feddrift": {"clusters": 3},
    "pacfl": {"clusters": 2, "fraction": 0.5},
    "fmcl": {"clusters": 2, "fraction": 0.5},
    "stocfl": {"clusters": 2, "fraction": 0.5},
    "lcfed": {"clusters": 2, "fraction": 0.5},
}


def experiment(name: str, *changes: str) -> Experiment:
    changes = ("model.name=mlp", *changes) if name == "lcfed" else changes  # it needs two layers
    return Experiment(make_runs({**EASY, "method": {"name": name, **METHODS[name]}}, changes=list(changes))[0])


def test_clusters_are_numbered_by_their_first_clients() -> None:
    assert numbered(np.array([2, 2, 0, 1])).tolist() == [0, 0, 1, 2]


def test_clusters_at_the_threshold_are_merged() -> None:
    assert agglomerate(np.array([1.0]), 2, "single", 1.0).tolist() == [0, 0]
    assert agglomerate(np.array([1.0]), 2, "single", 0.999).tolist() == [0, 1]


def test_docstrings_are_completed_by_what_is_the_same_for_most_methods() -> None:
    whole = "Average.\n\nArgs:\n    rule: the local training rule.\n    rounds: at most 5.\n"
    assert with_common("Average.\n\nArgs:\n    rounds: at most 5.\n", ["rule", "rounds"]) == whole


@pytest.mark.parametrize("name", thinned([name for name in METHODS if name != "feddrift"], 2))
def test_planted_groups_are_found(tmp_path: Path, name: str) -> None:
    """And reported as IFCA's are: ARI, confusion and clusters' accuracies in each row."""
    each = experiment(name)
    each.check()
    warnings = [warning for progress in run_events(each, tmp_path / "run") for warning in progress.warnings]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert warnings == []
    assert rows[-1]["ari"] == 1.0
    confusion = np.array(rows[-1]["confusion"])
    assert sorted(confusion.max(axis=1)) == [6, 6]
    assert confusion.sum() == 12
    if name == "cfl":
        assert rows[-1]["cluster_clients"] == [6, 6, 0]
        assert rows[-1]["cluster_accuracy"][2] is None, "no test client takes a cluster without clients"
    if name not in ("pacfl", "fmcl", "lcfed"):
        assert rows[0]["ari"] == 0.0


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.parametrize("name", thinned(METHODS, 1))
def test_stopped_after_each_event_and_on_cores_it_has_the_same_bits(tmp_path: Path, name: str) -> None:
    changes = "data.samples=20", "local.steps=2", "method.clusters=2"
    carry_to_end(experiment(name, *changes), tmp_path / "whole")
    for stop in range(len(experiment(name, *changes).method.schedule)):
        for progress in run_events(experiment(name, *changes), tmp_path / "stopped", resume=True):
            if progress.events_done > stop and progress.is_settled:
                break
    carry_to_end(experiment(name, *changes), tmp_path / "stopped")
    carry_to_end(experiment(name, *changes, "run.executor=cores", "run.workers=2"), tmp_path / "cores")
    for other in ("stopped", "cores"):
        for suffix in ("safetensors", "json"):
            last, its = (max((tmp_path / each / "checkpoint").glob(f"*.{suffix}")) for each in ("whole", other))
            if suffix == "json":
                assert json.loads(last.read_text())["state"] == json.loads(its.read_text())["state"]
            else:
                assert last.read_bytes() == its.read_bytes()


def same_bits(ours: list[State], theirs: list[State]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(one.labels, other.labels)  # type: ignore[arg-type]
        pairs = [
            *zip(one.starts, other.starts, strict=True),
            *((one.clients[k], other.clients[k]) for k in one.clients),
        ]
        assert all(a[name].equal(b[name]) for a, b in pairs for name in a)


@pytest.mark.parametrize("name", thinned([name for name in METHODS if name != "lcfed"], 1))
def test_workers_give_the_same_bits(name: str) -> None:
    method = by_name(name)
    same_bits(run(method, Cores(make_trainer(method), 2, 1000)), run(method))


@pytest.mark.more
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
@pytest.mark.parametrize("name", ["fedgroup", "stocfl"])
def test_workers_of_ray_give_the_same_bits(name: str) -> None:
    method = by_name(name)
    same_bits(run(method, Ray(make_trainer(method), 2)), run(method))


def by_name(name: str) -> Any:
    import atoll
    from tests.problems import linear_module

    given = {**METHODS[name], **({"module": linear_module()} if name in ("pacfl", "fmcl", "stocfl") else {})}
    return getattr(atoll, name)(POPULATION, RULE, 4, **given)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"stocfl", "lcfed"}))
def test_it_costs_a_model_down_and_up_a_client(name: str) -> None:
    events = experiment(name).method.schedule.events
    assert all(event.models_down == len(event.cohort) for event in events)
    assert all(event.models_up == len(event.cohort) for event in events[1:])


SENDING = ("cfl", "flhc", "fedgroup", "fesem", "stocfl", "lcfed", "feddrift")


@pytest.mark.parametrize(
    ("names", "change", "told"),
    [
        (SENDING, "faults.dropout=0.1", r"faults\.dropout: cannot be used with method\.name = '{}', whose clusters"),
        (SENDING, "faults.attackers=0.1", r"faults\.attackers: cannot be used with method\.name = '{}'"),
        (SENDING, "run.executor=stacked", r"run\.executor = 'stacked': .* keeps a state for each client"),
        (SENDING, "run.executor=weighted", r"run\.executor = 'weighted': .* keeps a state for each client"),
        (SENDING, "run.executor=fleet", r"run\.executor = 'fleet'"),
        (("pacfl", "fmcl"), "run.executor=fleet", r"run\.executor = 'fleet': the method's clusters are learned"),
        (("fesem", "lcfed"), "method.combine=median", r"method\.combine = 'median': .* '{}' combines otherwise"),
        (tuple(METHODS), "method.clusters=13", r"method\.clusters = 13: must be at most data\.clients = 12"),
        (tuple(METHODS), "method.clusters=0", r"method\.clusters"),
        (("flhc",), "method.warmup=4", r"method\.warmup = 4: must be less than rounds = 4"),
        (("flhc",), "method.linkage=centroid", r"method\.linkage"),
        (("pacfl", "fmcl"), "method.linkage=ward", r"method\.linkage"),
        (("cfl",), "method.eps1=-1", r"method\.eps1"),
        (("cfl",), "method.fraction=0.5", r"method\.fraction"),
    ],
)
def test_what_does_not_go_with_it_is_refused(names: tuple[str, ...], change: str, told: str) -> None:
    for name in names:
        with pytest.raises(InputError, match=told.format(name)):
            experiment(name, change).check()


@pytest.mark.parametrize("change", ["run.executor=stacked", "faults.dropout=0.3", "method.combine=median"])
def test_what_goes_with_clusters_known_before_training(tmp_path: Path, change: str) -> None:
    each = experiment("pacfl", change)
    each.check()
    carry_to_end(each, tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["final"]["ari"] == 1.0


def test_robust_rules_combine_inside_learned_clusters(tmp_path: Path) -> None:
    each = experiment("cfl", "method.combine=median")
    each.check()
    carry_to_end(each, tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["final"]["ari"] == 1.0
