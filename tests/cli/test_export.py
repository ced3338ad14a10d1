"""`atoll export`, and a folder of clients in an experiment file."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from tests.cli.conftest import Command
from tests.cli.pages import ROOT, blocks, shell, write_files


def test_export(atoll: Command) -> None:
    atoll("run", "tiny.toml", "--out", "run").succeeded()
    assert atoll("export", "run").succeeded() == (
        "run/model.safetensors: 15,010 parameters, after 4 events\nInputs: stored values times 0.0625\n"
    )
    assert safetensors.torch.load_file("run/model.safetensors")["1.weight"].shape == (200, 64)
    made = json.loads(atoll("export", "run", "--format", "state-dict", "--json").succeeded())
    inputs = "stored values times 0.0625"
    told = {"file": "run/model.pt", "format": "state-dict", "parameters": 15010, "inputs": inputs}
    assert made == told | {"events": 4, "finished": True}


def test_an_export_says_how_inputs_were_standardised(atoll: Command) -> None:
    atoll("run", "tiny.toml", "--out", "run", "--set", "data.standardise=pool").succeeded()
    inputs = "stored values times 0.0625, less 0.3058, over 0.3762"
    assert f"Inputs: {inputs}" in atoll("export", "run").succeeded()
    with safetensors.safe_open("run/model.safetensors", "pt") as file:
        assert file.metadata()["inputs"] == inputs


@pytest.mark.more
def test_an_exported_run_can_be_replaced(atoll: Command) -> None:
    atoll("run", "tiny.toml", "--out", "run").succeeded()
    for words in ((), ("--cluster", "1"), ("--format", "state-dict")):
        atoll("export", "run", *words).succeeded()
    atoll("report", "run").succeeded()
    made = {path.name for path in Path("run").iterdir()}
    assert {"model.safetensors", "model-cluster-1.safetensors", "model.pt", "report"} < made
    atoll("run", "tiny.toml", "--out", "run", "--resume").succeeded()
    assert {path.name for path in Path("run").iterdir()} == made
    for own in ("run/notes.txt", "run/best.pt", "run/report/notes.md"):
        Path(own).write_text("mine")
    atoll("run", "tiny.toml", "--out", "run", "--overwrite").succeeded()
    left = {str(path.relative_to("run")) for path in Path("run").rglob("*") if path.is_file()}
    assert not [name for name in left if name.startswith("model")]
    assert {name for name in left if name.startswith(("report", "notes", "best"))} == {
        *("notes.txt", "best.pt", "report/notes.md")
    }


@pytest.mark.more
def test_a_report_goes_with_the_run_that_is_replaced(atoll: Command) -> None:
    atoll("run", "tiny.toml", "--out", "run", "--set", "run.probes=['client_accuracy']").succeeded()
    atoll("report", "run").succeeded()
    atoll("run", "tiny.toml", "--out", "run", "--overwrite").succeeded()
    assert not Path("run/report").exists()


def test_an_unfinished_run_is_told(atoll: Command) -> None:
    atoll("run", "tiny.toml", "--out", "run").succeeded()
    Path("run/summary.json").unlink()
    done = atoll("export", "run")
    assert done.succeeded().startswith("run/model.safetensors")
    assert done.err == "notice: the run is not finished; this is its model after 4 events\n"


def test_bad_exports(atoll: Command) -> None:
    assert atoll("export", "nowhere").refused() == "nowhere does not exist"
    atoll("run", "tiny.toml", "--out", "run").succeeded()
    assert atoll("export", "run", "--cluster", "5").refused() == "cluster 5: run has the clusters 0 to 1"
    told = "--format pt: unknown, did you mean 'state-dict'? Allowed: onnx, safetensors, state-dict"
    assert atoll("export", "run", "--format", "pt").refused() == told
    assert "is a folder; give the path of a file" in atoll("export", "run", "--out", "run").refused()
    told = "--out run/summary.json: is a file of the run in run; give another path"
    assert atoll("export", "run", "--out", "run/summary.json").refused() == told
    assert "run/metrics.jsonl: is a file of the run" in atoll("report", "run", "--csv", "run/metrics.jsonl").refused()
    assert json.loads(atoll("export", "run", "--out", "m.pt", "--json").succeeded())["format"] == "state-dict"
    assert json.loads(atoll("export", "run", "--out", "m.pth", "--json").succeeded())["format"] == "state-dict"
    told = "--out m.onx: must end in .safetensors, .pt, .onnx, .pth, unless --format names the format"
    assert atoll("export", "run", "--out", "m.onx").refused() == told
    told = "tiny.toml is a file, or lies below one (tiny.toml); give the path of a folder"
    assert atoll("export", "run", "--out", "tiny.toml/m.pt").refused() == told


def test_a_folder_of_clients_is_trained_on(atoll: Command) -> None:
    rng = np.random.default_rng(0)
    for k in range(6):
        (Path("people") / f"client-{k}").mkdir(parents=True)
        labels = rng.integers(3, size=20)
        inputs = np.eye(3)[labels] + 0.1 * rng.normal(size=(20, 3))
        np.savez(Path("people") / f"client-{k}" / "train.npz", inputs=inputs, targets=labels)
        np.savez(Path("people") / f"client-{k}" / "test.npz", inputs=inputs, targets=labels)
    changes = ["data.dataset=folder", "data.root=people", "data.partition=natural", "data.samples=", "local.lr=0.3"]
    words = [word for change in [*changes, "rounds=10"] for word in ("--set", change)]
    atoll("run", "tiny.toml", "--out", "run", *words).succeeded()
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["test_accuracy"] > 0.9
    atoll("run", "tiny.toml", "--out", "ifca", *words, "--set", "method.name=ifca").succeeded()
    (shown,) = json.loads(atoll("data", "inspect", "tiny.toml", "--json", *words).succeeded())
    assert shown["samples"] == [20] * 6


@pytest.mark.slow
def test_the_page_on_other_programs(folder: Path) -> None:
    """Its files and commands, and its last snippet, in order."""
    page = ROOT / "docs" / "interop.md"
    assert write_files(page, folder) == [
        *("make_people.py", "people.toml", "letters.py", "letters.toml", "lora.py", "lora.toml")
    ]
    shell("\n".join(block.text for block in blocks(page, "sh")), folder)
    (folder / "last.py").write_text(blocks(page, "python")[-1].text)
    assert shell("python last.py", folder) == "people.onnx 15010 True\n"
