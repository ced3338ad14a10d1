"""`atoll reproduce`: runs, resumes, makes a page of what is there, and goes on where data is missing or runs fail."""

import json
from pathlib import Path

import pytest

from atoll.reproduce import running
from atoll.support.errors import RunError
from tests.cli.conftest import Command


def test_a_figure_from_nothing_to_a_page(atoll: Command) -> None:
    done = atoll("reproduce", "quickstart", "--jobs", "1", "--json")
    (result,) = json.loads(done.succeeded())["recipes"]
    assert (result["recipe"], result["runs"], result["finished"], result["claims"]) == ("quickstart", 2, 2, [])
    assert result["seconds"] > 0
    page = Path("runs/reproduce-quickstart-tiny/index.html").read_text()
    assert page.count("data:image/svg+xml") == 1
    refused = atoll("reproduce", "quickstart", "--jobs", "1").refused()
    assert "holds a run already; add --resume to continue it" in refused
    before = Path("runs/reproduce-quickstart-tiny/quickstart/fedavg/metrics.jsonl").stat().st_mtime_ns
    again = atoll("reproduce", "quickstart", "--jobs", "1", "--resume")
    assert again.err.count("(was finished)") == 2
    assert Path("runs/reproduce-quickstart-tiny/quickstart/fedavg/metrics.jsonl").stat().st_mtime_ns == before
    Path("runs/reproduce-quickstart-tiny/index.html").unlink()
    assert "0 claims: no claims" in atoll("reproduce", "quickstart", "--no-run").succeeded()
    assert Path("runs/reproduce-quickstart-tiny/index.html").read_text() == page
    told = atoll("reproduce", "quickstart", "--scale", "small", "--out", "runs/reproduce-quickstart-tiny").refused()
    assert "holds runs at scale tiny; add --scale tiny" in told


@pytest.mark.slow
def test_claims_in_two_processes(atoll: Command) -> None:
    done = atoll("reproduce", "cfl-mgd-regression", "--jobs", "2", "--json")
    made = json.loads(done.succeeded())
    (result,) = made["recipes"]
    (claim,) = result["claims"]
    assert (claim["status"], claim["source"]) == ("pass", "Theorem 1")
    assert min(claim["ours"]) > 10
    assert result["paper_seconds"] > result["seconds"]
    assert "Theorem 1" in Path(made["page"]).read_text()


def test_data_that_is_not_there_is_told_once(atoll: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(name: str, base: Path) -> Path:
        raise RunError(f"{name} cannot be downloaded")

    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    monkeypatch.setattr("atoll.data.datasets.download", offline)
    done = atoll("reproduce", "cfl-mgd-table-2", "--jobs", "1", "--json")
    (result,) = json.loads(done.succeeded())["recipes"]
    assert done.err.splitlines() == ["not run: cifar10 cannot be downloaded", "not run: mnist cannot be downloaded"]
    assert {claim["status"] for claim in result["claims"]} == {"not run"}
    assert result["finished"] == 0
    assert "cifar10 cannot be downloaded" in Path("runs/reproduce-cfl-mgd-table-2-tiny/index.html").read_text()


def test_a_failed_run_is_told_and_the_others_go_on(atoll: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    train = running._train

    def fail_one(task: running.Task) -> bool:
        if task.title == "FedAvg":
            raise RunError("the disk is full")
        return train(task)

    monkeypatch.setattr(running, "_train", fail_one)
    done = atoll("reproduce", "quickstart", "--jobs", "1", "--json")
    assert done.code == 1
    assert "failed: quickstart, FedAvg: the disk is full" in done.err
    (result,) = json.loads(done.out)["recipes"]
    assert (result["finished"], result["problems"]) == (1, ["quickstart, FedAvg: the disk is full"])


def test_bad_input(atoll: Command) -> None:
    assert "did you mean 'fedcluster'" in atoll("reproduce", "fedclustr").refused()
    assert atoll("reproduce", "all", "--scale", "huge").refused() == "--scale huge: must be tiny, small, paper"
    assert atoll("reproduce", "all", "--jobs", "0").refused() == "--jobs 0: must be at least 1"
    assert "holds other files than reproduced figures" in atoll("reproduce", "quickstart", "--out", ".").refused()
    assert "holds no reproduced figures" in atoll("reproduce", "quickstart", "--no-run").refused()
    assert "holds other files" in atoll("reproduce", "quickstart", "--out", "tiny.toml").refused()
