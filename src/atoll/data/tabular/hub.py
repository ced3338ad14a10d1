"""`data.dataset = "hf:NAME"`: a data set that Hugging Face's `datasets` loads."""

from typing import Any

from atoll.data.dataset import Dataset
from atoll.data.tabular.data_frames import make_source
from atoll.data.tabular.make import make_table
from atoll.data.tabular.table_settings import Wanted, with_table_settings
from atoll.support.errors import InputError
from atoll.support.extras import load_extra


@with_table_settings
def read_hub(repository: str, configuration: str | None = None, **settings: Any) -> Dataset:
    """Load a data set with `datasets.load_dataset`, which downloads what its cache lacks, and read it as a table.

    No code from the repository is run. Its split `test` is the test set; without one, rows are held out.

    Args:
        repository: the name after ``hf:``.
        configuration: its name, where the repository has several.
    """
    splits = _load(repository, configuration)
    if "train" not in splits:
        raise InputError(f"data.dataset = 'hf:{repository}': has no split train, only {', '.join(splits)}")
    test = splits["test"].data.table if "test" in splits else None
    return make_table(make_source(repository, splits["train"].data.table, test), Wanted(**settings))


def _load(repository: str, configuration: str | None) -> Any:
    told = f"data.dataset = 'hf:{repository}'"
    datasets = load_extra("datasets", "hf", f"{told}:", "Hugging Face's datasets")
    try:
        return datasets.load_dataset(repository, configuration)
    except Exception as error:  # from the network, the hub or the files
        raise InputError(f"{told}: cannot be loaded ({' '.join(str(error).split())[:300]})") from error
