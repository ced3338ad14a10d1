"""Tables and pictures at the edges of what they may hold."""

import io
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import atoll
from atoll.data.files.sample_files import decode_picture
from atoll.data.standardise import moments
from atoll.support.errors import InputError

ROWS = 40


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"x": rng.normal(size=ROWS), "y": np.arange(ROWS) % 2})


def test_texts_stand_beside_other_inputs() -> None:
    both = atoll.from_pandas(frame().assign(t=["a b", "b c"] * (ROWS // 2)), target="y", text=["t"], hashes=4)
    alone = atoll.from_pandas(
        frame().assign(t=["a b", "b c"] * (ROWS // 2))[["t", "y"]], target="y", text=["t"], hashes=4
    )
    assert both.shape == (5,)
    np.testing.assert_array_equal(both.inputs[:, 1:], alone.inputs)


@pytest.mark.parametrize("value", [0.1, 0.3, 1e6 + 0.1, -7.7])
def test_a_constant_is_known_although_its_mean_is_rounded(value: float) -> None:
    table = frame().assign(k=value)
    table["s"] = ["train"] * 30 + ["test"] * 10
    table.loc[39, "k"] = 1.01 * value
    data = atoll.from_pandas(table, target="y", split="s")
    at = data.names["inputs"].index("k")
    assert (data.inputs[:, at] == 0).all()
    assert (data.test_inputs[:, at] == 0).all()
    _, deviations = moments(np.full((30, 2), value))
    assert deviations.tolist() == [0, 0]


@pytest.mark.parametrize("index", [pd.Index(range(ROWS), name="patient"), pd.Index(range(1, ROWS + 1)), None])
def test_an_index_is_no_input(index: pd.Index | None) -> None:
    table = frame() if index is None else frame().set_index(index)
    assert atoll.from_pandas(table, target="y").names["inputs"] == ("x",)


def test_arrays_in_rows_that_are_left_out_may_be_missing() -> None:
    table = frame().drop(columns="x").assign(a=[[1.0, 2.0]] * (ROWS - 1) + [None])
    data = atoll.from_pandas(table, target="y", missing="drop")
    assert len(data.inputs) + len(data.test_inputs) == ROWS - 1


def test_few_times_may_be_categories() -> None:
    days = pd.to_datetime(["2024-03-31 12:00", "2024-04-01 12:00"] * (ROWS // 2))
    assert atoll.from_pandas(frame().assign(d=days), target="y", categorical=["d"]).shape == (3,)


def test_pictures_of_more_than_eight_bits_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.fromarray(np.linspace(0, 65_535, 64).astype(np.uint16).reshape(8, 8)).save(stream, "png")
    with pytest.raises(ValueError, match=r"more than 8 bits \(mode I"):
        decode_picture(stream.getvalue())


def test_a_time_that_is_none_is_named() -> None:
    with pytest.raises(InputError, match=r"data\.time = 't': 'hello' is not an ISO date"):
        atoll.from_pandas(frame().assign(t=["2024-03-31"] * 39 + ["hello"]), target="y", time="t")
