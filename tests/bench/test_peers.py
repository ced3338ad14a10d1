"""The other libraries' runners train Atoll's models on Atoll's data; the benchmark's figure and files are written."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from bench import Case, RaceResult
from bench.contenders import MATRIX_PRODUCT, PLAIN, make_clients, make_module

from atoll.local.batches import Batches
from atoll.local.models import MODELS
from atoll.local.rule import LocalRule, sgd
from atoll.schedules.events import Mix

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Import from `benchmarks` and its `peers`, and forget the modules afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "benchmarks/peers")
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name in ("work", "shared", "torch_models", "speed", "events"):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["mlp", "cnn", "alexnet"])
def test_models_are_atolls(load: "type[ModuleType]", name: str) -> None:
    case = Case(name, 1)
    ours = make_module(case)
    theirs = load("torch_models").MODELS[name]()
    theirs.load_state_dict(ours.state_dict())
    images = torch.rand(3, *case.shape)
    assert torch.equal(theirs(images), ours(images))
    assert load("torch_models").count(theirs) == sum(p.numel() for p in MODELS[name](case.shape, 10).parameters())


def test_data_are_atolls(load: "type[ModuleType]") -> None:
    case = Case("cnn", 12, steps=2, batch_size=3)
    shared = load("shared")
    arrays = shared.client_arrays(shared.read_case(json.dumps(vars(case))))
    population = make_clients(case)
    batches = Batches(population.data, make_module(case))
    assert len(arrays) == 12
    for client, (images, labels) in enumerate(arrays):
        inputs, targets = batches.gather(population.samples(client))
        np.testing.assert_allclose(images, inputs.numpy(), rtol=1e-6)
        assert labels.tolist() == targets.tolist()


def some_results() -> list[RaceResult]:
    figures = {PLAIN: 1.0, "cores": 2.5, "Other": 0.5, MATRIX_PRODUCT: None}
    return [
        RaceResult(case, name, (0.1, 0.2, 0.3), speed, 10.0, 0.5, None)
        for case in ("mlp, 10 clients", "cnn, 10 clients")
        for name, speed in figures.items()
    ] + [RaceResult("mlp, 10 clients", "Broken", failure="pip install x failed")]


def test_files_are_written(load: "type[ModuleType]", tmp_path: Path) -> None:
    speed = load("speed")
    speed.write(some_results(), tmp_path / "out")
    text = (tmp_path / "out/speed.md").read_text()
    assert "| cnn, 10 clients | cores | 0.2 | 2.50 | 10.0 | 50% |  |" in text
    assert "mlp, 10 clients: Broken skipped: pip install x failed" in text
    found = json.loads((tmp_path / "out/speed.json").read_text())
    assert len(found["results"]) == 9
    assert (tmp_path / "out/speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_has_a_panel_a_case_and_no_matrix_product(load: "type[ModuleType]") -> None:
    panels = load("speed").plot(some_results()).axes
    assert [panel.get_title() for panel in panels] == ["mlp, 10 clients", "cnn, 10 clients"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["Other", "cores", PLAIN]
    assert [bar.get_width() for bar in panels[0].patches] == [0.5, 2.5, 1.0]


def test_every_peer_has_its_runner(load: "type[ModuleType]") -> None:
    speed = load("speed")
    for peer in speed.ALL_PEERS:
        assert (ROOT / "benchmarks/peers" / peer.runner).is_file()
    for peer in load("events").PEERS["asynchronous"]:
        assert (ROOT / "benchmarks/peers" / peer.runner).is_file()
    assert {case.clients for case in speed.COHORTS} == {10, 100}
    assert {case.model for case in speed.COHORTS} == {"mlp", "cnn", "alexnet"}


def test_clients_of_all_clusters_have_data(load: "type[ModuleType]") -> None:
    assert len(load("shared").client_arrays(Case("mlp", 2, steps=1, clusters=3))) == 6


def test_asynchronous_events_come_one_by_one(load: "type[ModuleType]") -> None:
    """As FLGo's simulator has them in `run_flgo.py`: in turn, each with its share of the model."""
    case = Case("mlp", 1, steps=2, batch_size=3, clusters=4)
    method = load("events").one_by_one(case, make_clients(case), LocalRule(sgd, 0.1, steps=case.steps))
    first = [method.schedule.events[index] for index in range(8)]
    assert [event.active for event in first] == [(0,), (1,), (2,), (3,)] * 2
    assert [event.server for event in first] == [Mix(0.75, ((j, 0.25),)) for j in (0, 1, 2, 3)] * 2
    assert [event.staleness for event in first] == [(0,), (1,), (2,), (3,)] + [(3,)] * 4


def test_a_peer_runs_on_the_first_python_that_runs(
    load: "type[ModuleType]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version manager has stand-ins on PATH for versions that it does not run."""
    speed = load("speed")
    for name, code in (("python9.1", 127), ("python9.0", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    peer = speed.Peer("None", (), "run_none.py", pythons=("python9.2", "python9.1", "python9.0"))
    assert speed.find_interpreter(peer) == str(tmp_path / "python9.0")
    none = replace(peer, pythons=("python9.2", "python9.1"))
    assert speed.make_environment(none, tmp_path) == "needs one of python9.2, python9.1 on PATH"
    assert speed.find_interpreter(replace(peer, pythons=())) == sys.executable


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_is_a_reason(load: "type[ModuleType]", tmp_path: Path) -> None:
    speed = load("speed")
    peer = speed.Peer("None", (("--no-index", "no-such-package"),), "run_none.py")
    reason = speed.make_environment(peer, tmp_path)
    assert reason.startswith("pip install --no-index no-such-package failed (ERROR: No matching distribution")
    assert not list(tmp_path.rglob("installed.json"))
