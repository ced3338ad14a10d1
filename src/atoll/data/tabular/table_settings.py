"""The settings of a table: what its columns are for, and what is made of them."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Signature, getdoc, signature
from typing import Literal

from atoll.data.dataset import Dataset
from atoll.support.errors import InputError
from atoll.support.limits import Positive
from atoll.support.requiring import require_fields

Names = str | list[str] | None
Missing = Literal["refuse", "fill", "flag", "drop"]
Task = Literal["classes", "labels", "regression", "causal"]

ABOUT_ROWS = ("target", "client", "group", "split", "time", "id")


@dataclass(frozen=True)
class Wanted:
    """The settings of a table.

    Attributes:
        target: the column to predict; several columns are several labels or numbers.
        client: the column that says which client holds a row; or several, taken together.
        group: the column with the client's planted group.
        split: the column that says train, test or validation; unset: file names decide, else rows are held out.
        time: the column that orders a client's rows.
        id: the column of row names, which must be unique.
        inputs: the columns to predict from; unset: all remaining columns.
        categorical: columns of integers, booleans or dates to treat as categories.
        text: columns of text whose words are hashed.
        task: classes, labels (several, each of which applies or not), regression, or causal: to predict a text's next
            tokens, without a target; unset: inferred from the target.
        missing: refuse; fill with the training mean, or no category; flag: fill, and say where; or drop the rows.
        categories: most categories allowed in a column.
        hashes: length of the vector that a text is hashed to.
        tokenizer: a folder with tokenizer.json, or a name on Hugging Face's hub: `inputs`, one column of texts, become
            tokens.
        length: tokens of a sample; longer texts are shortened or, if causal, cut into several samples.
        window: consecutive rows, by time, that make one input.
        horizon: how many rows after a window's last row its target lies.
        test_every: where nothing marks test rows, one in this many of each client's rows is held out.
        min_samples: clients with fewer training samples are left out; unset: none are.
    """

    target: Names = None
    client: Names = None
    group: str | None = None
    split: str | None = None
    time: str | None = None
    id: str | None = None
    inputs: Names = None
    categorical: list[str] | None = None
    text: list[str] | None = None
    task: Task | None = None
    missing: Missing = "refuse"
    categories: Positive = 100
    hashes: Positive = 1024
    tokenizer: str | None = None
    length: Positive = 128
    window: Positive | None = None
    horizon: Positive = 1
    test_every: int = 5
    min_samples: Positive | None = None

    def __post_init__(self) -> None:
        """Refuse settings without a target, texts without tokens, or what has no effect, before any file is read."""
        require_fields(self, "data.")
        if self.task == "causal":
            if self.target:
                raise InputError("data.task = 'causal': predicts a text's own tokens; leave data.target out")
            if not self.tokenizer:
                raise InputError("data.task = 'causal': needs data.tokenizer, which makes tokens of texts")
            if self.length == 1:
                raise InputError("data.length = 1: must be at least 2 with data.task = 'causal', to predict the second")
        elif not self.target and self.target != []:
            raise InputError("data.target is not set: it names the column to predict")
        if self.tokenizer:
            self.refuse_encoding("with data.tokenizer")
        if self.horizon != 1 and self.window is None:
            raise InputError(f"data.horizon = {self.horizon}: needs data.window, after which it counts rows")

    def refuse_encoding(self, where: str) -> None:
        """Refuse settings of how columns become numbers where none do."""
        for name in ("window", "text", "categorical"):
            if value := getattr(self, name):
                raise InputError(f"data.{name} = {value!r}: has no effect {where}; leave it out")

    @property
    def about_rows(self) -> set[str]:
        """All columns that are named in a role other than input."""
        return {name for role in ABOUT_ROWS for name in names_in(getattr(self, role))}


def with_table_settings(read: Callable[..., Dataset]) -> Callable[..., Dataset]:
    """Give a function that takes ``**settings`` the parameters of `Wanted`, with their descriptions."""
    own = [each for each in signature(read).parameters.values() if each.kind is not each.VAR_KEYWORD]
    read.__signature__ = Signature([*own, *signature(Wanted).parameters.values()])  # type: ignore[attr-defined]
    told = str(getdoc(Wanted)).partition("Attributes:\n")[2]
    args, raises, rest = str(getdoc(read)).partition("\n\nRaises:")
    read.__doc__ = f"{args}\n{told}{raises}{rest}"
    return read


def names_in(names: Names) -> list[str]:
    """Return the names in a setting that takes one or several."""
    return [] if names is None else [names] if isinstance(names, str) else names
