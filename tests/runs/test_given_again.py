"""A run whose data and functions were passed as objects, read by a process that has them."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
import numpy as np
import torch
import atoll

rng = np.random.default_rng(0)
inputs = rng.normal(size=(80, 4)).astype(np.float32)
labels = (inputs[:, 0] > 0).astype(int)
mine = atoll.Dataset("mine", inputs, labels, inputs, labels, classes=2)

def layer(shape, classes):
    return torch.nn.Linear(4, classes)

"""
FIRST = RUN + 'atoll.run(atoll.Settings(), "run", data={"dataset": mine, "clients": 10}, model=layer, rounds=2)\n'
AGAIN = RUN + (
    'result = atoll.read_result("run", data=mine, model=layer)\n'
    "print((result.predict(inputs) == labels).mean() == result.history['test_accuracy'][-1])\n"
)
WITHOUT = RUN + 'atoll.read_result("run")\n'


def outcome(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.more
def test_a_run_of_objects_is_read_by_those_who_have_them(tmp_path: Path) -> None:
    assert outcome(FIRST, tmp_path).returncode == 0
    assert outcome(AGAIN, tmp_path).stdout == "True\n"
    assert "was passed directly by another script or notebook; pass it again" in outcome(WITHOUT, tmp_path).stderr
