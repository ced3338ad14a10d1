"""From settings to faults: the day's slots, and robust rules that need enough clients."""

from pathlib import Path
from typing import Any

import pytest

from atoll import Experiment, InputError, Settings
from atoll.experiment.faults import is_counted

BASE: dict[str, Any] = {"rounds": 2, "data": {"clients": 9, "samples": 12}, "model": {"name": "linear"}}


def test_slots_that_nobody_lists_are_the_last_of_the_day(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("client,slots\n" + "".join(f"{k},{k % 2}\n" for k in range(9)))
    data = BASE["data"] | {"clients_file": str(tmp_path / "clients.csv")}
    method = {"name": "fedavg", "fraction": 1.0}
    made = Experiment(Settings(**BASE | {"data": data, "method": method, "faults": {"slots_per_day": 24}}))
    assert made.method.schedule.events[0].cohort.tolist() == [0, 2, 4, 6, 8]  # runs begin at midnight


@pytest.mark.parametrize("combine", ["krum", "multi-krum"])
def test_a_robust_rule_needs_enough_clients_in_the_smallest_cohort(combine: str) -> None:
    method = {"name": "fedcluster", "fraction": 1.0, "combine": combine, "byzantine": 1}
    made = Experiment(Settings(**BASE | {"method": method, "clustering": {"clusters": 2}}))
    assert sorted(made.clustering.sizes.tolist()) == [4, 5]
    with pytest.raises(InputError, match=r"needs 2 x 1 \+ 3 = 5 clients in each cohort, the smallest has 4"):
        _ = made.method


LOSING: list[dict[str, Any]] = [
    {"dropout": 0.1},
    {"deadline_seconds": 9.0},
    {"tolerate": True},
    {"max_update_norm": 9.0},
    {"usual_norms": "note"},
    {"usual_norms": "refuse"},
]


@pytest.mark.parametrize("faults", LOSING)
def test_rows_count_what_each_setting_may_lose(faults: dict[str, Any]) -> None:
    assert is_counted(Settings(**BASE | {"faults": faults}))
    assert not is_counted(Settings(**BASE | {"faults": {"attackers": 0.2}}))


def test_moments_count_times_the_rate_with_its_factor() -> None:
    """In usual norms, so that a run at half the factor of twice the rate refuses the same results."""
    plain, doubled = (
        Experiment(method={"name": "cfl-mgd", "clusters": 2}, local=local, faults={"usual_norms": "refuse"})
        for local in ({"lr": 0.05}, {"lr": 0.1, "lr_factor": 0.5})
    )
    assert plain.method.screening is not None
    assert plain.method.screening == doubled.method.screening
