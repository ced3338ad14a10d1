"""`data.dataset = "table"`: a table of any columns as a data set, with its clients, groups and order in time."""

from atoll.data.datasets import Dataset
from atoll.data.tabular.encoders import Missing
from atoll.data.tabular.make import Wanted, make_table
from atoll.data.tabular.source import open_source
from atoll.data.tabular.table_targets import Task
from atoll.support.limits import Positive


def read_table(
    root: str | None = None,
    target: str | list[str] | None = None,
    client: str | list[str] | None = None,
    group: str | None = None,
    split: str | None = None,
    time: str | None = None,
    id: str | None = None,
    inputs: str | list[str] | None = None,
    categorical: list[str] | None = None,
    text: list[str] | None = None,
    task: Task | None = None,
    missing: Missing = "refuse",
    categories: Positive = 100,
    hashes: Positive = 1024,
    window: Positive | None = None,
    horizon: Positive = 1,
    test_every: int = 5,
    min_samples: Positive | None = None,
) -> Dataset:
    """Read CSV, Parquet or Arrow files as one table; ``data.partition = "natural"`` gives each client its rows.

    Numbers are standardised, texts become categories, each by what training rows hold. The page on interoperation
    states all rules.

    Args:
        root: the file, or a folder of files, `data.root`.
        target: the column that is predicted; several are as many labels, or numbers.
        client: the column of who holds a row; several together.
        group: the column of the client's planted group.
        split: the column that says train, test or validation; unset: files' names, or else rows are held out.
        time: the column by which a client's rows are in order.
        id: the column of the rows' names, which must differ.
        inputs: the columns that are predicted from; unset: all that are for nothing else.
        categorical: columns of whole numbers, truth values or dates that are categories.
        text: columns of texts whose words are hashed.
        task: classes, labels (several that each apply or not) or regression; unset: by the target's values.
        missing: refuse; fill with the training rows' mean, or no category; flag, the same and where; or drop the rows.
        categories: most categories of a column.
        hashes: numbers that a text becomes.
        window: rows after each other that are one input, by time.
        horizon: how many rows after the last of a window its target is.
        test_every: where nothing says what is for the test, one row in so many of each client is held out.
        min_samples: clients with fewer samples for training are left out; unset: none.

    Raises:
        InputError: what does not fit, in one sentence.
    """
    given = dict(locals())
    root, wanted = given.pop("root"), Wanted(**given)
    return make_table(open_source(root, keep=wanted.about_rows), wanted)
