"""Long tables in little memory: rows of one dataclass, such as a schedule's events, as columns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain, islice, pairwise, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")

BLOCK = 4096  # rows

Column = Callable[[], Iterable[Any]]
"""Returns one field of all rows of a block."""

Numbers = npt.NDArray[Any]

_FLAT = [{(1, np.dtype(kind))} for kind in (np.int64, np.float64)]


class Packed(Sequence[Row]):
    """Rows as blocks of columns. The last block read is kept as rows, so iterating is fast.

    Values that rows share, such as a cohort or a merge, are still one object; others are in arrays of the smallest
    type that holds them.
    """

    def __init__(self, blocks: Iterable[Sequence[Row]]) -> None:
        """Pack blocks of `BLOCK` rows; the last one may be shorter."""
        self._length = 0
        self._blocks: list[tuple[type[Row], list[Column]]] = []
        for rows in blocks:
            self._length += len(rows)
            reads = [attrgetter(field.name) for field in fields(rows[0])]
            self._blocks.append((type(rows[0]), [_column_of(list(map(read, rows))) for read in reads]))
        self._last: tuple[int, list[Row]] = -1, []

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        number, place = divmod(range(self._length)[index], BLOCK)
        return self._rows_of(number)[place]

    def __iter__(self) -> Iterator[Row]:
        for number in range(len(self._blocks)):
            yield from self._rows_of(number)

    def _rows_of(self, number: int) -> list[Row]:
        kept, rows = self._last
        if kept != number:
            make, columns = self._blocks[number]
            rows = [make(*values) for values in zip(*(column() for column in columns), strict=True)]
            self._last = number, rows
        return rows


def pack(rows: Iterable[Row]) -> Sequence[Row]:
    """Return these rows, as `Packed` if they are more than a block; they are consumed one by one."""
    coming = iter(rows)
    first = tuple(islice(coming, BLOCK))
    rest = iter(lambda: tuple(islice(coming, BLOCK)), ())
    return first if len(first) < BLOCK else Packed(chain([first], rest))


def _column_of(values: list[Any]) -> Column:
    """Return a column of these values: packed if they are numbers, or different arrays or tuples of numbers."""
    kinds, distinct = set(map(type, values)), len(set(map(id, values)))
    if distinct == 1:
        return partial(repeat, values[0], len(values))
    if len(kinds) == 1 and kinds <= {int, float, bool}:
        return partial(_read_numbers, *_smallest(np.array(values)))
    if 2 * distinct > len(values):
        if kinds == {np.ndarray} and {(array.ndim, array.dtype) for array in values} in _FLAT:
            return partial(_read_arrays, _lengths_of(values), *_smallest(np.concatenate(values)))
        if kinds == {tuple} and {type(number) for numbers in values for number in numbers} in ({int}, {float}):
            return partial(_read_tuples, _lengths_of(values), *_smallest(np.array(list(chain.from_iterable(values)))))
    return partial(iter, values)


def _lengths_of(values: list[Any]) -> Numbers:
    return _smallest(np.array(list(map(len, values))))[0]


def _smallest(numbers: Numbers) -> tuple[Numbers, np.dtype[Any]]:
    """Return numbers in the smallest type that holds them exactly, whole ones as integers, and their original type."""
    kind = numbers.dtype
    if not len(numbers) or not (kind.kind == "i" or (kind.kind == "f" and _are_whole(numbers))):
        return numbers, kind
    least = np.result_type(*(np.min_scalar_type(int(number)) for number in (numbers.min(), numbers.max())))
    return numbers.astype(least), kind


def _are_whole(numbers: Numbers) -> bool:
    return bool((np.abs(numbers) < 2**53).all() and (np.rint(numbers) == numbers).all())  # inf and NaN are not below


def _read_numbers(numbers: Numbers, kind: np.dtype[Any]) -> list[Any]:
    return numbers.astype(kind).tolist()  # type: ignore[no-any-return]


def _read_arrays(lengths: Numbers, numbers: Numbers, kind: np.dtype[Any]) -> list[Numbers]:
    whole = numbers.astype(kind)
    return [whole[low:high] for low, high in _bounds(lengths)]


def _read_tuples(lengths: Numbers, numbers: Numbers, kind: np.dtype[Any]) -> list[tuple[Any, ...]]:
    whole = numbers.astype(kind).tolist()
    return [tuple(whole[low:high]) for low, high in _bounds(lengths)]


def _bounds(lengths: Numbers) -> Iterator[tuple[int, int]]:
    return pairwise([0, *np.cumsum(lengths, dtype=np.int64).tolist()])
