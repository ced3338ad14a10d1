"""Networks from files: a table of clients (CSV or Parquet), or matrices of seconds (CSV or NumPy).

Errors in a file are InputErrors that name the file, the column and the row, counted from 1 below a header.
"""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atoll.network.column_files import POSITIONS, check_column, read_columns, whole_numbers
from atoll.network.network import Network, Power
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError, refusing
from atoll.support.numpy_files import read_npy
from atoll.support.untrusted import MOST_BYTES_OF_LINES, read_bytes
from atoll.support.wording import show

COLUMNS = (*POSITIONS, "power", "seconds_per_sample")


@dataclass(frozen=True, eq=False)
class ClientTable:
    """A file's table of clients, in order of their numbers; None for columns that it lacks.

    Attributes:
        clients_xy: positions in metres, [clients, 2].
        watts: transmission power, [clients].
        seconds_per_sample: zeta_i, [clients].
        samples: d_i, [clients].
        upload_seconds: of one upload to the only server, [clients].
        power: power that they draw.
    """

    clients: int
    clients_xy: Floats | None
    watts: Floats | None
    seconds_per_sample: Floats | None
    samples: Ids | None
    upload_seconds: Floats | None = None
    names: tuple[str, ...] | None = None
    power: Power | None = None


def read_network_clients(path: str | Path, required: Sequence[str] = COLUMNS) -> ClientTable:
    """Read a table with one row per client from a CSV file with a header, or a Parquet file.

    Columns: ``client`` (0 to N - 1, each once, in any order), ``x`` and ``y`` (metres), ``power`` (milliwatts),
    ``seconds_per_sample``, ``samples``, ``upload_seconds``. Only `client` and those in `required` are mandatory.
    """
    columns = read_columns(path, ("client", *required), (*COLUMNS, "samples", "upload_seconds"))
    order = _order(path, columns["client"])
    for name in ("power", "seconds_per_sample"):
        if name in columns:
            check_column(path, name, columns[name], columns[name] > 0, "must be positive")
    uploads = columns.get("upload_seconds")
    if uploads is not None:
        check_column(path, "upload_seconds", uploads, uploads >= 0, "must be at least 0")
    if ("x" in columns) != ("y" in columns):
        raise InputError(f"{path}: has only one of the columns 'x' and 'y'")
    samples = whole_numbers(path, "samples", columns["samples"], least=1)[order] if "samples" in columns else None
    found = {name: column[order] for name, column in columns.items()}
    return ClientTable(
        clients=len(order),
        clients_xy=np.column_stack([found["x"], found["y"]]) if "x" in found else None,
        watts=found["power"] / 1000 if "power" in found else None,
        seconds_per_sample=found.get("seconds_per_sample"),
        samples=samples,
        upload_seconds=found.get("upload_seconds"),
    )


def read_aggregators(path: str | Path) -> Floats:
    """Read aggregators' positions from a CSV file with a header, or a Parquet file, [aggregators, 2] metres.

    Columns: ``aggregator`` (0 to M - 1, each once, in any order), ``x`` and ``y``.
    """
    columns = read_columns(path, ("aggregator", *POSITIONS))
    return np.column_stack([columns["x"], columns["y"]])[_order(path, columns["aggregator"], "aggregator")]


def read_matrix(path: str | Path) -> Floats:
    """Read seconds from a .csv file without a header ([rows, columns]) or a .npy file (one or two dimensions)."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".npy"):
        raise InputError(f"{path}: must be a .csv or a .npy file")
    matrix = _read_matrix_csv(Path(path)) if suffix == ".csv" else _read_npy(Path(path))
    if not matrix.size:
        raise InputError(f"{path}: has no numbers")
    if not (matrix.min() >= 0 and matrix.max() < np.inf):
        place = np.unravel_index(np.argmin((matrix >= 0) & (matrix < np.inf)), matrix.shape)
        at = ", ".join(f"{word} {index + 1}" for word, index in zip(("row", "column"), place, strict=False))
        raise InputError(f"{path}: {at} is {matrix[place]}; seconds must be finite and at least 0")
    return matrix


def matrix_network(
    compute_seconds: npt.ArrayLike,
    upload_seconds: npt.ArrayLike,
    transfer_seconds: npt.ArrayLike | None = None,
    exchange_seconds: npt.ArrayLike | None = None,
    neighbours: Sequence[Sequence[int]] | None = None,
) -> Network:
    """Return the network with these seconds; see `Network` for their shapes.

    A vector may also be a matrix with one row or one column. Without `transfer_seconds` or `exchange_seconds` these
    transfers are free; without `neighbours` no aggregator has any.
    """
    upload = _array("upload_seconds", upload_seconds)
    if upload.ndim != 2:
        raise InputError(f"network: upload_seconds has the shape {upload.shape}, which must be (clients, aggregators)")
    aggregators = upload.shape[1]
    transfer = np.zeros(aggregators) if transfer_seconds is None else _vector("transfer_seconds", transfer_seconds)
    exchange = np.zeros((aggregators, aggregators))
    return Network(
        compute_seconds=_vector("compute_seconds", compute_seconds),
        upload_seconds=upload,
        transfer_seconds=transfer,
        exchange_seconds=exchange if exchange_seconds is None else _array("exchange_seconds", exchange_seconds),
        neighbours=((),) * aggregators if neighbours is None else _read_neighbours(neighbours),
    )


def _read_neighbours(neighbours: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(tuple(sorted(index(each) for each in near)) for near in neighbours)
    except TypeError as error:
        raise InputError(
            f"network: neighbours = {show(neighbours)}: must be a list for each aggregator with the numbers of others"
        ) from error


def _order(path: str | Path, column: Floats, name: str = "client") -> Ids:
    """Return the order that sorts rows by their number, of the client or whatever else `name` says."""
    clients = whole_numbers(path, name, column, least=0)
    order = np.argsort(clients, kind="stable")
    wrong = np.flatnonzero(clients[order] != np.arange(len(clients)))
    if not len(wrong):
        return order
    place = int(wrong[0])
    client = int(clients[order[place]])
    if client < place:
        first, second = order[place - 1] + 1, order[place] + 1
        raise InputError(f"{path}: {name} {client} is in row {first} and again in row {second}; each must have one row")
    raise InputError(f"{path}: {name} {place} is missing; column {name!r} must hold 0 to N - 1, each once")


def _read_matrix_csv(path: Path) -> Floats:
    with refusing(f"{path}: cannot be read", UnicodeDecodeError):
        text = read_bytes(path, most=MOST_BYTES_OF_LINES).decode("utf-8-sig")
    try:
        with warnings.catch_warnings(action="ignore"):  # about an empty file, which the caller refuses
            return np.loadtxt(io.StringIO(text), delimiter=",", comments=None, ndmin=2)
    except ValueError as error:
        raise _fault(path, text, str(error)) from error


def _fault(path: Path, text: str, reason: str) -> InputError:
    """Return an error that names the bad cell of a CSV matrix; NumPy's messages count rows inconsistently."""
    width = None
    lines = (line.split(",") for line in text.splitlines() if line.strip())
    for row, cells in enumerate(lines, 1):
        for column, cell in enumerate(cells, 1):
            try:
                float(cell)
            except ValueError:
                return InputError(f"{path}: row {row}, column {column} is {cell!r}; it must be a number")
        width = width or len(cells)
        if len(cells) != width:
            return InputError(f"{path}: row {row} has {len(cells)} cells, but the first has {width}")
    return InputError(f"{path}: cannot be read ({reason})")


def _read_npy(path: Path) -> Floats:
    with refusing(f"{path}: is not a .npy file of numbers", ValueError):
        matrix = read_npy(path)
    if matrix.dtype.kind not in "iuf" or matrix.ndim not in (1, 2):
        raise InputError(f"{path}: must hold one array of numbers with one or two dimensions")
    return matrix.astype(np.float64, copy=False)


def _array(name: str, values: npt.ArrayLike) -> Floats:
    with refusing(f"network: {name} must be numbers in rows of equal length", ValueError, TypeError):
        return np.asarray(values, np.float64)


def _vector(name: str, values: npt.ArrayLike) -> Floats:
    array = _array(name, values)
    return array.ravel() if array.ndim == 2 and 1 in array.shape else array
