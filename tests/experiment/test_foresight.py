"""What very many rounds take is told before it is waited for."""

import tracemalloc

import pytest

from atoll.experiment import foresight
from atoll.experiment.experiment import Experiment
from atoll.settings.experiment_file import make_runs
from atoll.support.errors import InputError, SettingWarning

HIERARCHY = {"name": "hierarchical", "intra_rounds": 2}


def experiment(rounds: int, **method: object) -> Experiment:
    table = {"rounds": rounds, "data": {"clients": 6}, "local": {"steps": 2}, "method": method}
    clusters = {"clustering": {"clusters": 2}} if method.get("name") != "fedavg" else {}
    return Experiment(make_runs({**table, **clusters})[0])


@pytest.mark.parametrize(("rounds", "method"), [(10**9, {}), (10**9, {"name": "fedavg"}), (4 * 10**9, HIERARCHY)])
def test_a_schedule_that_has_no_room_is_refused(rounds: int, method: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"rounds = {rounds}: .* events takes about .* GiB of memory, but this"):
        experiment(rounds, **method).check()
    assert not tracemalloc.is_tracing()


@pytest.mark.more
def test_one_that_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "PATIENCE_SECONDS", 0.0)
    with pytest.warns(SettingWarning, match=r"rounds = 20001: making its schedule of about 20,001 events takes about"):
        experiment(20_001, name="fedavg").method  # noqa: B018


@pytest.mark.more
@pytest.mark.filterwarnings("error")
def test_few_rounds_and_ready_schedules_are_made_in_silence() -> None:
    assert len(experiment(20_001, name="fedavg").method.schedule) == 20_001


@pytest.mark.more
def test_settings_that_are_right_for_many_rounds_only_are_kept() -> None:
    assert len(experiment(20_001, name="flhc", warmup=500).method.schedule) >= 20_001
