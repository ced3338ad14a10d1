"""Files of samples may be another's: each that is not what it says costs one sentence, and little memory."""

import io
import os
import resource
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atoll.data.client_columns import read_clients
from atoll.data.files.folders import read_folder
from atoll.data.files.official import read_cifar, read_idx
from atoll.network.network_files import read_matrix, read_network_clients
from atoll.support.errors import InputError
from tests.tiers import thinned

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits this process's memory")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Let this process take half a gibibyte more than it has."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**29, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def npy(shape: tuple[int, ...], descr: str = "<f8", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def npz(inputs: bytes | None = None, targets: bytes | None = None, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        archive.writestr("inputs.npy", npy((4, 2), data=bytes(64)) if inputs is None else inputs)
        archive.writestr("targets.npy", npy((4,), "<i8", bytes(32)) if targets is None else targets)
    return content.getvalue()


def bomb(zeros: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("targets.npy", npy((4,), "<i8", bytes(32)))
        with archive.open("inputs.npy", "w", force_zip64=True) as entry:
            entry.write(npy((4, zeros // 4), "|u1"))
            for _ in range(zeros >> 20):
                entry.write(bytes(2**20))
    return content.getvalue()


def changed(content: bytes, at: bytes, offset: int, value: bytes) -> bytes:
    """Return a ZIP file with bytes of each header of this kind replaced."""
    parts = content.split(at)
    return at.join([parts[0], *(p[: offset - 4] + value + p[offset - 4 + len(value) :] for p in parts[1:])])


def encrypted(content: bytes) -> bytes:
    return changed(changed(content, b"PK\x03\x04", 6, b"\x01\x00"), b"PK\x01\x02", 8, b"\x01\x00")


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data, 1)) + chunk(b"IEND", b"")


def pictures(*contents: bytes) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [*contents], "label": [0] * len(contents)}), file)
    return file.getvalue()


def runs_of_one_value() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(np.zeros(4 * 10**7, np.int8))}), file)
    return file.getvalue()


FOLDERS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a false shape": ("a.npz", lambda: npz(npy((10**12,)))),
    "a false shape that fits memory": ("a.npz", lambda: npz(npy((4, 2**25)))),
    "a negative shape": ("a.npz", lambda: npz(npy((-4, -2), data=bytes(64)))),
    "a shape without numbers": ("a.npz", lambda: npz(npy((0, 10**30)))),
    "a header without end": ("a.npz", lambda: npz(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{")),
    "a deep header": ("a.npz", lambda: npz(npy((4,), "<f8'" + "(" * 5000))),
    "objects": ("a.npz", lambda: npz(npy((4,), "|O", b"cos\nsystem\n(S'exit 3'\ntR."))),
    "records": ("a.npz", lambda: npz(npy((4,), "V8", bytes(32)))),
    "a bomb": ("a.npz", lambda: bomb(9 * 2**25)),
    "encrypted": ("a.npz", lambda: encrypted(npz())),
    "a false size": ("a.npz", lambda: changed(npz(), b"PK\x01\x02", 24, b"\xff\xff\xff\x7f")),
    "a false checksum": ("a.npz", lambda: changed(npz(), b"PK\x01\x02", 16, b"\0\0\0\0")),
    "a false place": ("a.npz", lambda: changed(npz(), b"PK\x01\x02", 42, b"\xff\xff\xff\x7f")),
    "packed in another way": ("a.npz", lambda: npz(method=zipfile.ZIP_LZMA)),
    "cut": ("a.npz", lambda: npz()[:-30]),
    "no array": ("a.npz", lambda: npz(b"hello")),
    "empty": ("a.npz", lambda: b""),
    "labels of 2^62": ("a.npz", lambda: npz(targets=npy((4,), "<i8", bytes(24) + struct.pack("<q", 2**62)))),
    "labels of 2^63": ("a.npz", lambda: npz(targets=npy((4,), "<u8", bytes(24) + struct.pack("<Q", 2**63)))),
    "inputs of 1e300": ("a.npz", lambda: npz(npy((4, 2), data=struct.pack("<d", 1e300) * 8))),
    "a false .npy": ("a/inputs.npy", lambda: npy((10**12,))),
    "a .npy that is cut": ("a/inputs.npy", lambda: npy((8,), data=bytes(63))),
    "a large picture": ("a.parquet", lambda: pictures(png(60_000, 60_000))),
    "a picture bomb": ("a.parquet", lambda: pictures(png(5000, 5000, bytes(5001 * 5000)))),
    "many pictures of nothing": ("a.parquet", lambda: pictures(*[png(4000, 4000, bytes(4001 * 4000))] * 100)),
    "a cut picture": ("a.parquet", lambda: pictures(png(8, 8)[:40])),
    "a picture of a language": ("a.parquet", lambda: pictures(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")),
    "one value ever again": ("a.parquet", runs_of_one_value),
    "no Parquet": ("a.parquet", lambda: b"PAR1" + bytes(99) + b"PAR1"),
}


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    """What the files hold, made before memory is short."""
    return {name: make() for name, (_, make) in FOLDERS.items()}


@pytest.mark.parametrize("name", thinned(FOLDERS, 15))
def test_a_client_of_a_folder(name: str, contents: dict[str, bytes], tmp_path: Path) -> None:
    file = tmp_path / FOLDERS[name][0]
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(contents[name])
    if file.suffix == ".npy":
        np.save(file.with_name("targets.npy"), np.zeros(8, np.int64))
    with pytest.raises(InputError) as told:
        read_folder(str(tmp_path), test_every=2)
    assert str(tmp_path / "a") in str(told.value)
    assert "\n" not in str(told.value)


def test_what_these_files_are_made_of_is_read_where_it_is_right(tmp_path: Path) -> None:
    """So that the files above are refused for the one thing that is wrong with each."""
    (tmp_path / "a.npz").write_bytes(npz())
    assert len(read_folder(str(tmp_path), test_every=2).inputs) == 2
    (tmp_path / "a.npz").unlink()
    (tmp_path / "a.parquet").write_bytes(pictures(*[png(8, 8, bytes(9 * 8))] * 4))
    assert read_folder(str(tmp_path), test_every=2).shape == (1, 8, 8)


def idx(shape: tuple[int, ...], data: bytes) -> bytes:
    return b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + data


READERS: dict[str, Callable[[Path], Any]] = {
    "idx": read_idx,
    "cifar": read_cifar,
    "clients": lambda path: read_clients(path, 3),
    "network": lambda path: read_network_clients(path.rename(path.with_suffix(".csv"))),
    "matrix": lambda path: read_matrix(path.rename(path.with_suffix(".csv"))),
    "matrix of NumPy": lambda path: read_matrix(path.rename(path.with_suffix(".npy"))),
}


def sparse(file: Path) -> None:
    with open(file, "wb") as content:
        content.truncate(2**40)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "folder", "gzip", "shape", "slots", "digits"])
def test_a_file_of_the_owner(reader: str, kind: str, tmp_path: Path) -> None:
    make: dict[str, Callable[[Path], Any]] = {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "sparse": sparse,
        "folder": Path.mkdir,
        "gzip": lambda path: path.write_bytes(GZIP_BOMB),
        "shape": lambda path: path.write_bytes(idx((2**31, 2**31), b"") if reader == "idx" else npy((10**12,))),
        "slots": lambda path: path.write_text(f"slots\n0\n{2**62}\n1\n"),
        "digits": lambda path: path.write_text("client,utc_offset\n" + f"{'9' * 5000},0\n" * 3),
    }
    make[kind](tmp_path / "file")
    with pytest.raises(InputError) as told:
        READERS[reader](tmp_path / "file")
    assert "file" in str(told.value)
    assert len(str(told.value)) < 6000


def _gzip_bomb() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    zeros = bytes(2**20)
    return b"".join(packer.compress(zeros) for _ in range(300)) + packer.flush()


GZIP_BOMB = _gzip_bomb()
