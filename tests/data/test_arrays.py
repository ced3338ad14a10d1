"""What a script gives as data: lists, tensors, columns of data frames; kept as arrays that PyTorch has."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

import atoll
from atoll.data.array_inputs import as_array

INPUTS = np.arange(40, dtype=np.float32).reshape(20, 2)
LABELS = np.arange(20) % 3


class Column:
    """As Series and frames of pandas and polars are: not an array, but able to become one, whose memory is theirs."""

    columns: list[str]

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values

    def to_numpy(self) -> npt.NDArray[Any]:
        self.values.flags.writeable = False
        return self.values


def dataset(**given: Any) -> atoll.Dataset:
    parts = {"inputs": INPUTS, "targets": LABELS, "test_inputs": INPUTS, "test_targets": LABELS, "classes": 3}
    return atoll.Dataset("own", **{**parts, **given})


@pytest.mark.parametrize(
    "labels",
    [
        *(LABELS.astype(kind) for kind in ("int8", "uint8", "int32", "uint64", "float32", ">i8")),
        *(
            LABELS.tolist(),
            torch.from_numpy(LABELS),
            Column(LABELS.astype("int8")),
            LABELS[:, None],
            LABELS.astype(object),
        ),
    ],
    ids=lambda labels: type(labels).__name__,
)
def test_labels_of_any_whole_numbers_become_int64(labels: Any) -> None:
    data = dataset(targets=labels)
    assert data.targets.dtype == np.int64
    assert np.array_equal(data.targets, LABELS)
    assert data.targets.flags.writeable


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        *(("uint8", "uint8"), ("int16", "int16"), ("float64", "float64"), ("float16", "float32")),
        *(("uint16", "int64"), ("bool", "uint8"), (">f4", "float32"), ("longdouble", "float64")),
    ],
)
def test_inputs_keep_their_type_where_pytorch_has_it(given: str, kept: str) -> None:
    made = as_array("inputs", (INPUTS > 5).astype(given))
    assert made.dtype == np.dtype(kept)
    assert np.array_equal(made, INPUTS > 5)
    torch.from_numpy(made)


def test_whole_numbers_beyond_int64_are_refused() -> None:
    most = np.array([[0], [2**63 - 1]], np.uint64)
    np.testing.assert_array_equal(as_array("inputs", most), most)
    with pytest.raises(atoll.InputError, match=r"inputs: must hold numbers below 2\*\*63, one is 9223372036854775808"):
        as_array("inputs", most + np.uint64(1))


def test_masked_arrays_are_taken_only_where_nothing_is_masked() -> None:
    masked = np.ma.masked_greater(np.array([[1.0], [2.0], [9.0]]), 5)
    with pytest.raises(atoll.InputError, match=r"^inputs: must hold numbers; 1 of 3 are masked$"):
        as_array("inputs", masked)
    whole = as_array("inputs", masked[:2])
    assert type(whole) is np.ndarray
    assert whole.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "float32", "float64"])
def test_labels_that_each_apply_may_be_of_any_type(kind: str) -> None:
    inputs = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    flags = (inputs > 0).astype(kind)
    for targets, labels in ((flags, 3), (flags[:, 0], 1)):
        data = atoll.Dataset("flags", inputs, targets, inputs, targets, 0, loss="binary-cross-entropy")
        result = atoll.run(data={"dataset": data, "clients": 4}, rounds=2, local={"lr": 1.0}, method={"name": "fedavg"})
        assert result.predict(inputs).shape == (40, labels)
        for file in ("picture.png", Path("picture.png")):
            told = r"^predict: inputs = .*picture\.png.*: must be an array \[n, 3\]; read the file into one"
            with pytest.raises(atoll.InputError, match=told):
                result.predict(file)
        assert np.isfinite(result.clients()["accuracy"]).all()


def test_arrays_that_fit_are_not_copied() -> None:
    data = dataset()
    assert np.shares_memory(data.inputs, INPUTS)
    assert np.shares_memory(data.test.inputs, INPUTS)
    assert dataset(inputs=INPUTS[::-1].copy()[::-1]).inputs.flags.c_contiguous


@pytest.mark.parametrize("tensor", [torch.from_numpy(INPUTS).bfloat16(), torch.from_numpy(INPUTS).requires_grad_()])
def test_tensors_are_read(tensor: torch.Tensor) -> None:
    assert np.array_equal(dataset(inputs=tensor).inputs, INPUTS)


def test_frames_whose_columns_are_in_another_order_are_refused() -> None:
    frame, swapped = Column(INPUTS.copy()), Column(INPUTS.copy())
    frame.columns, swapped.columns = ["age", "weight"], ["weight", "age"]
    assert np.array_equal(dataset(inputs=frame, test_inputs=frame).test_inputs, INPUTS)
    assert np.array_equal(dataset(inputs=frame).inputs, INPUTS)
    with pytest.raises(atoll.InputError, match="test_inputs: has the column 'weight' where inputs has 'age';"):
        dataset(inputs=frame, test_inputs=swapped)
    table = pa.table({"age": INPUTS[:, 0], "weight": INPUTS[:, 1]})  # whose `columns` are no names
    assert np.array_equal(dataset(inputs=table, test_inputs=table[::-1]).test_inputs, INPUTS[::-1])


def test_frames_of_several_types_are_read() -> None:
    mixed = np.array([[True, 1.5], [2, 3.0]], object)
    assert as_array("inputs", Column(mixed)).tolist() == [[1, 1.5], [2, 3]]


def test_data_of_a_script_train_as_those_of_a_file_do() -> None:
    """The whole way, which ended inside PyTorch: codes of int8, in a column."""
    data = dataset(targets=Column(LABELS.astype("int8")))
    population = atoll.make_population(data, list(np.arange(20).reshape(4, 5)))
    rule = atoll.LocalRule(atoll.optimizers.sgd, 0.01, steps=1, batch_size=2)
    method = atoll.fedcluster(population, atoll.Clustering(np.array([0, 1, 0, 1], "int8"), 2), rule, 1)
    module = atoll.draw_model(atoll.models.linear, data, seed=0)
    executor = atoll.Serial(atoll.Trainer(module, population, rule, seed=0))
    steps = list(atoll.train(method, executor, atoll.init(method, atoll.read_model(module))))
    assert len(steps) == 2


def test_representations_are_short() -> None:
    data = dataset()
    population = atoll.make_population(data, [np.arange(5), np.arange(5, 20)])
    assert repr(data) == "Dataset('own': 20 samples of [2], 20 to test, 3 classes)"
    assert repr(population) == "Population(2 clients of 'own', 5 to 15 samples each)"
    labels = np.arange(1000) % 10
    assert repr(atoll.Clustering(labels, 10)) == "Clustering(10 clusters of 1,000 clients, 100 in each)"
    method = atoll.fedavg(population, atoll.LocalRule(atoll.optimizers.sgd, 0.1), 1000)
    clock = atoll.Clock(np.ones(1000), np.ones(1000))
    assert max(len(repr(each)) for each in (method, method.schedule, method.schedule.events[0], clock)) < 700
