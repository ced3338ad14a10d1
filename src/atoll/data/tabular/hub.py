"""`data.dataset = "hf:NAME"`: a data set that Hugging Face's `datasets` loads."""

from typing import Any, Literal

from atoll.data.datasets import Dataset
from atoll.data.tabular.data_frames import make_source
from atoll.data.tabular.make import Wanted, make_table
from atoll.support.errors import InputError
from atoll.support.extras import load_extra


def read_hub(
    repository: str,
    target: str | list[str],
    configuration: str | None = None,
    client: str | list[str] | None = None,
    group: str | None = None,
    time: str | None = None,
    inputs: str | list[str] | None = None,
    categorical: list[str] | None = None,
    text: list[str] | None = None,
    task: Literal["classes", "labels", "regression"] | None = None,
    missing: Literal["refuse", "fill", "flag", "drop"] = "refuse",
    test_every: int = 5,
    min_samples: int | None = None,
) -> Dataset:
    """Load a data set by `datasets.load_dataset`, which downloads what is not in its cache, and read it as a table.

    No code of the repository is run. Its split test is the test, or without one rows are held out.

    Args:
        repository: what stands after ``hf:``.
        target: the column that is predicted, as in a table.
        configuration: its name, where the repository has several.
        client: as in a table.
        group: as in a table.
        time: as in a table.
        inputs: as in a table; for pictures, their column.
        categorical: as in a table.
        text: as in a table.
        task: as in a table.
        missing: as in a table.
        test_every: as in a table.
        min_samples: as in a table.

    Raises:
        InputError: `datasets` is not installed, does not load it, or what does not fit.
    """
    settings = {key: value for key, value in locals().items() if key not in ("repository", "configuration")}
    splits = _load(repository, configuration)
    if "train" not in splits:
        raise InputError(f"data.dataset = 'hf:{repository}': has no split train, it has {', '.join(splits)}")
    source = make_source(
        repository, splits["train"].data.table, splits["test"].data.table if "test" in splits else None
    )
    return make_table(source, Wanted(**settings))


def _load(repository: str, configuration: str | None) -> Any:
    told = f"data.dataset = 'hf:{repository}'"
    datasets = load_extra("datasets", "hf", f"{told}:", "Hugging Face's datasets")
    try:
        return datasets.load_dataset(repository, configuration)
    except Exception as error:  # of the network, of the hub, of the files
        raise InputError(f"{told}: cannot be loaded ({' '.join(str(error).split())[:300]})") from error
