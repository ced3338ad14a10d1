"""Tables as data sets, against numbers worked out by hand, and what is wrong with tables in one sentence."""

import importlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import atoll
from atoll import Dataset, InputError, run
from atoll.data.named_datasets import read_table
from atoll.experiment.client_data import make_clients, make_test_clients
from atoll.experiment.experiment import Experiment
from atoll.settings.validation import validate

COLUMNS: dict[str, list[Any]] = {
    "who": ["ann", "bob", "ann", "bob", "ann", "cid", "cid", "ann"],
    "where": ["n", "s", "n", "s", "n", "n", "n", "n"],
    "use": ["train", "train", "train", "test", "test", "train", "test", "validation"],
    "age": [1.0, 3.0, 5.0, 100.0, None, 7.0, 3.0, 1000.0],
    "job": ["x", "y", "x", "z", "y", None, "x", "w"],
    "ill": ["no", "yes", "no", "no", "yes", "yes", "yes", "no"],
}
ROLES: dict[str, Any] = {"target": "ill", "client": "who", "group": "where", "split": "use"}


def numbers(held: Any) -> Any:
    assert held is not None
    return held.tolist()


def write_csv(table: pa.Table, path: Path) -> Path:
    import pyarrow.csv

    pyarrow.csv.write_csv(table, path.with_suffix(".csv"))
    return path.with_suffix(".csv")


def write_parquet(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=3)
    return path.with_suffix(".parquet")


def write_file(table: pa.Table, path: Path) -> Path:
    pa.feather.write_feather(table, str(path.with_suffix(".feather")), chunksize=3)
    return path.with_suffix(".feather")


def write_stream(table: pa.Table, path: Path) -> Path:
    with pa.ipc.new_stream(str(path.with_suffix(".arrow")), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path.with_suffix(".arrow")


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Dataset]:
    def read(columns: dict[str, Any] | str, **settings: Any) -> Dataset:
        if isinstance(columns, str):
            path = tmp_path / "table.csv"
            path.write_bytes(columns.encode("latin-1"))
        else:
            path = write_parquet(pa.table(columns), tmp_path / "table")
        return read_table(str(path), **settings)

    return read


@pytest.mark.parametrize("write", [write_csv, write_parquet, write_file, write_stream])
def test_encoders_go_by_training_rows_alone(tmp_path: Path, write: Callable[[pa.Table, Path], Path]) -> None:
    data = read_table(str(write(pa.table(COLUMNS), tmp_path / "t")), **ROLES, missing="flag")
    ages = np.array([1, 3, 5, 7.0])  # the mean of all eight would be another
    known = (ages - ages.mean()) / ages.std()
    jobs = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]  # x, y, missing: no z, which only a test row has
    assert data.names["inputs"] == ("age", "job = x", "job = y", "job is missing")
    np.testing.assert_allclose(data.inputs, np.column_stack([known, jobs]), rtol=1e-6)
    tested = [[(100 - 4) / ages.std(), 0, 0, 0], [0, 0, 1, 0], [-1 / ages.std(), 1, 0, 0]]
    np.testing.assert_allclose(data.test_inputs, tested, rtol=1e-6)
    assert data.names["targets"] == ("no", "yes")
    assert data.targets.tolist() == [0, 1, 0, 1]
    assert (numbers(data.owners), numbers(data.test_owners)) == ([0, 1, 0, 2], [1, 0, 2])
    assert (numbers(data.groups), data.names["groups"]) == ([0, 1, 0, 0], ("n", "s"))


def test_a_categorical_column_is_categories_whatever_its_values(tmp_path: Path) -> None:
    ward = pa.array([0, 2, 1, 0, 2, 1, 0, 0]).dictionary_encode()
    path = write_file(pa.table({**COLUMNS, "age": list(range(8)), "job": ward}), tmp_path / "table")
    found = read_table(str(path), **ROLES, inputs=["age", "job"])
    assert found.names["inputs"] == ("age", "job = 0", "job = 1", "job = 2")


def test_rows_with_a_missing_value_can_be_dropped_or_filled(table: Callable[..., Dataset]) -> None:
    filled = table(COLUMNS, **ROLES, missing="fill")
    assert (filled.shape, filled.test_inputs[1].tolist(), filled.inputs[3, 1:].tolist()) == ((3,), [0, 0, 1], [0, 0])
    dropped = table(COLUMNS, **ROLES, missing="drop", min_samples=1)  # of cid only the test row is left
    assert (len(dropped), len(dropped.test_inputs)) == (3, 1)
    assert dropped.names["owners"] == ("ann", "bob")
    with pytest.raises(
        InputError, match=r"data.missing = 'refuse': column 'age' lacks values, at least 1; 'fill' puts in"
    ):
        table(COLUMNS, **ROLES)


def test_numbers_are_standardised_as_numpy_would_also_far_from_zero(tmp_path: Path) -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=20_000)
    data = read_table(str(write_csv(pa.table({"x": values, "y": values}), tmp_path / "t")), target="y")
    rows = np.arange(len(values)) % 5 != 4
    expected = (values[rows] - values[rows].mean()) / values[rows].std()
    np.testing.assert_allclose(data.inputs[:, 0], expected, atol=1e-4)
    assert (data.loss, data.classes) == ("squared", 0)


def test_the_latest_rows_of_each_client_are_held_out(table: Callable[..., Dataset]) -> None:
    columns = {"c": [2, 1] * 7, "t": [*range(14, 0, -1)], "x": [*range(14)], "y": [0.5 * i for i in range(14)]}
    data = table(columns, target="y", client="c", time="t", test_every=3)
    assert data.test_targets.tolist() == [0.0, 0.5, 1.0, 1.5]  # the file runs back in time
    assert numbers(data.test_owners) == [1, 0, 1, 0]
    plain = table(columns, target="y", client="c", test_every=3)
    assert plain.test_targets.tolist() == [2.0, 2.5, 5.0, 5.5]


def test_a_class_of_one_row_is_not_held_out_alone(table: Callable[..., Dataset]) -> None:
    data = table({"x": [*range(10)], "y": ["a"] * 4 + ["b"] + ["a"] * 5}, target="y")
    assert (data.names["targets"], data.targets.tolist().count(1), data.test_targets.tolist()) == (("a", "b"), 1, [0])


def test_a_client_with_one_row_trains_only(table: Callable[..., Dataset]) -> None:
    text = "c,x,y\n" + "".join(f"a,{i},{i % 2}\n" for i in range(10)) + "b,3,1\n"
    data = table(text, target="y", client="c")
    assert data.owners is not None
    assert data.test_owners is not None
    assert (data.owners.tolist().count(1), data.test_owners.tolist().count(1)) == (1, 0)


def test_windows_are_rows_of_one_client_by_time(table: Callable[..., Dataset]) -> None:
    columns = {"c": list("abab" * 5), "t": [*range(20, 0, -1)], "x": [1.0 * i for i in range(20)]}
    data = table(columns, target="x", client="c", time="t", inputs="x", window=3, horizon=2, test_every=5)
    trains = np.arange(4, 20)  # the latest fifth, which comes first in the file, is for the test
    scale, mean = trains.std(), trains.mean()
    seen = data.inputs[:, :, 0] * scale + mean
    by_hand = {(c, t): [t + 8, t + 6, t + 4] for c in (0, 1) for t in range(c, 20, 2) if t + 8 < 20}
    trained = {key: value for key, value in by_hand.items() if key[1] >= 4}
    assert data.shape == (3, 1)
    samples = zip(numbers(data.owners), data.targets, seen, strict=True)
    found = {(int(c), int(y)): np.round(row).tolist() for c, y, row in samples}
    assert found == trained
    assert sorted(data.test_targets.tolist()) == [0, 1, 2, 3]


def test_training_windows_hold_no_test_row(table: Callable[..., Dataset]) -> None:
    columns = {"t": [*range(9)], "x": [1.0 * i for i in range(9)], "use": ["train"] * 4 + ["test"] + ["train"] * 4}
    data = table(columns, target="x", time="t", split="use", window=2)
    assert data.targets.tolist() == [2, 3, 7, 8]
    assert data.test_targets.tolist() == [4]
    assert data.names["inputs"] == ("x",)


def test_texts_are_hashed_as_scikit_learn_does(table: Callable[..., Dataset]) -> None:
    from sklearn.feature_extraction.text import HashingVectorizer

    texts = ["A small boat", "the boat sank", "a big storm", "storm and boat", "nothing"]
    data = table({"note": texts, "y": [0, 1, 0, 1, 0]}, target="y", text=["note"], hashes=64)
    expected = HashingVectorizer(n_features=64).transform(texts[:4]).toarray()
    np.testing.assert_allclose(data.inputs, expected, rtol=1e-6)


def test_several_targets_are_labels_or_numbers(table: Callable[..., Dataset]) -> None:
    labels = {"x": [*range(10)], "a": [0, 1] * 5, "b": [True, False] * 5}
    data = table(labels, target=["a", "b"])
    assert (data.loss, data.outputs, data.names["targets"]) == ("binary-cross-entropy", 2, ("a", "b"))
    assert data.targets[:2].tolist() == [[0, 1], [1, 0]]
    data = table(labels | {"a": [0.5] * 10}, target=["a", "b"])
    assert (data.loss, data.outputs, data.targets.shape) == ("squared", 2, (8, 2))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_labels_are_learned(table: Callable[..., Dataset], tmp_path: Path, model: str) -> None:
    x = np.random.default_rng(0).normal(size=(300, 2))
    table({"u": x[:, 0], "v": x[:, 1], "a": x[:, 0] > 0, "b": x.sum(axis=1) > 0}, target=["a", "b"])
    data = {"dataset": "table", "root": str(tmp_path / "table.parquet"), "target": ["a", "b"], "clients": 5}
    settings = {"data": data, "rounds": 5, "model": {"name": model}, "local": {"lr": 0.5}}
    result = run({**settings, "method": {"name": "fedavg", "fraction": 1.0}})
    assert result.history["test_accuracy"][-1] > 0.95 > result.history["test_accuracy"][0]


def test_clients_of_several_columns_and_whole_clients_for_the_test(table: Callable[..., Dataset]) -> None:
    columns = {"a": ["x", "x", "y", "y"], "b": [1, 2, 1, 1], "v": [*range(4)], "y": [0, 1, 1, 0]}
    data = table(columns, target="y", client=["a", "b"], test_every=2)
    assert data.names["owners"] == ("x / 1", "x / 2", "y / 1")
    columns["use"] = ["train", "train", "test", "test"]
    data = table(columns, target="y", client=["a", "b"], split="use")
    assert (data.test_owners, len(data.test_inputs)) == (None, 2)


def test_small_clients_are_left_out_where_the_test_has_clients_of_its_own(table: Callable[..., Dataset]) -> None:
    columns: dict[str, list[Any]] = {
        "c": ["a"] * 20 + ["b"] * 3 + ["z"] * 4,
        "s": ["train"] * 23 + ["test"] * 4,
        "x": [i / 2 for i in range(27)],  # whole numbers would be taken for names of rows
        "y": [i % 2 for i in range(27)],
    }
    data = table(columns, target="y", client="c", split="s", min_samples=10)
    assert (len(data), numbers(data.owners), data.test_owners) == (20, [0] * 20, None)
    assert len(data.test_inputs) == 4
    assert len(table(columns, target="y", client="c", split="s", min_samples=3)) == 23


def test_a_class_of_clients_that_are_left_out_is_none(table: Callable[..., Dataset]) -> None:
    columns: dict[str, list[Any]] = {
        "c": ["a"] * 10 + ["b"] * 2,
        "x": [*range(12)],
        "y": ["no", "yes"] * 5 + ["maybe", "no"],
    }
    data = table(columns, target="y", client="c", min_samples=3)
    assert (data.classes, data.names["targets"], set(data.targets.tolist())) == (2, ("no", "yes"), {0, 1})
    columns |= {"s": ["train"] * 8 + ["test"] * 2 + ["train"] * 2, "y": ["no", "yes"] * 4 + ["maybe", "no"] * 2}
    with pytest.raises(InputError, match=r"only test rows have the class 'maybe'; training rows must have every class"):
        table(columns, target="y", client="c", split="s", min_samples=3)
    columns |= {"y": ["no"] * 10 + ["yes", "no"]}
    with pytest.raises(InputError, match=r"'y': has one value only, 'no', in the rows that are used"):
        table(columns, target="y", client="c", split="s", min_samples=3)


def test_a_folder_of_files_is_one_table_whose_names_say_what_is_for_the_test(tmp_path: Path) -> None:
    write_csv(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / "part-2")
    write_csv(pa.table({"x": [3.5, 4], "y": [0, 1]}), tmp_path / "part-10")  # numbers in both once one is no whole one
    data = read_table(str(tmp_path), target="y", test_every=4)
    assert len(data) == 3
    assert (data.inputs[:, 0] * np.std([1, 2, 3.5]) + np.mean([1, 2, 3.5])).round(3).tolist() == [1, 2, 3.5]
    for file in tmp_path.iterdir():
        file.rename(tmp_path / file.name.replace("part-2", "train-0").replace("part-10", "test-0"))
    assert len(read_table(str(tmp_path), target="y").test_inputs) == 2


def test_files_that_say_no_split_are_for_training_where_others_say_theirs(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    for number, client in enumerate(("ann", "bob")):
        for folder, rows in ((tmp_path, 10), (tmp_path / "test", 5)):
            write_csv(pa.table({"x": [number * 10 + rows] * rows, "y": [i % 2 for i in range(rows)]}), folder / client)
    data = read_table(str(tmp_path), target="y", client="file", inputs="x")
    assert (numbers(data.owners), numbers(data.test_owners)) == ([0] * 10 + [1] * 10, [0] * 5 + [1] * 5)


def test_natural_clients_hold_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    owners = rng.integers(30, size=1000)
    path = write_parquet(pa.table({"c": owners, "g": owners % 3, "x": owners * 1.0, "y": owners % 2}), tmp_path / "t")
    data = {"dataset": "table", "root": str(path), "target": "y", "client": "c", "group": "g", "partition": "natural"}
    settings = validate({"data": {**data, "clients": 30}, "clustering": {"method": "planted", "clusters": 3}})
    population, _ = make_clients(settings)
    for k in range(30):
        assert len(set(population.data.inputs[population.samples(k), 0].tolist())) == 1
    assert population.groups().tolist() == [k % 3 for k in range(30)]
    tests = make_test_clients(settings, population)
    assert len(tests) == 30
    assert Experiment(settings).clustering.labels.tolist() == [k % 3 for k in range(30)]
    with pytest.raises(InputError, match=r"uses the data's groups, of which there are 3; set clustering.clusters = 3"):
        Experiment(validate(dict(settings) | {"clustering": {"method": "planted", "clusters": 4}})).check()


@pytest.mark.parametrize("name", ["two\nlines", "a\rcarriage", "plain"])
def test_texts_of_csv_may_have_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """All reads of a file go by what the first has seen of it: whether a row is a line, and the columns about rows."""
    monkeypatch.setattr("atoll.data.tabular.csv._BLOCK", 64)
    names = [name, "other"] * 50
    table = pa.table({"c": names, "x": [*range(100)], "k": names, "y": [0, 1] * 50})
    inputs: dict[str, Any] = {"target": "y", "client": "c", "inputs": ["x", "k"]}
    read, expected = (read_table(str(write(table, tmp_path / "t")), **inputs) for write in (write_csv, write_parquet))
    np.testing.assert_array_equal(read.inputs, expected.inputs)
    assert numbers(read.owners) == numbers(expected.owners)


GOOD = "c,x,y\na,1,0\na,2,1\na,3,0\nb,4,1\nb,5,0\n"
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "a column that is not there": (
        GOOD,
        {"target": "yy"},
        r"data.target = 'yy': table has no such column, did you mean 'y'",
    ),
    "a column that is not there, beside one like it": (
        GOOD,
        {"target": "y", "inputs": ["x", "x1"]},
        r"data.inputs = 'x1': table has no such column; it has c, x, y",
    ),
    "no target": (GOOD, {}, r"data.target is not set: it names the column to predict"),
    "an empty file": ("", {"target": "y"}, r"table.csv: is empty; a CSV file begins with a row of column names"),
    "no rows": ("x,y\n", {"target": "y"}, r"table: has no rows"),
    "one row of columns": (
        "x,y\n1\n",
        {"target": "y"},
        r"table.csv: cannot be read \(CSV parse error: (Row #2: )?Expected 2",
    ),
    "two columns of a name": (
        "x,x,y\n1,2,0\n",
        {"target": "y"},
        r"has several columns 'x'; column names must be unique",
    ),
    "another encoding": (
        "x,y\n1,caf\xe9\n",
        {"target": "y"},
        r"table.csv: column 'y' is not UTF-8; save the file as UTF-8",
    ),
    "another encoding, later": (
        "x,y\n" + f"1,{'a' * 2000}\n" * 2_500 + "1,caf\xe9\n",
        {"target": "y"},
        r"column 'y' is not UTF-8; save the file as UTF-8",
    ),
    "UTF-16": ("\xff\xfex\x00,\x00y\x00", {"target": "y"}, r"table.csv: is UTF-16; save the file as UTF-8"),
    "semicolons": (
        "x;y\n1;2\n",
        {"target": "y"},
        r"table.csv: has one column 'x;y', separated by ';'; save the file with commas",
    ),
    "a date among inputs": (
        "d,y\n2024-01-01,1\n2024-01-02,0\n",
        {"target": "y"},
        r"column 'd' holds date32\[day\], dates or times; name it as data.time",
    ),
    "dates that are texts": (
        "d,x,y\n31.12.2024,1,0\n1.1.2025,2,1\n",
        {"target": "y", "time": "d"},
        r"data.time = 'd': '1.1.2025' is not an ISO date, such as 2024-03-31",
    ),
    "categories that are no whole numbers": (
        "x,y\n1.0,0\n2.0,1\n",
        {"target": "y", "categorical": ["x"]},
        r"data\.categorical: column 'x' holds double; it must hold integers, booleans, dates or texts \(in pandas, ",
    ),
    "mixed types": (
        "x,y\n" + "".join(f"{i},0\n" for i in range(200)) + "unknown,1\n",
        {"target": "y"},
        r"column 'x' holds numbers, but also 'unknown'; correct it, leave it out of",
    ),
    "gigantic categories": (
        "x,y\n" + "".join(f"v{i},{i % 2}\n" for i in range(200)),
        {"target": "y"},
        r"data.categories = 100: column 'x' has more categories, such as 'v0'; leave it out of",
    ),
    "many whole numbers": (
        "x,y\n" + "".join(f"1,{i}\n" for i in range(200)),
        {"target": "y"},
        r"data.target = 'y': has 200 different whole numbers; set data.task to 'regression' or 'classes'",
    ),
    "one class": (
        "x,y\n1,a\n2,a\n",
        {"target": "y"},
        r"data.target = 'y': has one value only, 'a', in the rows that are used; there is nothing to predict",
    ),
    "a class that only test rows have": (
        "x,y,s\n1,a,train\n2,b,test\n",
        {"target": "y", "split": "s"},
        r"data.target = 'y': only test rows have the class 'b'; training rows must have every class",
    ),
    "an id twice": (
        "i,x,y\n7,1,0\n8,2,1\n7,3,0\n",
        {"target": "y", "id": "i"},
        r"data.id = 'i': several rows are called 7; ids must be unique",
    ),
    "a client in two groups": (
        "c,g,x,y\na,n,1,0\na,s,2,1\n",
        {"target": "y", "client": "c", "group": "g"},
        r"data.group: client 'a' is in the groups 'n' and 's'; name the group's column in",
    ),
    "a client without training rows": (
        "c,s,x,y\na,train,1,0\na,train,1,1\na,test,1,0\nb,test,2,0\n",
        {"target": "y", "client": "c", "split": "s"},
        r"client 'b' has no sample for training \(1 such clients\); data.min_samples = 1 leaves such clients out",
    ),
    "a client of one row, and windows": (
        "c,t,x\n" + "".join(f"a,{i},1\n" for i in range(9)) + "b,1,2\n",
        {"target": "x", "client": "c", "time": "t", "window": 2},
        r"client 'b' has no sample for training",
    ),
    "a horizon without windows": (GOOD, {"target": "y", "horizon": 2}, r"data.horizon = 2: needs data.window"),
    "windows of texts as tokens": (
        GOOD,
        {"target": "y", "time": "x", "window": 2, "tokenizer": "base"},
        r"data.window = 2: has no effect with data.tokenizer; leave it out",
    ),
    "words and categories of texts as tokens": (
        GOOD,
        {"target": "y", "inputs": "c", "text": ["c"], "tokenizer": "base"},
        r"data.text = \['c'\]: has no effect with data.tokenizer; leave it out",
    ),
    "texts of one token": (
        GOOD,
        {"task": "causal", "length": 1, "tokenizer": "base"},
        r"data.length = 1: must be at least 2 with data.task = 'causal'",
    ),
    "windows without time": (GOOD, {"target": "y", "window": 2}, r"data.window = 2: needs data.time"),
    "two rows at one time": (
        "t,x\n1,1\n1,2\n2,3\n",
        {"target": "x", "time": "t", "window": 1, "task": "regression"},
        r"data.time: rows 0 and 1 have the same client and the same time",
    ),
    "an unknown split": (
        "s,x,y\ntrain,1,0\nholdout,2,1\n",
        {"target": "y", "split": "s"},
        r"data.split = 's': the column holds 'holdout'; it must hold train or test",
    ),
    "a missing target": (
        "x,y\n1,0\n2,\n",
        {"target": "y"},
        r"data.target = 'y': row 1 of the table, counted from 0, lacks it",
    ),
    "the target among inputs": (
        GOOD,
        {"target": "y", "inputs": ["x", "y"]},
        r"data.inputs: column 'y' gives away the target",
    ),
    "infinite numbers": (
        "x,y\n" + "inf,0\n2.5,1\n" * 3,
        {"target": "y"},
        r"data.inputs: column 'x' holds infinite numbers",
    ),
    "numbers whose squares overflow": (
        "s,x,y\ntrain,1e200,0\ntrain,1,1\ntest,1,1\n",
        {"target": "y", "split": "s"},
        r"data.inputs: column 'x' holds numbers too large to standardise",
    ),
    "a test row far from the training rows": (
        "s,x,y\ntrain,0.5,0\ntrain,1,1\ntest,7e47,1\n",
        {"target": "y", "split": "s"},
        r"data.inputs: column 'x' holds numbers too large to standardise",
    ),
    "too few rows to hold one out": (
        "x,y\n1,0\n2,1\n",
        {"target": "y"},
        r"table: no row is for the test; see data.split",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told_in_a_sentence(name: str, table: Callable[..., Dataset]) -> None:
    text, settings, told = BAD[name]
    with pytest.raises(InputError, match=told) as error:
        table(text, **settings)
    assert "\n" not in str(error.value)


def test_categories_of_arrays_are_refused(table: Callable[..., Dataset]) -> None:
    for setting, value in (("categorical", ["x"]), ("text", ["x"]), ("window", 2)):
        with pytest.raises(InputError, match=rf"data.{setting} = .*: has no effect on a column of arrays or images"):
            table(
                {"x": [[1.0, 2.0]] * 10, "t": [*range(10)], "y": [0, 1] * 5},
                **{"target": "y", "time": "t", "inputs": "x", setting: value},
            )


def test_what_is_pickled_is_not_read(tmp_path: Path) -> None:
    field = pa.field("x", pa.int64(), metadata={"ARROW:extension:name": "arrow.py_extension_type"})
    for write in (write_stream, write_parquet):
        path = write(pa.table({"x": [1, 2], "y": [0, 1]}, schema=pa.schema([field, ("y", pa.int64())])), tmp_path / "t")
        with pytest.raises(InputError, match=r"column 'x' has a pickled type, which is never read"):
            read_table(str(path), target="y")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("absent.csv", "does not exist"),
        ("t.txt", "is not a table"),
        ("t.pt", "is not a table"),
        (".", "holds no table"),
    ],
)
def test_only_tables_are_read(tmp_path: Path, name: str, told: str) -> None:
    for other in ("t.txt", "t.pt"):
        (tmp_path / other).write_text("x\n1\n")
    with pytest.raises(
        InputError, match=f"{told}: give a file, or a folder of files, with the suffix .csv, .tsv, .arrow"
    ):
        read_table(str(tmp_path / name), target="y")


def test_a_frame_is_a_data_set(tmp_path: Path) -> None:
    expected = read_table(str(write_parquet(pa.table(COLUMNS), tmp_path / "t")), **ROLES, missing="flag")
    frames = [pa.table(COLUMNS)]
    for library in ("pandas", "polars"):
        with suppress(ImportError):
            frames.append(importlib.import_module(library).DataFrame(COLUMNS))
    for frame in frames:
        data = atoll.from_pandas(frame, **ROLES, missing="flag")
        np.testing.assert_array_equal(data.inputs, expected.inputs)
        assert data.names == expected.names
    halves = (pa.table({"x": [1, 2], "y": [0, 1]}), pa.table({"x": [3], "y": [1]}))
    assert len(atoll.from_pandas(halves[0], test=halves[1], target="y").test_inputs) == 1


def test_clients_of_the_test_alone_are_no_clients(table: Callable[..., Dataset]) -> None:
    columns = {"c": [*"a" * 10, *"b" * 4, *"z" * 10], "x": [0, 1, 2] * 8, "y": [0, 1] * 12}
    data = table({**columns, "s": ["train"] * 10 + ["test"] * 4 + ["train"] * 10}, target="y", client="c", split="s")
    assert numbers(data.owners) == [0] * 10 + [1] * 10
    assert (data.names["owners"], data.test_owners) == (("a", "z"), None)


def test_a_folder_says_more_than_the_names_in_it(tmp_path: Path) -> None:
    for place in ("train/dev-1", "train/dev-2", "test/dev-1"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        write_csv(pa.table({"x": [*range(10)], "y": [0, 1] * 5}), tmp_path / place)
    data = read_table(str(tmp_path), target="y", inputs="x")
    assert (len(data), len(data.test_inputs)) == (20, 10)


@pytest.mark.parametrize(
    ("frame", "settings", "told"),
    [
        ({"x": [1]}, {}, "frame: must be a data frame, not 'dict'"),
        (pa.table({"x": [1]}), {"client": 5}, "data.client = 5: must be a text, or a list"),
        (pa.table({"x": [1]}), {"clients": 3}, "from_pandas: clients: unknown, did you mean 'client'?"),
        (pa.table({"x": [1]}), {"task": "class"}, "data.task = 'class': must be 'classes'"),
        (pa.table({"x": [1]}), {"missing": "Drop"}, "data.missing = 'Drop': must be 'refuse'"),
        (pa.table({"x": [1]}), {"window": 0, "time": "x"}, "data.window = 0: must be a whole number of at least 1"),
        (
            pa.table({"x": [1]}),
            {"test": pa.table({"z": [1]})},
            "frame: the columns of test, or their types, differ from those of frame",
        ),
    ],
)
def test_what_is_no_frame_is_told(frame: Any, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        atoll.from_pandas(frame, target="x", **settings)
