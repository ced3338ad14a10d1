"""A run goes on only with the files that it was begun with, and says which one is not."""

import gzip
import json
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import pytest

from atoll import Experiment, make_runs, run_events
from atoll.runs.data_files import digests_of
from atoll.runs.fingerprint import digest
from atoll.runs.run import RunProgress
from atoll.settings.validation import Settings
from atoll.support.errors import InputError

TABLE = {
    "rounds": 4,
    "data": {"dataset": "folder", "partition": "natural", "clients": 4},
    "local": {"steps": 1, "batch_size": 4},
    "clustering": {"clusters": 2},
    "model": {"name": "linear"},
    "run": {"executor": "serial", "checkpoint_every": 1},
}


def write_client(folder: Path, client: int, seed: int = 0) -> None:
    rng = np.random.default_rng((seed, client))
    np.savez(folder / f"client-{client}.npz", inputs=rng.random((10, 3)), targets=np.arange(10) % 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that stopped after its second event, of data in a folder and a table of clients."""
    (tmp_path / "data").mkdir()
    for client in range(4):
        write_client(tmp_path / "data", client)
    (tmp_path / "clients.csv").write_text("client,utc_offset\n0,1\n1,2\n2,3\n3,4\n")
    steps = begin(tmp_path)
    for progress in steps:
        if progress.events_done == 2:
            break
    steps.close()
    return tmp_path


def begin(folder: Path, root: str = "data") -> Generator[RunProgress]:
    changes = {"data": {"root": str(folder / root), "clients_file": str(folder / "clients.csv")}}
    return run_events(Experiment(make_runs(TABLE, changes=changes)[0]), folder / "run", resume=True)


def test_it_goes_on_with_the_same_files_also_elsewhere(folder: Path) -> None:
    (folder / "data").rename(folder / "moved")
    *_, last = begin(folder, "moved")
    assert last.events_done == last.events


def test_the_folder_that_a_user_s_own_function_reads_stays() -> None:
    """Which files it reads is not known, so nothing else would tell of others."""
    digests = [
        {digest(Settings(data={"dataset": dataset, "root": root})) for root in ("a", "b")}  # type: ignore[arg-type]
        for dataset in ("builtins:list", "mnist")
    ]
    assert [*map(len, digests)] == [2, 1]


def test_a_resume_that_is_refused_or_does_nothing_changes_no_settings(folder: Path) -> None:
    (folder / "other").mkdir()
    for client in range(4):
        write_client(folder / "other", client, seed=1)
    before = (folder / "run/config.toml").read_bytes()
    with pytest.raises(InputError, match="has changed since"):
        list(begin(folder, "other"))
    assert (folder / "run/config.toml").read_bytes() == before
    list(begin(folder))
    list(begin(folder, "other"))  # a finished run is only read
    assert (folder / "run/config.toml").read_bytes() == before


def test_a_file_that_is_no_data_may_change(folder: Path) -> None:
    (folder / "data" / "readme.txt").write_text("new")
    *_, last = begin(folder)
    assert last.events_done == last.events


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda folder: write_client(folder / "data", 2, seed=1), r"data.root/client-2.npz \(.*\) has changed since"),
        (lambda folder: write_client(folder / "data", 4), r"data.root/client-4.npz \(.*\) is new since"),
        (
            lambda folder: (folder / "clients.csv").write_text("client,utc_offset\n0,1\n1,2\n2,3\n3,5\n"),
            r"data.clients_file \(.*clients.csv\) has changed since",
        ),
    ],
)
def test_a_changed_file_is_named(folder: Path, change: Callable[[Path], object], told: str) -> None:
    change(folder)
    before = (folder / "run/metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=rf"^--resume: {told} .*; undo that, or add --overwrite"):
        list(begin(folder))
    assert (folder / "run/metrics.jsonl").read_bytes() == before


def test_a_packed_file_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    (settings,) = make_runs({"data": {"dataset": "mnist"}})
    plain = digests_of(settings)
    (tmp_path / f"{names[0]}.gz").write_bytes(gzip.compress((tmp_path / names[0]).read_bytes()))
    (tmp_path / names[0]).unlink()
    assert digests_of(settings) == plain
    assert list(plain) == [f"data.root/{name}" for name in names]


def test_the_one_digest_of_many_files_changes_with_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.runs.data_files.MOST_FILES", 3)
    (settings,) = make_runs(TABLE, changes={"data": {"root": str(tmp_path)}})

    def digest_with(changed: int | None) -> str:
        for client in range(4):
            write_client(tmp_path, client, seed=1 if client == changed else 0)
        found = digests_of(settings)
        assert list(found) == ["data.root"]
        return found["data.root"]

    assert digest_with(None) == digest_with(None)
    assert len({digest_with(changed) for changed in (None, 0, 1, 2, 3)}) == 5


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9] + bytes(9))])
def test_a_damaged_schedule_is_written_anew(folder: Path, damage: Callable[[Path], object]) -> None:
    whole = (folder / "run/schedule.npz").read_bytes()
    damage(folder / "run/schedule.npz")
    first, *_ = begin(folder)
    assert any("schedule.npz was missing or damaged" in warning for warning in first.warnings)
    assert (folder / "run/schedule.npz").read_bytes() == whole


def test_a_digit_that_changed_in_a_row_is_told(folder: Path) -> None:
    rows = (folder / "run/metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert all("crc32" in json.loads(row) for row in rows)
    rows[1] = rows[1].replace(b'"round": ', b'"round": 1')
    (folder / "run/metrics.jsonl").write_bytes(b"".join(rows))
    with pytest.raises(InputError, match=r"metrics.jsonl is damaged \(line 2: its checksum does not match\)"):
        list(begin(folder))


def test_a_row_cut_short_is_made_again(folder: Path) -> None:
    file = folder / "run/metrics.jsonl"
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(rows) + rows[-1][:-5])
    *_, last = begin(folder)
    assert last.events_done == last.events
    assert [json.loads(row)["event"] for row in file.read_bytes().splitlines()][: len(rows)] == [
        json.loads(row)["event"] for row in rows
    ]
