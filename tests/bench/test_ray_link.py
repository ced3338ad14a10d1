"""Two Ray nodes in network namespaces with a limited link: bytes as the link counts them, and a link that dies."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "ray_link.py"
MLP_BYTES = 636_040
CLIENTS = 240


def can_make_namespaces() -> bool:
    if not shutil.which("tc") or not shutil.which("ip") or os.geteuid():
        return False
    space = f"atoll-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", space], check=False, capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
    return made


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")
def test_sums_cross_the_link_and_nothing_is_lost_or_counted_twice_when_it_dies(tmp_path: Path) -> None:
    if not can_make_namespaces():
        pytest.skip("needs root and network namespaces")
    command = [sys.executable, str(BENCHMARK), "--out", str(tmp_path), "--clients", f"{CLIENTS}"]
    subprocess.run(command, check=True, timeout=900)
    singly, sums, cut = json.loads((tmp_path / "link.json").read_text(encoding="utf-8"))
    assert singly["same"]
    assert sums["same"]
    assert cut["same"]
    assert singly["to_driver"] > CLIENTS / 4 * MLP_BYTES  # two of three workers are beyond the link
    assert sums["to_driver"] < singly["to_driver"] / 4
