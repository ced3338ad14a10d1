"""`atoll settings`: the lists of the documentation, in the terminal."""

import json

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("local", {"local.lr", "local.optimizer", "local.momentum"}),
        ("ifca", {"method.name", "method.clusters", "method.restarts"}),
        ("local.lr", {"local.lr"}),
        ("rounds", {"rounds"}),
        ("lr", {"local.lr", "model.name"}),  # a key, and a model
    ],
)
def test_settings_are_listed(name: str, wanted: set[str], atoll: Command) -> None:
    listed = json.loads(atoll("settings", name, "--json").succeeded())
    assert wanted <= {each["name"] for each in listed}
    assert all(each["meaning"] and each["kind"] for each in listed)
    shown = atoll("settings", name).succeeded()
    assert all(each["name"] in shown for each in listed)


def test_all_settings_are_listed_without_a_name(atoll: Command) -> None:
    every = {each["name"] for each in json.loads(atoll("settings", "--json").succeeded())}
    assert {"rounds", "local.lr", "method.restarts", "network.grid"} <= every


def test_an_unknown_name_gets_the_nearest(atoll: Command) -> None:
    told = atoll("settings", "fedvag").refused()
    assert told.startswith("'fedvag': unknown, did you mean 'fedavg'? Give a section (data, ")
