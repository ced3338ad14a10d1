"""Files of networks: matrices of seconds, tables of clients, traces; and what is wrong with bad ones."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atoll import InputError
from atoll.network.mobility import read_trace
from atoll.network.network_files import read_matrix, read_network_clients


def test_read_matrix(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes(b"\xef\xbb\xbf1,2.5\n\n3e-1,4\n")
    assert read_matrix(tmp_path / "m.csv").tolist() == [[1, 2.5], [0.3, 4]]
    for values in (np.array([1, 2]), np.array([[1.5]], np.float32)):
        np.save(tmp_path / "m.npy", values)
        assert read_matrix(tmp_path / "m.npy").tolist() == values.tolist()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1,2\n3,x\n", "row 2, column 2 is 'x'; it must be a number"),
        ("1,2\n\n3,\n", "row 2, column 2 is ''; it must be a number"),
        ("1,2\n3\n", "row 2 has 1 cells, but the first has 2"),
        ("1,2\n-3,4\n", "row 2, column 1 is -3.0; seconds must be finite and at least 0"),
        ("1,nan\n", "row 1, column 2 is nan; seconds must be finite"),
        ("\n", "has no numbers"),
        ("", "has no numbers"),
    ],
)
def test_bad_matrix_files(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        read_matrix(tmp_path / "m.csv")
    assert str(caught.value).startswith(f"{tmp_path / 'm.csv'}: {fault}")


def test_bad_numpy_files(tmp_path: Path) -> None:
    for values in (np.array([{}], dtype=object), np.array(["a"]), np.ones((1, 1, 1)), np.array([1j])):
        np.save(tmp_path / "m.npy", values, allow_pickle=True)
        with pytest.raises(InputError, match=r"m\.npy: (is not a \.npy file of|must hold one array of) numbers"):
            read_matrix(tmp_path / "m.npy")
    for content in (b"", b"not numpy", (tmp_path / "m.npy").read_bytes()[:20]):
        (tmp_path / "m.npy").write_bytes(content)
        with pytest.raises(InputError, match=r"m\.npy: is not a \.npy file of numbers"):
            read_matrix(tmp_path / "m.npy")
    for name in ("no.csv", "no.npy"):
        with pytest.raises(InputError, match=f"{name}: "):
            read_matrix(tmp_path / name)
    with pytest.raises(InputError, match=r"m\.txt: must be a \.csv or a \.npy file"):
        read_matrix(tmp_path / "m.txt")


CLIENTS: dict[str, list[float]] = {
    "client": [2, 0, 1],
    "x": [20.0, 0.5, 10.0],
    "y": [21.0, 1.0, 11.0],
    "power": [70, 50, 60],
    "seconds_per_sample": [0.03, 0.01, 0.02],
    "samples": [300, 100, 200],
}


def write(path: Path, columns: Mapping[str, Any]) -> Path:
    if path.suffix == ".parquet":
        typed = {name: pa.array(cells, None if cells else pa.int64()) for name, cells in columns.items()}
        pq.write_table(pa.table(typed), path)
    else:
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("name", ["clients.csv", "clients.parquet"])
def test_a_table_of_clients_in_any_order(tmp_path: Path, name: str) -> None:
    table = read_network_clients(write(tmp_path / name, CLIENTS))
    assert table.clients_xy is not None
    assert table.watts is not None
    assert table.seconds_per_sample is not None
    assert table.samples is not None
    assert table.clients == 3
    assert table.clients_xy.tolist() == [[0.5, 1], [10, 11], [20, 21]]
    assert table.watts.tolist() == [0.05, 0.06, 0.07]
    assert table.seconds_per_sample.tolist() == [0.01, 0.02, 0.03]
    assert table.samples.tolist() == [100, 200, 300]
    assert table.samples.dtype == np.int64
    few = {key: CLIENTS[key] for key in ("client", "seconds_per_sample")}
    table = read_network_clients(write(tmp_path / name, few), required=["seconds_per_sample"])
    assert (table.clients_xy, table.watts, table.samples) == (None, None, None)


@pytest.mark.parametrize("name", ["clients.csv", "clients.parquet"])
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"client": [2, 0, 3]}, "client 1 is missing; column 'client' must hold 0 to N - 1, each once"),
        ({"client": [1, 0, 1]}, "client 1 is in row 1 and again in row 3; each must have one row"),
        ({"client": [1, 0, -2]}, "column 'client', row 3 is -2; it must be a whole number of at least 0"),
        ({"client": [1, 0, 2.5]}, "column 'client', row 3 is 2.5; it must be a whole number of at least 0"),
        ({"power": [70, 0, 60]}, "column 'power', row 2 is 0; it must be positive"),
        ({"seconds_per_sample": [0.1, 0.2, -0.3]}, "column 'seconds_per_sample', row 3 is -0.3; it must be positive"),
        ({"samples": [1, 0, 1]}, "column 'samples', row 2 is 0; it must be a whole number of at least 1"),
        ({"x": [1.0, math.nan, 2.0]}, "column 'x', row 2 is nan; it must be a finite number"),
        ({"y": [math.inf, 1.0, 2.0]}, "column 'y', row 1 is inf; it must be a finite number"),
        (
            {"hue": [1, 2, 3]},
            "unknown column 'hue'; allowed are client, x, y, power, seconds_per_sample, samples, upload_seconds",
        ),
        ({"upload_seconds": [1, -1, 1]}, "column 'upload_seconds', row 2 is -1; it must be at least 0"),
        ({"y": None}, "has no column 'y'; its columns are client, x, power, seconds_per_sample, samples"),
        ({"client": None}, "has no column 'client'; its columns are x, y, power, seconds_per_sample, samples"),
        ({key: [] for key in CLIENTS}, "has no rows"),
    ],
)
def test_bad_tables_of_clients(tmp_path: Path, name: str, changes: dict[str, Any], fault: str) -> None:
    columns = {key: value for key, value in (CLIENTS | changes).items() if value is not None}
    with pytest.raises(InputError) as caught:
        read_network_clients(write(tmp_path / name, columns))
    assert str(caught.value) == f"{tmp_path / name}: {fault}"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"client,x\n0,a\n", "column 'x', row 1 is 'a'; it must be a number"),
        (b"client,x\n0,1\n1,\n", "column 'x', row 2 is ''; it must be a number"),
        (b"client;x\n0;1\n", "its columns are separated by ';'; use commas"),
        (b"client,x\n0,1\n1\n", "row 2 has 1 cells, but the header has 2"),
        (b"client,x\n0,1\n", "has only one of the columns 'x' and 'y'"),
        (b"client,client\n0,0\n", "has the column 'client' twice"),
        (b"", "is empty"),
        (b"\xff\xfe", "is not UTF-8; save the file as UTF-8"),
        (b'client\n"0', "cannot be read ("),
    ],
)
def test_bad_csv_files(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "clients.csv").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_network_clients(tmp_path / "clients.csv", required=[])
    assert str(caught.value).startswith(f"{tmp_path / 'clients.csv'}: {fault}")


def test_bad_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "clients.parquet"
    for column, fault in [
        (pa.array([1.0, None]), "column 'x', row 2 is empty; it must be a number"),
        (pa.array(["a", "b"]), "column 'x' has the type string; it must hold numbers"),
    ]:
        pq.write_table(pa.table({"client": [0, 1], "x": column}), path)
        with pytest.raises(InputError) as caught:
            read_network_clients(path, required=["x"])
        assert str(caught.value) == f"{path}: {fault}"
    path.write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"clients\.parquet: cannot be read"):
        read_network_clients(path)
    with pytest.raises(InputError, match=r"no\.parquet: cannot be read"):
        read_network_clients(tmp_path / "no.parquet")
    with pytest.raises(InputError, match=r"clients\.txt: must be a \.csv or a \.parquet file"):
        read_network_clients(tmp_path / "clients.txt")


MOVES = {"round": [5, 0, 0, 2], "client": [1, 1, 0, 1], "x": [9, 1, 0, 4], "y": [9, 2, 0, 5]}


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_a_trace_from_a_file(tmp_path: Path, name: str) -> None:
    trace = read_trace(write(tmp_path / name, MOVES))
    assert trace.clients == 2
    assert [trace.positions(round)[1].tolist() for round in (0, 1, 2, 4, 5, 99)] == [
        [1, 2], [1, 2], [4, 5], [4, 5], [9, 9], [9, 9],
    ]  # fmt: skip
    assert trace.positions(99)[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"round": [5, 1, 0, 2]}, "client 1 has no position at round 0; every client needs one"),
        ({"client": [3, 1, 0, 1]}, "client 2 has no position at round 0; every client needs one"),
        ({"round": [2, 0, 0, 2]}, "rows 1 and 4 both give a position of client 1 at round 2"),
        ({"round": [5, 0, 0, -2]}, "column 'round', row 4 is -2; it must be a whole number of at least 0"),
        ({"x": [9, 1, "nan", 4]}, "column 'x', row 3 is nan; it must be a finite number"),
    ],
)
def test_bad_traces(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    path = write(tmp_path / "trace.csv", MOVES | changes)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert str(caught.value) == f"{path}: {fault}"
