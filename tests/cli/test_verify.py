"""`atoll verify` says that runs repeat, and notices when they do not."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.executors.cores.cores_executor import Cores
from tests.cli.conftest import TINY, Command


def test_runs_repeat_on_this_machine(atoll: Command) -> None:
    checks = json.loads(atoll("verify", "--json").succeeded())
    assert len(checks) >= 10
    for check in checks:
        assert check["holds"]
        if check["must"] == "bits":
            assert check["difference"] == 0
            assert check["rows_equal"]
    assert any(check["difference"] > 0 for check in checks), "rounding shows somewhere, or nothing is compared"


@pytest.mark.more
def test_a_worker_that_computes_something_else_is_found(atoll: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Cores.train

    def off_by_one_bit(self: Cores, cohorts: Sequence[Cohort], *rest: Any) -> list[ClusterUpdate]:
        averages = train(self, cohorts, *rest)
        tensor = next(iter(averages[0].model.values()))
        tensor[0] = torch.nextafter(tensor[0], torch.tensor(torch.inf))
        return averages

    monkeypatch.setattr(Cores, "train", off_by_one_bit)
    done = atoll("verify")
    assert done.code == 1
    assert "NO" in done.out


def test_a_run_repeats_with_ones_own_code_in_the_working_folder(
    atoll: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.py").write_text("def evens(population):\n    return [k % 2 for k in range(len(population))]\n")
    (folder / "own.toml").write_text(TINY.replace("clusters =", 'method = "own:evens"\nclusters ='))
    atoll("run", "own.toml", "--out", "run").succeeded()
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(folder))])
    del sys.modules["own"]
    assert atoll("verify", "run").succeeded().endswith("equal\n")
