"""`atoll bench`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.cli import app
from atoll.local import precision
from atoll.support.errors import InputError
from tests.cli.conftest import Command


def test_a_case_that_is_not_there_is_refused(atoll: Command) -> None:
    sentence = atoll("bench", "--only", "resnet").refused()
    assert sentence.startswith("--only resnet: no case has this in its name; the cases are mlp, 10 clients; mlp, 100")


def test_a_processor_without_bfloat16_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "lacks_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "slowness_of_bfloat16", lambda: 6.28)
    done = CliRunner().invoke(app, ["bench", "--bfloat16", "--only", "resnet"])
    assert isinstance(done.exception, InputError)
    words = " ".join(done.stderr.split())
    assert (
        words
        == "--bfloat16: this processor has no bfloat16 products; a matrix product takes 6.3 times as long as in float32"
    )


@pytest.mark.slow
def test_it_measures_this_machine(atoll: Command, tmp_path: Path) -> None:
    found = json.loads(
        atoll("bench", "--quick", "--json", "--only", "mlp, 10 clients", "--save", str(tmp_path)).succeeded()
    )
    (kept,) = tmp_path.glob("*/*.json")
    assert json.loads(kept.read_text()) == found
    names = ["plain loop", "serial", "cores", "stacked", "matrix product"]
    assert [row["contender"] for row in found["results"]] == names
    for row in found["results"]:
        assert row["failure"] == ""
        assert len(row["seconds"]) == 3
    assert found["results"][0]["speed"] == 1
    assert found["environment"]["packages"]["torch"]
