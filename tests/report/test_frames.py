"""Runs as frames of pandas and as files of rows, against rows that were written by hand."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import atoll
from atoll.report.reading.runs import find_runs
from atoll.report.tables.frames import columns_as_csv, columns_as_parquet, columns_of_runs
from atoll.support.errors import InputError
from tests.made_runs import make_rows, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "sweep/deep/a", make_rows(3, own=0.5), local={"lr": 0.1})
    write_run(tmp_path / "sweep/deep/b", make_rows(2), local={"lr": 0.2}, data={"dataset": "digits", "mean": [1, 2]})
    own = {"own": {"clients": [0, 3], "values": [0.25, 1.0]}, "event": 2, "round": 1}
    (tmp_path / "sweep/deep/a/clients.json").write_text(json.dumps(own))
    return tmp_path


def test_a_row_a_probe_with_the_settings_that_differ(folder: Path) -> None:
    pytest.importorskip("pandas")
    frame = atoll.read_runs(folder)
    assert [*frame.columns[:6]] == ["run", "panel", "folder", "local.lr", "data.mean", "event"]
    assert frame["run"].tolist() == ["a"] * 3 + ["b"] * 2
    assert frame["local.lr"].tolist() == [0.1] * 3 + [0.2] * 2
    assert frame["data.mean"].tolist()[-1] == "[1, 2]"
    assert frame["round"].tolist() == [0, 1, 2, 0, 1]
    assert frame["own"].isna().tolist() == [False] * 3 + [True] * 2
    assert len(atoll.read_runs(folder / "sweep/deep/a", folder / "sweep/deep/b")) == 5


def test_runs_at_several_levels_are_all_there(folder: Path) -> None:
    """As where a sweep was put beside single runs."""
    pytest.importorskip("pandas")
    write_run(folder / "sweep/c", make_rows(1), local={"lr": 0.3})
    write_run(folder / "sweep/deep/er/d", make_rows(1), local={"lr": 0.4})
    write_run(folder / "sweep/study/e", make_rows(1), local={"lr": 0.5})
    (folder / "sweep/study/experiment.json").write_text('{"runs": ["e"]}')
    assert sorted({*atoll.read_runs(folder)["run"]}) == ["a", "b", "c", "d", "e"]


def test_a_row_a_client(folder: Path) -> None:
    pytest.importorskip("pandas")
    frame = atoll.read_runs(folder, of="clients")
    assert frame[["run", "local.lr", "client", "own"]].to_numpy().tolist() == [["a", 0.1, 0, 0.25], ["a", 0.1, 3, 1.0]]


def test_a_row_an_event(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    settings = {
        "rounds": 3,
        "data": {"clients": 6},
        "method": {"name": "fedavg", "fraction": 0.5},
        "run": {"executor": "serial"},
    }
    result = atoll.run(settings, tmp_path / "r")
    frame = atoll.read_runs(tmp_path, of="events")
    assert frame["clients"].tolist() == [3] * 3
    assert frame["virtual_time"].iloc[-1] == result.history["virtual_time"][-1]


def test_rows_in_files(folder: Path) -> None:
    columns = columns_of_runs(find_runs([folder / "sweep/deep"]))
    lines = columns_as_csv(columns).splitlines()
    assert lines[0].startswith("run,panel,folder,local.lr,data.mean,event,round,")
    assert len(lines) == 6
    (folder / "t.parquet").write_bytes(columns_as_parquet(columns))
    table = pq.read_table(folder / "t.parquet")
    assert (table.num_rows, table["local.lr"].to_pylist()[-1], table["own"].to_pylist()[-1]) == (5, 0.2, None)


def test_what_is_no_run_is_told(folder: Path) -> None:
    pytest.importorskip("pandas")
    with pytest.raises(InputError, match=r"of = 'rows': must be .probes. or .clients. or .events."):
        atoll.read_runs(folder, of="rows")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a run, and no folder in it is one"):
        atoll.read_runs(Path(__file__).parent)
    (folder / "sweep/deep/a/clients.json").write_text('{"own": {"clients": ["x"], "values": [1]}}')
    with pytest.raises(InputError, match=r"clients.json: cannot be read \(clients are whole numbers\)"):
        atoll.read_runs(folder, of="clients")
