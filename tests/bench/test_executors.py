"""`benchmarks/executors.py`: how fast this machine trains."""

import json
from pathlib import Path

import executors
import pytest

from atoll.support.errors import InputError


def test_a_case_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        executors.main(["--only", "resnet"])
    sentence = "--only resnet: no case has this in its name; the cases are mlp, 10 clients; mlp, 100"
    assert str(refused.value).startswith(sentence)


def test_a_processor_without_bfloat16_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(executors, "lacks_bfloat16", lambda: True)
    with pytest.raises(InputError):
        executors.main(["--bfloat16", "--only", "resnet"])
    words = " ".join(capsys.readouterr().err.split())
    assert words == "--bfloat16: slower than float32, as this processor has no bfloat16 arithmetic"


@pytest.mark.slow
def test_it_measures_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executors.main(["--quick", "--json", "--only", "mlp, 10 clients", "--save", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    (kept,) = tmp_path.glob("*/*.json")
    assert json.loads(kept.read_text()) == found
    names = ["plain loop", "serial", "cores", "stacked", "matrix product"]
    assert [row["contender"] for row in found["results"]] == names
    for row in found["results"]:
        assert row["failure"] == ""
        assert len(row["seconds"]) == 3
    assert found["results"][0]["speed"] == 1
    assert found["environment"]["packages"]["torch"]
