"""Data from folders of clients and from PyTorch data sets, against arrays put together by hand."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.data.files.folders import read_folder
from atoll.data.files.torch_data import from_torch
from atoll.data.population import Population
from atoll.experiment.client_data import make_clients, make_test_clients
from atoll.settings.validation import validate

Pair = tuple[np.ndarray, np.ndarray]
Write = Callable[[Path, Pair], None]


def make_pairs(sizes: tuple[int, ...], shape: tuple[int, ...] = (3,), classes: int = 3, seed: int = 0) -> list[Pair]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(classes, size=n)) for n in sizes]


def write_npz(file: Path, pair: Pair) -> None:
    np.savez(file.with_suffix(".npz"), x=pair[0], y=pair[1])


def write_parquet(file: Path, pair: Pair) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = {"img": pair[0].tolist(), "label": pair[1].tolist()}
    pyarrow.parquet.write_table(pa.table(columns), file.with_suffix(".parquet"))


def write_npy(folder: Path, pair: Pair) -> None:
    folder.mkdir()
    np.save(folder / "inputs.npy", pair[0])
    np.save(folder / "targets.npy", pair[1])


def natural(root: Path, clients: int, **options: Any) -> Population:
    data = {"dataset": "folder", "root": str(root), "partition": "natural", "clients": clients, **options}
    return make_clients(validate({"data": data}))[0]


@pytest.mark.parametrize("write", [write_npz, write_parquet, write_npy])
def test_each_client_holds_its_file(tmp_path: Path, write: Write) -> None:
    pairs, test = make_pairs((4, 2, 7)), make_pairs((5,), seed=1)[0]
    for k, pair in enumerate(pairs):
        write(tmp_path / f"part_{8 + k}", pair)  # 8, 9, 10: numbers in names count as numbers
    write(tmp_path / "test", test)
    (tmp_path / "README.md").write_text("not data")
    population = natural(tmp_path, 3)
    for k, (inputs, targets) in enumerate(pairs):
        rows = population.samples(k)
        np.testing.assert_array_equal(population.data.inputs[rows], inputs)
        np.testing.assert_array_equal(population.data.targets[rows], targets)
    np.testing.assert_array_equal(population.data.test_inputs, test[0])
    assert (population.data.classes, population.data.scale) == (3, 1.0)


def test_the_first_clients_can_be_taken(tmp_path: Path) -> None:
    for k, pair in enumerate(make_pairs((5, 6, 7))):
        write_npz(tmp_path / f"{k}", pair)
    assert natural(tmp_path, 2).sizes.tolist() == [4, 5]  # every fifth sample is held out
    with pytest.raises(atoll.InputError, match=r"data.clients = 4: the data has only 3 clients; take at most 3"):
        natural(tmp_path, 4)


def test_another_partition_deals_the_pool_out(tmp_path: Path) -> None:
    for k, pair in enumerate(make_pairs((10, 15))):
        write_npz(tmp_path / f"{k}", pair)
    data = {"dataset": "folder", "root": str(tmp_path), "partition": "iid", "clients": 4}
    assert make_clients(validate({"data": data}))[0].sizes.tolist() == [5, 5, 5, 5]


def test_every_fifth_sample_is_held_out(tmp_path: Path) -> None:
    pairs = make_pairs((10, 3, 6))
    for k, pair in enumerate(pairs):
        write_npz(tmp_path / f"{k}", pair)
    data = read_folder(str(tmp_path))
    wanted = [pairs[0][0][4], pairs[0][0][9], pairs[2][0][4]]
    np.testing.assert_array_equal(data.test_inputs, np.stack(wanted))
    assert data.test_owners is not None
    assert data.test_owners.tolist() == [0, 0, 2]
    assert len(data) == 16


def test_clients_own_tests_make_test_clients(tmp_path: Path) -> None:
    train, test = make_pairs((4, 5, 6)), make_pairs((2, 3, 1), seed=1)
    for k in range(3):
        (tmp_path / f"{k}").mkdir()
        write_npz(tmp_path / f"{k}" / "train", train[k])
        if k != 1:
            write_npz(tmp_path / f"{k}" / "test", test[k])
    settings = validate({"data": {"dataset": "folder", "root": str(tmp_path), "partition": "natural", "clients": 3}})
    population, _ = make_clients(settings)
    clients = make_test_clients(settings, population)
    assert clients.sizes.tolist() == [2, 1]
    np.testing.assert_array_equal(clients.data.inputs[clients.samples(1)], test[2][0])


def test_a_common_test_set_is_not_enough_where_clients_are_tested(tmp_path: Path) -> None:
    write_npz(tmp_path / "a", make_pairs((4,))[0])
    write_npz(tmp_path / "test", make_pairs((4,))[0])
    settings = validate({"data": {"dataset": "folder", "root": str(tmp_path), "partition": "natural", "clients": 1}})
    with pytest.raises(atoll.InputError, match="tested client by client"):
        make_test_clients(settings, make_clients(settings)[0])


def test_images_as_hugging_face_keeps_them(tmp_path: Path) -> None:
    """Encoded PNG files in a struct of bytes and path become channels-first bytes."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet
    from PIL import Image

    pixels = np.random.default_rng(0).integers(256, size=(6, 5, 4, 3), dtype=np.uint8)

    def encode(image: np.ndarray) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "png")
        return stream.getvalue()

    column = [{"bytes": encode(image), "path": None} for image in pixels]
    pyarrow.parquet.write_table(
        pa.table({"image": column, "fine_label": [0, 1, 2, 0, 1, 2]}), tmp_path / "partition_0.parquet"
    )
    data = read_folder(str(tmp_path), targets="fine_label")
    assert data.inputs.dtype == np.uint8
    np.testing.assert_array_equal(data.inputs, np.moveaxis(pixels, 3, 1)[[0, 1, 2, 3, 5]])
    assert data.scale == 1 / 255


def test_bytes_are_pixels(tmp_path: Path) -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    write_npz(tmp_path / "grey", (pixels, np.arange(5)))
    data = read_folder(str(tmp_path))
    assert (data.shape, data.scale, data.classes) == ((1, 4, 3), 1 / 255, 5)
    last = np.arange(120, dtype=np.uint8).reshape(5, 4, 2, 3)
    write_npz(tmp_path / "grey", (last, np.arange(5)))
    np.testing.assert_array_equal(read_folder(str(tmp_path), channels_last=True).inputs[1], np.moveaxis(last[1], 2, 0))


def test_columns_of_numbers_become_one_vector(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", age=np.arange(6), income=np.arange(6) * 10.0, y=np.linspace(0, 1, 6))
    data = read_folder(str(tmp_path), inputs=["age", "income"])
    np.testing.assert_array_equal(data.inputs[2], [2, 20])
    assert (data.classes, data.loss) == (0, "squared")


def test_a_changed_folder_is_read_again(tmp_path: Path) -> None:
    write_npz(tmp_path / "a", make_pairs((10,))[0])
    before = natural(tmp_path, 1).data
    assert natural(tmp_path, 1).data is before
    write_npz(tmp_path / "a", make_pairs((20,))[0])
    assert natural(tmp_path, 1).sizes.tolist() == [16]


BAD: dict[str, tuple[list[Pair], dict[str, Any], str]] = {
    "empty client": ([*make_pairs((4,)), (np.empty((0, 3)), np.empty(0, int))], {}, "1.npz: holds no samples"),
    "shapes": (
        [*make_pairs((4,)), *make_pairs((4,), (2,))],
        {},
        r"1.npz: its inputs have the shape \[2\].*0.npz \[3\]",
    ),
    "types": (
        [*make_pairs((4,)), (np.ones((2, 3), np.uint8), np.ones(2, int))],
        {},
        "1.npz: its inputs have the type uint8",
    ),
    "label kinds": ([*make_pairs((4,)), (np.ones((2, 3)), np.ones(2))], {}, "1.npz: its targets have the type float32"),
    "too large a label": (make_pairs((9, 9)), {"classes": 2}, "npz: has the label 2; labels must be from 0 to 1"),
    "negative label": ([(np.ones((5, 3)), np.full(5, -1))], {}, "0.npz: has the label -1"),
    "lengths": ([(np.ones((5, 3)), np.zeros(4, int))], {}, r"0.npz: its targets have the shape \[4\]"),
    "not finite": ([(np.full((5, 3), np.nan), np.zeros(5, int))], {}, "0.npz: its inputs must be finite"),
    "words": ([(np.ones((5, 3)), np.array(list("abcde")))], {}, "0.npz: its targets have the type <U1"),
    "no column": (make_pairs((5,)), {"targets": "digit"}, "has no column 'digit'; set data.targets to the column"),
    "nobody to hold out of": (make_pairs((4, 3)), {}, "no client has 5 samples, of which to hold one out"),
    "option": (make_pairs((5,)), {"klasses": 3}, "data.klasses"),
    "option's type": (make_pairs((5,)), {"classes": "ten"}, "data.classes = 'ten'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folders_are_told_in_one_sentence(tmp_path: Path, case: str) -> None:
    pairs, options, told = BAD[case]
    for k, pair in enumerate(pairs):
        write_npz(tmp_path / f"{k}", pair)
    with pytest.raises(atoll.InputError, match=told):
        natural(tmp_path, len(pairs), **options)


def test_folders_that_are_not_there_or_hold_no_clients(tmp_path: Path) -> None:
    with pytest.raises(atoll.InputError, match=r"data.root is not set"):
        read_folder()
    with pytest.raises(atoll.InputError, match="does not exist"):
        read_folder(str(tmp_path / "nowhere"))
    with pytest.raises(atoll.InputError, match="holds no clients"):
        read_folder(str(tmp_path))
    (tmp_path / "alice").mkdir()
    with pytest.raises(atoll.InputError, match="alice: this client's folder has no training samples"):
        read_folder(str(tmp_path))
    for k in range(2):
        write_npz(tmp_path / "alice" / f"part-{k}", make_pairs((4,))[0])
    with pytest.raises(atoll.InputError, match="alice: holds 2 files; if they belong to one client, name them train-"):
        read_folder(str(tmp_path))


@pytest.mark.parametrize("name", ["a.npz", "a.parquet"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not what it seems")
    with pytest.raises(atoll.InputError, match=rf"{name}: cannot be read"):
        read_folder(str(tmp_path))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}], dtype=object), y=np.zeros(2, int))
    with pytest.raises(atoll.InputError, match=r"a.npz: cannot be read \(it holds values of type object"):
        read_folder(str(tmp_path))


def test_saved_tensors_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    torch.save({"inputs": torch.ones(2)}, tmp_path / "a" / "train.pt")
    with pytest.raises(atoll.InputError, match=r"a: this client's folder has no training samples"):
        read_folder(str(tmp_path))


def test_ragged_lists_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(atoll.InputError, match=r"a.parquet: column 'x' holds lists of 1 to 2 entries"):
        read_folder(str(tmp_path))


def test_the_natural_partition_needs_owners() -> None:
    with pytest.raises(atoll.InputError, match="does not say which client holds a sample"):
        make_clients(validate({"data": {"dataset": "digits", "partition": "natural"}}))


class Pictures(torch.utils.data.Dataset[Any]):
    """Samples as torchvision gives them: PIL images and whole numbers."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return Image.fromarray(self.pixels[index]), index % 2


def test_torch_data_sets() -> None:
    inputs, targets = torch.randn(10, 2, 3), torch.arange(10) % 4
    train, test = torch.utils.data.TensorDataset(inputs, targets), torch.utils.data.TensorDataset(inputs, targets)
    data = from_torch(train, test)
    np.testing.assert_array_equal(data.inputs, inputs.numpy())
    np.testing.assert_array_equal(data.targets, targets.numpy())
    assert (data.classes, data.owners) == (4, None)
    halves = torch.utils.data.TensorDataset(inputs.bfloat16(), targets)  # which NumPy has not
    np.testing.assert_array_equal(from_torch(halves, halves).inputs, inputs.bfloat16().float().numpy())
    named = from_torch([train, test], test, name="two")
    assert named.owners is not None
    assert named.owners.tolist() == [0] * 10 + [1] * 10


@pytest.mark.parametrize("shape", [(6, 5, 4), (6, 5, 4, 3)])
def test_torch_data_sets_of_pictures(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    data = from_torch(Pictures(pixels))
    wanted = pixels[:, None] if len(shape) == 3 else np.moveaxis(pixels, 3, 1)
    np.testing.assert_array_equal(data.inputs, wanted[[0, 1, 2, 3, 5]])
    assert data.scale == 1 / 255


def test_torch_data_sets_of_mappings() -> None:
    rows: list[Any] = [{"pixels": [0.5, k], "digit": k % 2} for k in range(5)]
    data = from_torch(rows_of(rows), inputs="pixels", targets="digit")
    assert data.inputs.tolist() == [[0.5, k] for k in range(4)]
    with pytest.raises(atoll.InputError, match="a mapping with the keys pixels, digit; the arguments inputs"):
        from_torch(rows_of(rows))


class rows_of:
    """A map-style data set that is not PyTorch's."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(torch.ones(2), 0), (torch.ones(3), 0)], r"sample 1 has the shape \[3\], sample 0 \[2\]"),
        ([torch.ones(2)], r"must be a pair of input and target"),
        ([], "holds no samples"),
        ([(torch.ones(2), "cat")] * 5, "its targets have the type <U3"),
    ],
)
def test_bad_torch_data_sets(rows: list[Any], told: str) -> None:
    with pytest.raises(atoll.InputError, match=told):
        from_torch(rows_of(rows), inputs=None)


def test_a_stream_is_no_map_style_data_set() -> None:
    with pytest.raises(atoll.InputError, match="must be a map-style data set"):
        from_torch(iter([1]))  # type: ignore[arg-type]
