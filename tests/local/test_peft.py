"""The documentation's transformer with PEFT's adapters; skipped where the extra `text` is not installed."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
import torch

from atoll import Experiment, make_runs, read_result, run_events
from tests.cli.pages import ROOT, write_files

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("peft", "transformers"))), reason="the extra text is not installed"
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers' of its own names
def test_only_adapters_and_classifier_travel_and_the_backbone_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(ROOT / "docs/interop.md", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    table = tomllib.loads((tmp_path / "lora.toml").read_text())
    made = Experiment(make_runs(table, changes=["run.executor=serial", "rounds=2"])[0])
    made.check()
    assert made.traffic.message_bytes == 4 * 3_914
    assert sum(parameter.numel() for parameter in made.module.parameters()) == 22_132
    (first,) = made.training.initial_models()
    begun, *_, last = run_events(made, tmp_path / "run")
    assert begun.row is not None
    assert last.row is not None
    assert last.row["train_loss"] < begun.row["train_loss"]
    state = read_result(tmp_path / "run").state
    assert state is not None
    end = state.server
    assert end is not None
    told = {name for name in first if "lora_" in name or "classifier.modules_to_save" in name}
    assert end.keys() == told == {name for name, own in made.module.named_parameters() if own.requires_grad}
    assert not any(torch.equal(end[name], first[name]) for name in end)
