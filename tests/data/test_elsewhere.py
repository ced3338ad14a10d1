"""Pictures in folders, LEAF's JSON, files that are clients, Hugging Face's data sets, and objects in place of names."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import atoll
from atoll import InputError
from atoll.data.files.images import read_images
from atoll.data.named_datasets import read_table
from atoll.experiment.client_data import make_clients
from atoll.settings.experiment_file import make_runs
from atoll.settings.validation import validate
from examples.leaf import LETTERS, read_leaf


def numbers(held: Any) -> Any:
    assert held is not None
    return held.tolist()


def paint(root: Path, *places: str, colour: Any = 7, size: tuple[int, int] = (3, 2)) -> Any:
    for place in places:
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def test_pictures_lie_below_clients_and_classes(tmp_path: Path) -> None:
    for client, cat in enumerate(("ann", "bob-2", "bob-10")):
        paint(tmp_path, *(f"{cat}/{name}/{i}.png" for name in ("dog", "ant") for i in range(5)), colour=10 * client)
    data = read_images(str(tmp_path))
    assert (data.shape, data.classes, data.scale) == ((1, 2, 3), 2, 1 / 255)
    assert data.names == {"targets": ("ant", "dog"), "owners": ("ann", "bob-2", "bob-10")}
    assert (len(data), len(data.test_inputs)) == (24, 6)  # the fifth of each client and class
    np.testing.assert_array_equal(data.inputs[:, 0, 0, 0], 10 * np.array(data.owners))
    data_settings = {"dataset": "images", "root": str(tmp_path), "partition": "natural", "clients": 3}
    assert make_clients(validate({"data": data_settings}))[0].sizes.tolist() == [8, 8, 8]


def test_pictures_may_lie_below_classes_of_train_and_test(tmp_path: Path) -> None:
    paint(tmp_path, "train/a/1.png", "train/b/1.png", "test/b/1.png", colour=(1, 2, 3), size=(8, 8))
    data = read_images(str(tmp_path), side=4)
    assert (data.shape, data.targets.tolist(), data.test_targets.tolist()) == ((3, 4, 4), [0, 1], [1])
    assert data.inputs[0, :, 0, 0].tolist() == [1, 2, 3]
    assert data.owners is None


def test_grey_pictures_have_one_channel_however_they_are_stored(tmp_path: Path) -> None:
    for mode, colour in (("L", 255), ("LA", (255, 100)), ("1", 1)):
        paint(tmp_path, f"a/{mode}-0.png", f"a/{mode}-1.png")
        for number in range(2):
            Image.new(mode, (3, 2), colour).save(tmp_path / f"a/{mode}-{number}.png")
    data = read_images(str(tmp_path))
    assert data.shape == (1, 2, 3)
    assert (data.inputs == 255).all()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda root: None, "holds no images"),
        (lambda root: paint(root, "a/1.png", "a/b/1.png"), "has another layout; it must hold client/class/image or"),
        (
            lambda root: paint(root, "a/1.png") or paint(root, "a/2.png", size=(4, 4)),
            "2.png: its size differs from the first image's, 3 x 2",
        ),
        (
            lambda root: (root / "a").mkdir() or (root / "a/1.png").write_bytes(b"\x89PNG\r\n"),
            r"1.png: cannot be read as an image \(cannot identify image file\)$",
        ),
        (
            lambda root: paint(root, *(f"{half}/a/{i}.png" for half in ("train", "val") for i in range(5))),
            "another layout",
        ),
        (lambda root: paint(root, "train/a/1.png", "test/b/1.png"), "is a test image, but no training image has"),
        (lambda root: paint(root, "a/1.png"), "no client has 5 images of a class to hold one out"),
    ],
)
def test_other_folders_of_pictures_are_refused(tmp_path: Path, make: Any, told: str) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match=told):
        read_images(str(tmp_path))


def leaf(folder: Path, users: dict[str, Any], file: str = "all_data_0.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"users": list(users), "num_samples": [len(each["y"]) for each in users.values()], "user_data": users}
    (folder / file).write_text(json.dumps(content))


def test_leaf_s_users_hold_their_samples(tmp_path: Path) -> None:
    users = {f"f{i}": {"x": [[i / 9.0] * 4] * 3, "y": [i % 2] * 3} for i in (10, 2)}
    leaf(tmp_path / "train", users)
    leaf(tmp_path / "test", {"f2": {"x": [[0.5] * 4], "y": [1]}})
    data = read_leaf(str(tmp_path), side=2)
    assert (data.shape, data.names["owners"], numbers(data.owners)) == ((1, 2, 2), ("f2", "f10"), [0] * 3 + [1] * 3)
    assert (numbers(data.test_owners), data.test_inputs.max()) == ([0], 0.5)
    np.testing.assert_allclose(data.inputs[:, 0, 0, 0], np.array(data.owners) * 8 / 9 + 2 / 9, rtol=1e-6)


def test_shakespeare_is_characters(tmp_path: Path) -> None:
    leaf(tmp_path, {"ROMEO": {"x": ["to b", "o be", " be~"] * 2, "y": ["e", " ", "or"[0]] * 2}})
    data = read_leaf(str(tmp_path))
    assert (data.inputs.dtype, data.shape, data.classes, data.scale) == (np.uint8, (4,), 81, 1.0)
    assert "".join(LETTERS[code] for code in data.inputs[0]) == "to b"
    assert (data.inputs[2, 3], data.targets[0]) == (80, LETTERS.index("e"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "must hold users, and user_data with each one's x and y"),
        ('{"users": ["a"], "user_data": {}}', "must hold users, and user_data"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1, 2], [3]], "y": [0, 1]}}}', "its lists differ in length"),
        ('{"users": ["a"], "user_data": {"a": {"x": ["ab", "c"], "y": ["d", "e"]}}}', "its texts differ in length"),
        ('{"users": ["a"], "user_data": {"a": {"x": [{"b": 1}], "y": [0]}}}', "its inputs have the type object"),
        ('{"users": ["a", "a"], "user_data": {"a": {"x": [[1]], "y": [0]}}}', "user 'a' is in another file too"),
    ],
)
def test_other_json_is_refused(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=told):
        read_leaf(str(tmp_path))


def test_each_file_of_a_folder_may_be_a_client(tmp_path: Path) -> None:
    for half, rows in (("train", 4), ("test", 2)):
        (tmp_path / half).mkdir()
        for name in ("ward-10", "ward-9"):
            (tmp_path / half / f"{name}.csv").write_text("x,y\n" + f"{name[-1]},no\n1,yes\n" * (rows // 2))
    data = read_table(str(tmp_path), target="y", client="file")
    assert (data.names["owners"], numbers(data.owners)) == (("ward-9", "ward-10"), [0] * 4 + [1] * 4)
    assert (data.names["inputs"], numbers(data.test_owners)) == (("x",), [0, 0, 1, 1])


def test_hugging_face_s_data_sets_are_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
    schema = pa.schema([("text", pa.string()), ("label", pa.int64())], {"huggingface": json.dumps(told)})
    train = pa.table({"text": ["good", "bad"] * 4, "label": [1, 0] * 4}, schema)

    def load_dataset(name: str, configuration: str | None) -> Any:
        if name != "some/reviews":
            raise FileNotFoundError(f"no {name}\non the hub")
        return {"train": SimpleNamespace(data=SimpleNamespace(table=train))}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    wanted = {"dataset": "hf:some/reviews", "target": "label", "text": ["text"], "clients": 2}
    (settings,) = make_runs({"data": wanted})  # as an experiment file is read
    assert (settings.data.dataset, settings.data.repository) == ("hf", "some/reviews")  # type: ignore[attr-defined]
    data = make_clients(settings)[0].data
    assert (data.names["targets"], data.shape) == (("neg", "pos"), (1024,))
    with pytest.raises(InputError, match=r"'hf:other': cannot be loaded \(no other on the hub\)"):
        make_clients(validate({"data": {**wanted, "dataset": "hf:other"}}))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"'hf:some/others': needs Hugging Face's datasets; run pip install"):
        make_clients(validate({"data": {**wanted, "dataset": "hf:some/others"}}))


def test_labels_may_be_texts() -> None:
    inputs = np.zeros((4, 2), np.float32)
    texts: Any = ["no", "yes", "no", "yes"]
    data = atoll.Dataset("t", inputs, texts, inputs[:1], np.array(["yes"]), classes=2)
    assert (data.targets.tolist(), data.test_targets.tolist(), data.names["targets"]) == (
        [0, 1, 0, 1],
        [1],
        ("no", "yes"),
    )
    with pytest.raises(InputError, match="test_targets: 'maybe' is not among the classes of targets, no, yes"):
        atoll.Dataset("t", inputs, texts, inputs[:1], np.array(["maybe"]), classes=2)


def test_what_save_to_disk_writes_is_a_table(tmp_path: Path) -> None:
    told = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    paint(tmp_path, "picture.png", size=(4, 4))
    picture = {"bytes": (tmp_path / "picture.png").read_bytes(), "path": None}
    for half, rows in (("train", 4), ("test", 2)):
        place = tmp_path / "saved" / half
        place.mkdir(parents=True)
        table = pa.table({"image": [picture] * rows, "label": [0, 1] * (rows // 2)}, schema)
        table = table.replace_schema_metadata({"huggingface": json.dumps(told)})
        with pa.ipc.new_stream(str(place / "data-00000-of-00001.arrow"), table.schema) as writer:
            writer.write_table(table)
        (place / "state.json").write_text("{}")
    data = read_table(str(tmp_path / "saved"), target="label", inputs="image")
    assert (data.shape, data.inputs.dtype, data.scale) == ((1, 4, 4), np.uint8, 1 / 255)
    assert (len(data), len(data.test_inputs), data.names["targets"]) == (4, 2, ("neg", "pos"))
