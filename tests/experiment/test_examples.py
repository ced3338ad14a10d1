"""Settings as text and as objects, by example."""

import atoll
from atoll.settings.experiment_file import parse_changes
from atoll.settings.given_objects import named
from atoll.settings.signatures import asks_for


def test_changes_are_toml_or_text() -> None:
    changes = parse_changes(["local.lr=0.1", "method.name=fedavg", "label=7", "data.samples="])
    section = {"local": {"lr": 0.1}, "method": {"name": "fedavg"}}
    assert changes == {**section, "label": "7", "data": {"samples": None}}


def test_objects_have_names() -> None:
    given = {"clustering": "random", "method": {"name": atoll.fedavg, "fraction": 0.5}}
    assert named(given) == {"clustering": {"method": "random"}, "method": {"name": "fedavg", "fraction": 0.5}}
    assert asks_for(lambda population, rng: None, "rng")
