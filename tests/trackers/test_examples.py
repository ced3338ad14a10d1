"""What a tracker is sent, by example."""

from atoll.settings.validation import Settings
from atoll.trackers.tracker import hyperparameters, numbers_of


def test_settings_and_numbers_by_name() -> None:
    assert hyperparameters(Settings())["local.lr"] == 0.05
    row = {"round": 1, "test_accuracy": None, "cluster_accuracy": [0.5, None], "confusion": [[1]]}
    assert numbers_of(row) == {"round": 1.0, "cluster_accuracy/0": 0.5}
