"""How columns become numbers. Encoders are fitted to training rows alone; test rows are only encoded."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from atoll.data.array_inputs import is_finite
from atoll.data.tabular.column_types import numbers, plain
from atoll.data.tabular.csv import is_number
from atoll.data.tabular.table_settings import Missing
from atoll.support.arrays import Floats, Mask
from atoll.support.errors import InputError
from atoll.support.wording import show

if TYPE_CHECKING:
    import pyarrow as pa

Block = npt.NDArray[np.float32]


class Encoder(Protocol):
    """Turns each value of the column `name` into numbers."""

    name: str

    @property
    def names(self) -> list[str]:
        """The numbers' names, once all training rows have been seen."""

    def see(self, column: "pa.Array", training: Mask) -> None:
        """Take in some rows, and which of them are for training."""

    def write(self, column: "pa.Array", block: Block) -> None:
        """Write the rows' numbers into a block of zeros, [rows, numbers]."""


class Number:
    """A number, standardised by the training rows' mean and deviation; 0 where it is missing or never varies.

    With `missing` = "flag", a second number is 1 where the first is missing, if any training row lacks it.
    """

    def __init__(self, name: str, missing: Missing) -> None:
        self.name = name
        self._missing = missing
        self._count, self._mean, self._squares, self._lacks = 0, 0.0, 0.0, False

    @property
    def names(self) -> list[str]:
        """Return the names of the column and of its flag."""
        return [self.name, f"{self.name} is missing"] if self._flags else [self.name]

    def see(self, column: "pa.Array", training: Mask) -> None:
        """Add the training rows to mean and deviation."""
        values = numbers(column)
        if not is_finite(values):
            values, training = self._known(values, training)
        known = values if training.all() else values[training]
        if len(known):
            with _in_range(self.name):
                self._add(known)

    def _known(self, values: Floats, training: Mask) -> tuple[Floats, Mask]:
        """Return the values present, and which of them are for training; note whether training rows lack any."""
        if np.isinf(values).any():
            raise InputError(f"data.inputs: column {self.name!r} holds infinite numbers")
        lacking = np.isnan(values)
        _check_missing(self.name, self._missing, int(lacking.sum()))
        self._lacks |= bool((lacking & training).any())
        return values[~lacking], training[~lacking]

    def _add(self, values: Floats) -> None:
        """Update the moments without the cancellation of sums of squares (Chan et al. 1983)."""
        mean, count = float(values.mean()), len(values)
        total, apart = self._count + count, mean - self._mean
        deviations = values - mean
        self._squares += float(np.square(deviations, out=deviations).sum()) + apart**2 * self._count * count / total
        self._mean += apart * count / total
        self._count = total

    def write(self, column: "pa.Array", block: Block) -> None:
        """Write the standardised numbers."""
        values = numbers(column)
        lacking = None if is_finite(values) else np.isnan(values)
        deviation = (self._squares / self._count) ** 0.5 if self._count else 0.0
        if deviation > 1e-12 * abs(self._mean):  # else constant: the mean of many equal numbers is rounded
            standard = values - self._mean
            standard /= deviation
            if lacking is not None:
                standard[lacking] = 0
            with _in_range(self.name):
                block[:, 0] = standard
        if self._flags and lacking is not None:
            block[:, 1] = lacking

    @property
    def _flags(self) -> bool:
        return self._missing == "flag" and self._lacks


class Category:
    """One-hot encoding of the training rows' values, in the order of their names; other values are all 0.

    Missing values are all 0 too; with `missing` = "flag", a category of their own if any training row lacks one.
    """

    def __init__(self, name: str, missing: Missing, most: int) -> None:
        self.name = name
        self._missing = missing
        self._most = most
        self._counts: Counter[Any] = Counter()

    @property
    def names(self) -> list[str]:
        """Return one name per category."""
        return [f"{self.name} = {value}" for value in self._known] + [f"{self.name} is missing"] * self._flags

    def see(self, column: "pa.Array", training: Mask) -> None:
        """Count the training rows' categories."""
        import pyarrow as pa

        _check_missing(self.name, self._missing, column.null_count)
        for pair in plain(column).filter(pa.array(training)).value_counts().to_pylist():
            self._counts[pair["values"]] += pair["counts"]
        if len(self._counts) > self._most:
            raise self._too_many()

    @property
    def exception(self) -> str:
        """A text that is no number, if most categories are numbers; '' if they are not, or if all are."""
        texts = [value for value in self._counts if isinstance(value, str)]
        odd = [text for text in texts if not is_number(text)]
        return odd[0] if 0 < len(odd) < len(texts) / 2 else ""

    def _too_many(self) -> InputError:
        if self.exception:
            return InputError(
                f"data.inputs: column {self.name!r} holds numbers, but also {show(self.exception)}; correct it, "
                "leave it out of data.inputs, or raise data.categories if the numbers are names"
            )
        return InputError(
            f"data.categories = {self._most}: column {self.name!r} has more categories, such as "
            f"{show(next(iter(self._counts)))}; leave it out of data.inputs, name it in data.text, or raise it"
        )

    def write(self, column: "pa.Array", block: Block) -> None:
        """Write 1 in each row's category."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = plain(column)
        values = pa.array(self._known, column.type) if self._known else pa.nulls(0, column.type)
        places = pc.index_in(column, value_set=values, skip_nulls=True).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(~np.isnan(places))
        block[rows, places[rows].astype(int)] = 1
        if self._flags:
            block[:, -1] = column.is_null().to_numpy(zero_copy_only=False)

    @property
    def _known(self) -> list[Any]:
        return sorted(value for value in self._counts if value is not None)

    @property
    def _flags(self) -> bool:
        return self._missing == "flag" and None in self._counts


class Text:
    """Words hashed to a vector of `hashes` numbers and length 1; nothing is fitted."""

    def __init__(self, name: str, missing: Missing, hashes: int) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self.name = name
        self._missing = missing
        self._hashing = HashingVectorizer(n_features=hashes, dtype=np.float32)

    @property
    def names(self) -> list[str]:
        """Return one name per number."""
        return [f"{self.name} #{i}" for i in range(self._hashing.n_features)]

    def see(self, column: "pa.Array", training: Mask) -> None:
        """Refuse missing texts if the settings do."""
        _check_missing(self.name, self._missing, column.null_count)

    def write(self, column: "pa.Array", block: Block) -> None:
        """Write the hashed words; missing texts are all 0."""
        block[:] = self._hashing.transform([text or "" for text in column.to_pylist()]).toarray()


@contextmanager
def _in_range(name: str) -> Iterator[None]:
    """Refuse a column's numbers if they overflow, in sums of squares or when standardised."""
    try:
        with np.errstate(over="raise"):
            yield
    except (FloatingPointError, OverflowError):
        raise InputError(
            f"data.inputs: column {name!r} holds numbers too large to standardise: beyond 1e150, or more than 3e38 "
            "deviations from the training rows' mean"
        ) from None


def _check_missing(name: str, missing: Missing, lacking: int) -> None:
    if lacking and missing in ("refuse", "drop"):  # dropped rows were left out before
        told = f"data.missing = {missing!r}: column {name!r} lacks values, at least {lacking}; 'fill' puts in the"
        told += " training rows' mean (or no category), 'flag' also marks them"
        raise InputError(told + ", 'drop' leaves such rows out" * (missing == "refuse"))
