"""`data.dataset = "table"`: files with any columns as a data set, with clients, groups and an order in time."""

from typing import Any

from atoll.data.dataset import Dataset
from atoll.data.tabular.make import make_table
from atoll.data.tabular.source import open_source
from atoll.data.tabular.table_settings import Wanted, with_table_settings


@with_table_settings
def read_table(root: str | None = None, **settings: Any) -> Dataset:
    """Read CSV, Parquet or Arrow files as one table; ``data.partition = "natural"`` gives each client its rows.

    Numbers are standardised and texts become categories, both fitted to the training rows. The page on interoperation
    has all the rules.

    Args:
        root: the file, or a folder of files, `data.root`.
    """
    wanted = Wanted(**settings)
    return make_table(open_source(root, keep=wanted.about_rows), wanted)
