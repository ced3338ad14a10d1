"""Codecs under privacy: after the noise they change no epsilon, and what the server clips is what it has decoded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from atoll import Chain, Experiment, Stage, generator, make_runs, run_events
from atoll.codecs.coding import Coding
from atoll.local.models import Model, form_of
from atoll.local.task import ClientTask
from atoll.privacy.clipping import SumOfUpdates, length_of
from tests.tiers import thinned

pytest.importorskip("dp_accounting")

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 8, "samples": 20},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"name": "fedcluster", "fraction": 0.5},
    "run": {"executor": "serial", "evaluate_samples": 20},
}
CLIENT = {"trust": "client", "clip": 0.3, "noise": 2.0}
SERVER = CLIENT | {"trust": "server"}
CODECS: dict[str, dict[str, Any]] = {
    "bfloat16": {"codec": "bfloat16"},
    "int8": {"codec": "int8", "rounding": "stochastic"},
    "topk": {"codec": "topk", "share": 0.1},
    "one's own": {"codec": "tests.codecs.test_codecs:half"},
}


def made(privacy: dict[str, Any], travel: dict[str, Any], executor: str = "serial", **changes: Any) -> Experiment:
    table = BASE | {"privacy": privacy, "travel": travel, "run": BASE["run"] | {"executor": executor}} | changes
    return Experiment(make_runs(table)[0])


def last_model(experiment: Experiment, folder: Path) -> Model:
    for _ in run_events(experiment, folder):
        pass
    found = load_file(max((folder / "checkpoint").glob("*.safetensors"), key=lambda path: path.name))
    return {name: tensor for name, tensor in found.items() if "codec@" not in name}


def coding_of(stage: Stage) -> Coding:
    half: Any = stage.send
    coding: Coding = half.__self__.coding
    return coding


@pytest.mark.parametrize("codec", CODECS)
def test_epsilon_is_what_it_is_without(codec: str) -> None:
    plain, coded = made(CLIENT, {}).planned.private, made(CLIENT, CODECS[codec]).planned.private
    assert plain is not None
    assert coded is not None
    assert coded.plan.cost == plain.plan.cost
    assert coded.plan.releases.tolist() == plain.plan.releases.tolist()
    assert coded.plan.of_clusters().tolist() == plain.plan.of_clusters().tolist()


@pytest.mark.parametrize("trust", thinned(["client", "server"], 1))
def test_executors_have_the_same_bits(trust: str, tmp_path: Path) -> None:
    """With noise; on a fleet, whose noise is the system's, without it (`test_private_fleet`); on Ray in `test_ray`."""
    travel = CODECS["int8"] | {"feedback": trust == "client"}
    one, other = (
        last_model(made(CLIENT | {"trust": trust}, travel, name), tmp_path / name) for name in ("serial", "cores")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_what_is_coded_has_its_noise_already(codec: str) -> None:
    """By hand: the noisy client's own update, and then the codec's bytes of it, and what they lost the next time."""
    experiment = made(CLIENT, CODECS[codec])
    trainer = experiment.training.trainer()
    noise, coder = experiment.method.stages
    noisy_clients, coding = Chain(trainer.trainer, [noise]), coding_of(coder)
    (start,), lost = experiment.training.initial_models(), dict[str, torch.Tensor]()
    for event in range(3):
        task = ClientTask(event, event, 0, 0, 3, start)
        noisy = noisy_clients.train(task).model
        wanted = {name: noisy[name] - start[name] + lost.get(name, 0.0) for name in noisy}
        payload = coding.encode(wanted, generator(experiment.settings.seed, "codec", *task.key))
        decoded = coding.decode(payload, form_of(wanted))
        state = {f"codec@{name}": each for name, each in lost.items()} or None
        sent = trainer.train(ClientTask(event, event, 0, 0, 3, start, None, state))
        assert all(torch.equal(sent.model[name], start[name] + decoded[name]) for name in noisy)
        lost = {name: wanted[name] - decoded[name] for name in noisy}


@pytest.mark.parametrize("codec", ["bfloat16", "int8", "topk"])
def test_a_server_clips_what_it_has_decoded(codec: str) -> None:
    """However much longer a codec has made an update."""
    experiment = made(SERVER, CODECS[codec] | {"feedback": False})
    combine, (start,) = experiment.method.combined_by, experiment.training.initial_models()
    assert isinstance(combine, SumOfUpdates)
    trainer = experiment.training.trainer()
    assert [stage.name for stage in trainer.stages if stage.is_at_client] == ["codec"]
    sent = trainer.train(ClientTask(0, 0, 0, 0, 3, start)).model
    longer = {name: start[name] + 100 * (sent[name] - start[name]) for name in sent}
    total = combine([(1.0, longer)], start, 1.0)
    assert length_of(total) == pytest.approx(0.3)
