"""The benchmark of GPUs, tried out without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def call(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, check=False)


@pytest.mark.more
def test_all_figures_come_in_one_file(tmp_path: Path) -> None:
    done = call("--device", "cpu", "--quick", "--out", str(tmp_path / "gpu.json"))
    assert not done.returncode, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["matrix_product_gflops"].keys() == {"float32", "bfloat16"}
    measured = [(each["executor"], each["precision"]) for each in found["results"]]
    assert measured == [("stacked", "float32"), ("stacked", "bfloat16"), ("serial", "float32")]
    assert all(each["gflops"] > 0 and len(each["seconds"]) == 5 for each in found["results"])
    assert done.stdout.count(" s a round") == 3


@pytest.mark.more
def test_it_goes_on_with_what_time_was_not_left_for(tmp_path: Path) -> None:
    words = "--device", "cpu", "--quick", "--out", str(tmp_path / "gpu.json")
    done = call(*words, "--minutes", "0")
    assert not done.returncode
    assert done.stdout.count("no time was left") == 3
    assert not call(*words).returncode
    found = json.loads((tmp_path / "gpu.json").read_text())
    del found["results"][1]
    found["results"][0]["failure"] = "the GPU was lost"
    (tmp_path / "gpu.json").write_text(json.dumps(found))
    done = call(*words)
    assert done.stdout.count(" s a round") == 2
    measured = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert [each.get("failure") for each in measured] == [None] * 3
    (tmp_path / "gpu.json").write_text(json.dumps({**found, "device": "another"}))
    done = call(*words)
    assert done.returncode == 2
    assert "has figures of another, not of cpu, quick; name another file" in done.stderr
    assert "invalid choice: 'cuda:0'" in call("--device", "cuda:0", "--out", str(tmp_path / "gpu.json")).stderr


@pytest.mark.more
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_card(tmp_path: Path) -> None:
    done = call("--out", str(tmp_path / "gpu.json"))
    assert done.returncode == 2
    assert "--device cuda: PyTorch finds no GPU here" in done.stderr
    assert not list(tmp_path.iterdir())
