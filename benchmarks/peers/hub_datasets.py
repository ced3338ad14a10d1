"""Make data sets by Hugging Face's `datasets`, keep them as it does, and compare what Atoll reads with them."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

import datasets
from PIL import Image

from atoll import Experiment, make_runs

ROWS, TESTED = 60, 12


def made(rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.integers(20, 90, rows).tolist(),
        "dose": rng.normal(size=rows).tolist(),
        "ward": [("A", "B", "C")[n % 3] for n in range(rows)],
        "label": (np.arange(rows) % 2).tolist(),
        "clinic": [f"clinic {n % 4}" for n in range(rows)],
    }


def features() -> datasets.Features:
    kinds = {"age": "int64", "dose": "float64", "ward": "string", "clinic": "string"}
    told = {name: datasets.Value(kind) for name, kind in kinds.items()}
    return datasets.Features({**told, "label": datasets.ClassLabel(names=["well", "ill"])})


def tables() -> datasets.DatasetDict:
    parts = {"train": made(ROWS, 0), "test": made(TESTED, 1)}
    return datasets.DatasetDict(
        {name: datasets.Dataset.from_dict(part, features=features()) for name, part in parts.items()}
    )


def read(dataset: str, root: Path | None, **data: Any) -> Any:
    """Return the data set that Atoll reads."""
    wanted = {"dataset": dataset, "clients": 4, **({} if root is None else {"root": str(root)}), **data}
    return Experiment(make_runs({"data": wanted})[0]).clients.dealt.data


def require_table(data: Any, rows: int = ROWS, tested: int = TESTED, names: tuple[str, ...] = ("well", "ill")) -> None:
    """Reject rows, encodings or names other than those that were made."""
    own, tests = made(ROWS, 0), made(TESTED, 1)
    assert (len(data.inputs), len(data.test_inputs)) == (rows, tested)
    assert data.names["targets"] == names, data.names["targets"]
    assert data.names["owners"] == tuple(f"clinic {n}" for n in range(4))
    for table, inputs, targets, owners in (
        (own, data.inputs, data.targets, data.owners),
        (tests, data.test_inputs, data.test_targets, data.test_owners),
    ):
        for place, name in enumerate(("age", "dose")):
            fitted = np.array(own[name], float)
            expected = (np.array(table[name], float) - fitted.mean()) / fitted.std()
            np.testing.assert_allclose(inputs[:, place], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(inputs[:, 2:], [[ward == each for each in "ABC"] for ward in table["ward"]])
        np.testing.assert_array_equal(targets, table["label"])
        np.testing.assert_array_equal(owners, np.arange(len(targets)) % 4)


NATURAL = {"target": "label", "client": "clinic", "partition": "natural"}


def check_saved(folder: Path) -> Iterator[str]:
    tables().save_to_disk(folder / "saved")
    require_table(read("table", folder / "saved", **NATURAL))
    yield "DatasetDict.save_to_disk, as a table"
    tables().save_to_disk(folder / "sharded", num_shards={"train": 3, "test": 2})
    require_table(read("table", folder / "sharded", **NATURAL))
    yield "the same in several shards"
    tables()["train"].save_to_disk(folder / "single")
    data = read("table", folder / "single", **NATURAL)
    assert len(data.inputs) + len(data.test_inputs) == ROWS
    yield "Dataset.save_to_disk of one split, of which rows are held out"


def check_loaded(folder: Path) -> Iterator[str]:
    repository = folder / "repository"
    repository.mkdir()
    for name, split in tables().items():
        split.to_parquet(repository / f"{name}.parquet")
    require_table(read(f"hf:{repository}", None, **NATURAL))
    yield "hf: of a folder of Parquet, by load_dataset"
    cache = folder / "cache"
    for name, split in tables().items():
        split.to_csv(repository / f"{name}.csv")
    files = {name: str(repository / f"{name}.csv") for name in ("train", "test")}
    kept = datasets.load_dataset("csv", data_files=files, cache_dir=str(cache))
    place = Path(kept["train"].cache_files[0]["filename"]).parent
    require_table(read("table", place, **NATURAL), names=("0", "1"))
    yield "the cache's own Arrow files, as a table"


def check_pictures(folder: Path) -> Iterator[str]:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3)).astype(np.uint8)
    rows = {"image": [Image.fromarray(each) for each in pixels], "label": [n % 2 for n in range(20)]}
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    split = datasets.Dataset.from_dict(rows, features=kinds)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(folder / "pictures")
    data = read("table", folder / "pictures", target="label", inputs=["image"])
    np.testing.assert_array_equal(data.inputs, np.moveaxis(pixels, 3, 1))
    assert data.names["targets"] == ("cat", "dog")
    yield "pictures, as bytes"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        for check in (check_saved, check_loaded, check_pictures):
            for told in check(Path(place)):
                print(f"datasets {datasets.__version__}: {told}: as it was made")


if __name__ == "__main__":
    main()
