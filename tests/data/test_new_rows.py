"""New rows of a table: encoded as the training rows were, or refused in one sentence."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll import Dataset, InputError, from_pandas
from atoll.data.tabular.make import make_table
from atoll.data.tabular.source import open_source
from atoll.data.tabular.table_settings import Wanted
from atoll.runs.verify import verify_run
from atoll.support.arrays import Floats

COLUMNS: dict[str, list[Any]] = {
    "age": [30.0, None, 50.0, 70.0, 41.0, 35.0, 90.0, 50.0, None, 20.0],
    "beds": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    "ward": ["7", "B", None, "7", "B", "7", "C", "B", "7", "B"],
    "note": ["a b", "b", "", None, "a", "b c", "c", "a b", "b b", "c a"],
    "ill": ["no", "yes"] * 5,
}
IS_TEST = [False, False, False, False, True] * 2


def patients(missing: str, **settings: Any) -> tuple[pd.DataFrame, Dataset]:
    frame = pd.DataFrame(COLUMNS)
    return frame, from_pandas(frame, target="ill", text=["note"], hashes=4, missing=missing, **settings)


def encoded(data: Dataset, rows: Any) -> Floats:
    assert data.encode is not None
    return data.encode(rows)


@pytest.mark.parametrize("missing", ["fill", "flag"])
def test_the_tables_own_rows_are_encoded_as_they_were(missing: str) -> None:
    frame, data = patients(missing)
    for rows in (frame, frame.drop(columns="ill"), frame[frame.columns[::-1]]):
        found = encoded(data, rows)
        np.testing.assert_array_equal(found[np.logical_not(IS_TEST)], data.inputs)
        np.testing.assert_array_equal(found[IS_TEST], data.test_inputs)


def test_columns_may_have_other_types_if_their_values_fit() -> None:
    frame, data = patients("fill", inputs=["age", "beds", "ward", "note"])
    one = frame[3:4]
    as_texts = one.astype({"age": str, "beds": str})
    as_numbers = one.assign(ward=7, beds=4.0).astype({"age": int})
    as_categories = one.astype({"ward": "category"})
    for rows in (one, as_texts, as_numbers, as_categories):
        np.testing.assert_array_equal(encoded(data, rows), data.inputs[3:4])
    np.testing.assert_allclose(  # the training rows' 1, 2, 3, 4, 6, 7, 8, 9
        encoded(data, one.assign(beds=4.5))[0, 1], (4.5 - 5) / np.std([1, 2, 3, 4, 6, 7, 8, 9]), rtol=1e-6
    )
    assert not encoded(data, one.assign(ward="new"))[0, 2:5].any()


def test_arrays_are_passed_through() -> None:
    frame = pd.DataFrame({"x": [[float(i), 1.0] for i in range(10)], "y": ["a", "b"] * 5})
    data = from_pandas(frame, target="y")
    np.testing.assert_array_equal(encoded(data, frame[["x"]])[IS_TEST], data.test_inputs)


@pytest.mark.parametrize(
    ("missing", "changes", "told"),
    [
        ("fill", {"age": ["old"] * 10}, "column 'age' holds .*string, not double as in training"),
        ("fill", {"age": [np.inf] * 10}, "column 'age' holds infinite numbers"),
        ("fill", {"age": [3e300] * 10}, "column 'age' holds numbers too large to standardise"),
    ],
)
def test_rows_that_cannot_be_encoded_are_refused(missing: str, changes: dict[str, Any], told: str) -> None:
    frame, data = patients(missing)
    with pytest.raises(InputError, match=told):
        encoded(data, frame.assign(**changes))


@pytest.mark.parametrize("missing", ["refuse", "drop"])
def test_rows_that_training_has_none_of_are_refused(missing: str) -> None:
    frame = pd.DataFrame({"x": np.arange(10.0), "y": ["a", "b"] * 5})
    data = from_pandas(frame, target="y", missing=missing)
    with pytest.raises(InputError, match=rf"data.missing = '{missing}': column 'x' lacks values, at least 1") as told:
        encoded(data, frame.assign(x=[np.nan, *range(9)]))
    assert ("leaves such rows out" in str(told.value)) == (missing == "refuse")


@pytest.mark.parametrize("missing", ["fill", "flag", "refuse"])
def test_an_empty_text_is_missing_where_it_was_in_training(tmp_path: Path, missing: str) -> None:
    """A CSV file's empty fields are missing values; a data frame's empty texts are texts."""
    frame = pd.DataFrame(COLUMNS)
    whole = frame.ffill() if missing == "refuse" else frame
    whole.replace("", "b").to_csv(tmp_path / "table.csv", index=False)
    wanted = Wanted(target="ill", text=["note"], hashes=4, missing=cast(Any, missing))
    data = make_table(open_source(str(tmp_path / "table.csv")), wanted)
    rows = {"age": ["30", "", "30"], "beds": [1, 2, 2], "ward": ["", "B", "C"], "note": ["a b", "b", ""]}
    empty = pd.DataFrame(rows)
    if missing == "refuse":
        with pytest.raises(InputError, match="column 'age' lacks values"):
            encoded(data, empty)
        return
    expected = encoded(data, empty.replace("", None))
    np.testing.assert_array_equal(encoded(data, empty), expected)
    _, other = patients(missing)
    with pytest.raises(InputError, match=r"column 'age' holds .*string, not double as in training"):
        encoded(other, empty)


def test_a_run_predicts_new_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"c": np.arange(200) % 4, "x": rng.normal(5, 2, 200)})
    frame["y"] = np.where(frame.x > 5, "high", "low")
    frame.to_csv(tmp_path / "table.csv", index=False)
    data = {"dataset": "table", "root": str(tmp_path / "table.csv"), "target": "y", "client": "c", "clients": 4}
    result = atoll.run(
        atoll.Settings(),
        rounds=20,
        clustering={"clusters": 2},
        local={"steps": 5, "lr": 0.5},
        data={**data, "partition": "natural"},
    )
    expected = [0, 1, 0, 1, 1]  # classes are in order of their names
    new = pd.DataFrame({"x": [9, 1, 7, 2, 3]})
    assert result.predict(new).tolist() == expected
    assert result.predict(new, probabilities=True).argmax(axis=1).tolist() == expected
    with pytest.raises(InputError, match=r"data.inputs = 'x': the frame has no such column; it has z"):
        result.predict(new.rename(columns={"x": "z"}))
    assert result.predict(new[:0]).shape == (0,)
    for rows in (new.to_dict("list"), "table.csv"):
        with pytest.raises(InputError, match=r"^predict: inputs \(give new rows as a data frame\): must hold numbers"):
            result.predict(rows)


def test_a_run_does_not_predict_by_other_data_than_it_was_trained_on(tmp_path: Path) -> None:
    """Inputs would be encoded by the mean and the categories of a table that has grown, and predictions be wrong."""
    table = tmp_path / "table.csv"
    rows = [f"{k % 4},{k},{'high' if k > 20 else 'low'}\n" for k in range(40)]
    table.write_text("".join(["c,x,y\n", *rows]))
    data: dict[str, Any] = {"dataset": "table", "root": str(table), "target": "y", "inputs": ["x"]}
    data |= {"client": "c", "clients": 4, "partition": "natural"}
    result = atoll.run(atoll.Settings(), tmp_path / "run", rounds=1, clustering={"clusters": 2}, data=data)
    new = pd.DataFrame({"x": [1, 39]})
    before = result.predict(new, probabilities=True).tolist()
    table.write_text("".join(["c,x,y\n", *rows, "3,9000,high\n"]))
    with pytest.raises(InputError, match=r"^data\.root/table\.csv \(.*\) has changed since .*run was started;"):
        result.predict(new)
    with pytest.raises(InputError, match=r"^data\.root/table\.csv .* has changed since .*; put back what was there"):
        verify_run(tmp_path / "run", tmp_path / "again")
    table.write_text("".join(["c,x,y\n", *rows]))
    assert atoll.read_result(tmp_path / "run").predict(new, probabilities=True).tolist() == before


def test_a_data_set_is_known_by_its_contents_not_by_its_encoder() -> None:
    """Else a run on a data frame would refuse to resume."""
    names = {atoll.Experiment(data={"dataset": patients("fill")[1]}).settings.data.dataset for _ in "ab"}
    assert len(names) == 1
