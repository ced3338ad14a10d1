"""The race of a checkout against another commit's."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.racing import RaceResult

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import compare

    return compare


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ((2.0, 2.2, 2.1, 1.9, 2.0), "2.00 (1.90 to 2.20), faster"),
        ((0.5, 0.6, 0.5, 0.4, 0.5), "0.50 (0.40 to 0.60), slower"),
        ((1.2, 0.8, 1.0, 0.9, 1.1), "1.00 (0.80 to 1.20), no difference seen"),
    ],
)
def test_a_ratio_comes_with_its_interval(compare: object, before: tuple[float, ...], told: str) -> None:
    now, then = (RaceResult("case", "serial", seconds) for seconds in ((1.0,) * 5, before))
    assert compare.ratio(now, then) == told  # type: ignore[attr-defined]


@pytest.mark.more
def test_a_commit_that_is_not_there_is_refused() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "compare.py"), "--base", "nothing", "--only", "mlp, 10"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert done.stderr.startswith("--base nothing: ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_both_trees_train_in_one_race() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "compare.py"), "--base", "HEAD", "--only", "mlp, 10 ", "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "mlp, 10 clients: times as fast as HEAD"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["serial", "cores", "stacked"]
    assert all(" to " in line for line in lines[1:])
