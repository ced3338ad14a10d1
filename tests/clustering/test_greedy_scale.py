"""FedUC's clustering stays fast and small where there are many clients and aggregators."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "clustering.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its peak memory from Linux's /proc"),
]


def measured(*case: object) -> dict[str, Any]:
    """One case of the benchmark in a process with one thread."""
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARK), "--one", *map(str, case)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread)
    return dict(json.loads(made.stdout))


@pytest.mark.parametrize(("pattern", "limit_seconds"), [("censyn", 10), ("cenasy", 10), ("decsyn", 60), ("decasy", 60)])
def test_ten_thousand_clients_and_a_hundred_aggregators(pattern: str, limit_seconds: float) -> None:
    row = measured(pattern, 10_000, 100)
    assert row["seconds"] < limit_seconds
    assert row["gigabytes"] < 4


@pytest.mark.parametrize("pattern", ["censyn", "cenasy"])
def test_a_hundred_thousand_clients_and_a_thousand_aggregators(pattern: str) -> None:
    row = measured(pattern, 100_000, 1_000)
    assert row["seconds"] < 180
    assert row["gigabytes"] < 4
