"""What a newcomer types wrongly is told with what is allowed."""

from typing import Any

import pytest

from atoll.experiment.experiment import Experiment
from atoll.settings.experiment_file import make_runs
from atoll.support.errors import InputError


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method": {"name": "ifca", "clusters": 101}}, r"method.clusters = 101: must be at most data.clients = 100$"),
        ({"local": {"schedule": "cosin"}}, r"local.schedule = 'cosin': unknown, did you mean 'cosine'\?"),
        ({"run": {"device": "gpu"}}, r"run.device = 'gpu': is not available here \(no such device\); use 'cpu'$"),
    ],
)
def test_a_setting_is_refused_with_what_is_allowed(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Experiment(make_runs({}, changes=changes)[0]).check()


def test_as_many_models_as_clients_are_allowed() -> None:
    Experiment(make_runs({}, changes={"method": {"name": "ifca", "clusters": 100}})[0]).check()


def test_an_experiment_without_scales_says_so() -> None:
    with pytest.raises(InputError, match=r"--scale small: this experiment has no scales; leave it out$"):
        make_runs({}, scale="small")
