"""`atoll verify` says that runs repeat, and notices when they do not."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.executors.cores.cores_executor import Cores
from tests.cli.conftest import Command


def test_runs_repeat_on_this_machine(atoll: Command) -> None:
    checks = json.loads(atoll("verify", "--json").succeeded())
    assert len(checks) >= 10
    for check in checks:
        assert check["holds"]
        if check["must_be_equal_to"] == "bits":
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
