"""The JSON schema of the experiment file allows what the settings allow, and refuses what they refuse."""

import json
import tomllib
from typing import Any

import pytest

from atoll import InputError
from atoll.settings.experiment_file import make_runs, recipe_names, recipe_path
from atoll.settings.json_schema import DRAFT, experiment_schema
from atoll.settings.validation import full_model

jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = experiment_schema()
    assert schema["$schema"] == DRAFT
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid(name: str, validator: Any) -> None:
    path = recipe_path(name)
    assert path is not None
    assert [error.message for error in validator.iter_errors(tomllib.loads(path.read_text()))] == []


BAD = """
seed = -1
rounds = "many"
spede = 1
local.lr = 0
local = { optimizer = "momentum", momentum = 1 }
local.batch_size = "half"
data.rotations = 3
data.clints = 3
network.grid = [2]
network.seconds_per_sample = [1.0]
method.patern = "cenasy"
run.executor = "parallel"
run.trackers = ["tensorbord"]
clustering = "random"
runs = []
runs = [{ spede = 1 }]
runs = [{ local.lrr = 1 }]
runs = [{ scales.small.spede = 1 }]
runs = [{ runs = [] }]
panels = [{ local.lrr = 1 }]
panels = {}
scales.small.spede = 1
scales = [1]
name = "../up"
"""


@pytest.mark.parametrize("text", BAD.strip().splitlines())
def test_what_is_refused_is_invalid(text: str, validator: Any) -> None:
    """Twin: Atoll itself, which reads a scale's overlay only with `--scale`."""
    table = tomllib.loads(text)
    assert list(validator.iter_errors(table))
    with pytest.raises(InputError):
        make_runs(table, "small" if "small" in text else None)


GOOD = """
local.lr = 1
local = { optimizer = "momentum", momentum = 0.5 }
local.batch_size = "full"
network.grid = [2, 5]
network.seconds_per_sample = [0.1, 0.2]
network.seconds_per_sample = 0.1
clustering = { method = "feduc", frequencies = "transfer" }
clustering = { method = "feduc", frequencies = [1.0, 2] }
model = { name = "logging:basicConfig", any = { thing = [1] } }
panels = [{ panel = "A", local.lr = 1.0 }]
runs = [{ label = "a", scales.small.rounds = 1 }]
scales.small.data.clients = 3
run.trackers = ["tensorboard", "wandb"]
"""


@pytest.mark.parametrize("text", GOOD.strip().splitlines())
def test_what_is_allowed_is_valid(text: str, validator: Any) -> None:
    table = tomllib.loads(text)
    assert [error.message for error in validator.iter_errors(table)] == []
    make_runs(table)


def test_every_setting_is_described() -> None:
    """Editors show the descriptions."""
    schema = experiment_schema()
    text = json.dumps(schema)
    assert '"null"' not in text
    assert "$defs" not in text
    for name, field in full_model().model_fields.items():
        inside = getattr(field.annotation, "model_fields", None)
        if inside is None:
            assert schema["properties"][name]["description"] == field.description
            continue
        section = schema["definitions"][getattr(field.annotation, "__name__", "")]
        assert {key: value["description"] for key, value in section["properties"].items()} == {
            key: each.description for key, each in inside.items()
        }
