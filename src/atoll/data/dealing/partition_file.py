"""A partition in a file: which training and test samples each client holds."""

import zlib
from pathlib import Path

import numpy as np

from atoll.data.dealing.class_counts import Indices
from atoll.data.dealing.partition_checks import checked_rule
from atoll.data.dealing.ranges import Parts, Ranges
from atoll.support.errors import InputError, reading, refusing
from atoll.support.numpy_files import read_npz


@checked_rule
def from_file(labels: Indices, clients: int, partition_file: str) -> Parts:
    """Give each client the samples listed in a file, as written by `atoll data inspect --write`.

    Args:
        partition_file: the .npz file: indices into the pool and where each client's begin; the same for test samples.
    """
    with reading("data.partition_file"):
        held = _read_partition(Path(partition_file))
    digest = digest_of(labels)
    pool = next((pool for pool in ("", "test_") if int(held[f"{pool}digest"]) == digest), None)
    told = f"data.partition_file = {partition_file!r}"
    if pool is None:
        raise InputError(f"{told}: belongs to another data set, with other labels")
    indices, offsets = held[f"{pool}indices"], held[f"{pool}offsets"]
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(labels):
        raise InputError(f"{told}: has indices that are not from 0 to {len(labels) - 1}")
    parts = Ranges(indices, offsets.astype(np.int64))
    if not pool and len(parts) < clients:
        raise InputError(f"data.clients = {clients}: {told} has {len(parts)} clients")
    return parts if pool else parts.first(clients)


def digest_of(labels: Indices) -> int:
    """Return a checksum that identifies a pool."""
    return zlib.crc32(np.ascontiguousarray(labels).tobytes())


def _read_partition(path: Path) -> dict[str, Indices]:
    names = [f"{pool}{name}" for pool in ("", "test_") for name in ("indices", "offsets", "digest")]
    hint = f"; it must hold {', '.join(names)}"
    with refusing(f"{path}: is not a partition", ValueError, KeyError, hint=hint), refusing(f"{path}: cannot be read"):
        held = read_npz(path, names)
    for pool in ("", "test_"):
        indices, offsets, digest = (held[f"{pool}{name}"] for name in ("indices", "offsets", "digest"))
        whole = all(each.dtype.kind in "iu" for each in (indices, offsets, digest))
        if not whole or digest.ndim or indices.ndim != 1 or offsets.ndim != 1 or len(offsets) < 2:
            raise InputError(f"{path}: is not a partition: {pool}indices and {pool}offsets must be flat whole numbers")
        if offsets[0] != 0 or offsets[-1] != len(indices) or (offsets[1:] < offsets[:-1]).any():
            raise InputError(f"{path}: is not a partition: {pool}offsets must rise from 0 to the number of indices")
    return held
