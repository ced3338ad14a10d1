"""Reading data sets: what comes out, and one clear sentence for every way in which files can be wrong."""

import contextlib
import gzip
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pooch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.data.datasets import available, find, load
from atoll.data.files.official import read_cifar, read_idx
from atoll.data.files.sources import SOURCES
from atoll.support.errors import InputError
from tests.tiers import thinned

REAL_ROOT = os.environ.get("ATOLL_DATA")
MNIST_SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))


def idx_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path) -> None:
    """Write files of the official shapes, all zeros, plain."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, shape in zip(SOURCES["mnist"].files, MNIST_SHAPES, strict=True):
        (folder / file).write_bytes(idx_bytes(np.zeros(shape, np.uint8)))


def write_cifar10(folder: Path, images: int = 10_000) -> None:
    """Write batches of black images of class 0, as holes that take no room on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in SOURCES["cifar10"].files:
        (folder / file).touch()
        os.truncate(folder / file, images * 3073)


@pytest.fixture(autouse=True)
def _no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no test see the machine's own data folders."""
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)


def real(name: str) -> Path:
    """Return the root of the real files, or skip the test saying why."""
    if not REAL_ROOT:
        pytest.skip(f"needs {name} files: set ATOLL_DATA to a folder that holds them")
    if find(name, REAL_ROOT) is None:
        pytest.skip(f"needs {name} files: ATOLL_DATA = {REAL_ROOT} does not hold them")
    return Path(REAL_ROOT)


# What comes out


def test_digits_has_the_documented_form() -> None:
    digits = load("digits")
    assert digits.shape == (1, 8, 8)
    assert digits.inputs.shape == (1437, 1, 8, 8)
    assert digits.test_inputs.shape == (360, 1, 8, 8)
    assert digits.inputs.dtype == digits.test_inputs.dtype == np.uint8
    assert digits.targets.dtype == digits.test_targets.dtype == np.int64
    assert digits.inputs.max() * digits.scale == 1.0
    assert (digits.classes, digits.loss) == (10, "cross-entropy")


def test_digits_are_scikit_learns_wherever_it_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load("digits")
    monkeypatch.setattr("atoll.data.datasets.find_spec", lambda name: None)
    by_import = load("digits")
    for field in ("inputs", "targets", "test_inputs", "test_targets"):
        assert np.array_equal(getattr(digits, field), getattr(by_import, field))


def test_digits_splits_scikit_learns_samples_without_loss_or_repeat() -> None:
    from sklearn.datasets import load_digits

    def rows(inputs: Any, targets: Any) -> list[bytes]:
        flat = inputs.reshape(len(inputs), -1).astype(np.uint8)
        return sorted(row.tobytes() for row in np.column_stack([flat, targets.astype(np.uint8)]))

    images, targets = load_digits(return_X_y=True)
    digits = load("digits")
    split = rows(digits.inputs, digits.targets) + rows(digits.test_inputs, digits.test_targets)
    assert sorted(split) == rows(images, targets)


def test_digits_split_is_stratified_and_always_the_same() -> None:
    first, second = load("digits"), load("digits")
    training, test = np.bincount(first.targets), np.bincount(first.test_targets)
    assert np.all(np.abs(test - (training + test) / 5) < 1)
    assert np.array_equal(first.inputs, second.inputs)
    assert np.array_equal(first.test_targets, second.test_targets)
    # The split is part of every published number: these values must not change with any version.
    assert first.test_targets[:12].tolist() == [0, 2, 4, 7, 1, 6, 8, 9, 5, 3, 0, 2]


def test_digits_needs_no_root(tmp_path: Path) -> None:
    assert len(load("digits", tmp_path / "absent", fetch=False).inputs) == 1437
    assert find("digits") is None


@pytest.mark.parametrize("folder", thinned(["mnist", "."], 1))
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_read_from_either_place_gzipped_or_plain(tmp_path: Path, folder: str, zipped: bool) -> None:
    write_mnist(tmp_path / folder)
    if zipped:
        for file in SOURCES["mnist"].files:
            plain = tmp_path / folder / file
            (tmp_path / folder / f"{file}.gz").write_bytes(gzip.compress(plain.read_bytes(), 1))
            plain.unlink()
    mnist = load("mnist", tmp_path, fetch=False)
    assert find("mnist", tmp_path) == tmp_path / folder
    assert mnist.inputs.shape == (60_000, 1, 28, 28)
    assert mnist.test_inputs.shape == (10_000, 1, 28, 28)
    assert mnist.inputs.dtype == np.uint8
    assert mnist.targets.dtype == mnist.test_targets.dtype == np.int64
    assert mnist.scale == 1 / 255


@pytest.mark.parametrize("folder", thinned(["cifar-10-batches-bin", "."], 1))
def test_cifar10_is_read_from_either_place(tmp_path: Path, folder: str) -> None:
    write_cifar10(tmp_path / folder)
    cifar10 = load("cifar10", tmp_path, fetch=False)
    assert cifar10.inputs.shape == (50_000, 3, 32, 32)
    assert cifar10.test_inputs.shape == (10_000, 3, 32, 32)
    assert cifar10.inputs.dtype == np.uint8
    assert cifar10.targets.dtype == np.int64
    assert (cifar10.shape, cifar10.classes) == ((3, 32, 32), 10)


def test_the_batches_of_cifar10_are_kept_in_order(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    for batch, file in enumerate(SOURCES["cifar10"].files):
        with (tmp_path / file).open("r+b") as stream:
            stream.write(bytes([batch]))
    cifar10 = load("cifar10", tmp_path)
    assert cifar10.targets[::10_000].tolist() == [0, 1, 2, 3, 4]
    assert cifar10.test_targets[0] == 5


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), zipped=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_idx_files_come_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], zipped: bool, seed: int
) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(gzip.compress(idx_bytes(array)) if zipped else idx_bytes(array))
    read = read_idx(path)
    assert np.array_equal(read, array)
    assert read.shape == array.shape
    assert read.flags.writeable


def test_cifar_files_come_back_as_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 3, 32, 32)).astype(np.uint8)
    labels = np.array([3, 0, 9, 1, 3], np.uint8)
    path = tmp_path / "batch.bin"
    path.write_bytes(b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True)))
    read_images, read_labels = read_cifar(path)
    assert np.array_equal(read_images, images)
    assert np.array_equal(read_labels, labels)
    assert read_images.flags.writeable


def test_the_real_mnist_has_its_known_class_sizes() -> None:
    mnist = load("mnist", real("mnist"), fetch=False)
    assert np.bincount(mnist.targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.test_targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The mean pixel is the 0.1307 that every MNIST script subtracts.
    assert float(mnist.inputs.mean()) * mnist.scale == pytest.approx(0.1307, abs=1e-4)


def test_the_real_cifar10_has_its_known_class_sizes() -> None:
    cifar10 = load("cifar10", real("cifar10"), fetch=False)
    assert np.bincount(cifar10.targets).tolist() == [5000] * 10
    assert np.bincount(cifar10.test_targets).tolist() == [1000] * 10
    means = cifar10.inputs.mean(axis=(0, 2, 3)) * cifar10.scale
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-3)  # re-encoded copies differ a little


# Where files are looked for


def test_the_root_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("argument", "environment", "cache/atoll"):
        write_cifar10(tmp_path / place, images=0)
    assert find("cifar10") == tmp_path / "cache" / "atoll"
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "environment"))
    assert find("cifar10") == tmp_path / "environment"
    assert find("cifar10", tmp_path / "argument") == tmp_path / "argument"


def test_home_is_understood_in_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "data", images=0)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert find("cifar10", "~/data") == tmp_path / "data"


def test_an_incomplete_set_is_not_found(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").unlink()
    assert find("cifar10", tmp_path) is None
    assert find("mnist", tmp_path) is None


# What goes wrong with names and roots


@pytest.mark.parametrize(("name", "nearest"), [("mnits", "'mnist'"), ("CIFAR-10", "'cifar10'"), ("digit", "'digits'")])
def test_an_unknown_name_is_answered_with_the_nearest_and_all(name: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"data.dataset = '{name}'.*did you mean {nearest}") as caught:
        load(name)
    assert all(known in str(caught.value) for known in available())


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(InputError, match=r"by name\. Allowed: digits, regression, sea, mnist, cifar10"):
        find("xyz")


@pytest.mark.parametrize("name", ["folder", "table"])
def test_what_an_experiment_alone_reads_is_not_offered_and_refused_at_once(name: str) -> None:
    with pytest.raises(InputError, match=f"^data.dataset = '{name}': cannot be loaded by name. Allowed: ") as caught:
        load(name)
    assert name not in str(caught.value).partition("Allowed:")[2]


def test_a_root_that_does_not_exist_is_refused_and_not_made(tmp_path: Path) -> None:
    for attempt in (load, find):
        with pytest.raises(InputError, match=r"data\.root = .*absent' does not exist: give an existing folder"):
            attempt("mnist", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"data\.root = .* is a file"):
        load("mnist", tmp_path / "file")
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"ATOLL_DATA = .* is a file"):
        load("mnist")


def test_missing_files_are_named_with_their_place_when_they_may_not_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load("mnist", tmp_path, fetch=False)
    message = str(caught.value)
    assert f"'mnist' lacks all its files in {tmp_path / 'mnist'}" in message
    assert all(file in message for file in SOURCES["mnist"].files)
    assert "ATOLL_DATA" in message
    assert "data.root" in message
    assert list(tmp_path.iterdir()) == []


def test_only_the_missing_ones_are_named_when_some_are_there(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"lacks test_batch\.bin in"):
        load("cifar10", tmp_path, fetch=False)


# What goes wrong with files


GOOD = idx_bytes(np.arange(60, dtype=np.uint8).reshape(5, 4, 3))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "expected data, found none", id="empty"),
        pytest.param(gzip.compress(b""), "expected data, found none", id="gzip of nothing"),
        pytest.param(b"\0\0", "first bytes 00 00 08, then 01 to 04.*found 00 00", id="no header"),
        pytest.param(b"PK\3\4" + GOOD, "expected an IDX file .*found 50 4b 03 04", id="wrong magic"),
        pytest.param(b"\0\0\x0d\3" + GOOD[4:], "found 00 00 0d 03", id="floats"),
        pytest.param(b"\0\0\x08\xff" + GOOD[4:], "found 00 00 08 ff", id="too many dimensions"),
        pytest.param(GOOD[:10], "expected a header of 16 bytes, found 10 bytes", id="cut header"),
        pytest.param(GOOD[:-1], "16 bytes of header and 5 x 4 x 3 of data.*found 75 bytes", id="cut data"),
        pytest.param(GOOD + b"\0", "found 77 bytes", id="too long"),
        pytest.param(b"\0\0\x08\2" + b"\xff" * 4 + b"\0" * 4, "4294967295 x 0 of data", id="no data"),
        pytest.param(gzip.compress(GOOD)[:-9], "expected a whole gzip file", id="cut gzip"),
        pytest.param(gzip.compress(GOOD)[:12] + b"\xff" * 50, "expected a whole gzip file", id="bad gzip"),
        pytest.param(b"\x1f\x8b", "expected a whole gzip file", id="gzip magic alone"),
    ],
)
def test_a_damaged_idx_file_is_named_with_what_was_expected_and_found(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_idx(path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith("run again to download them")


@given(content=st.binary(max_size=40))
def test_no_bytes_at_all_make_a_reader_fail_otherwise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    for prefix in (b"", b"\0\0\x08", b"\x1f\x8b\x08"):
        path.write_bytes(prefix + content)
        for read in (read_idx, read_cifar):
            with contextlib.suppress(InputError):
                read(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "expected data, found none", id="empty"),
        pytest.param(bytes(3072), "expected a multiple of 3073 bytes .*found 3072 bytes", id="cut"),
        pytest.param(bytes(3073) + b"\x0a" + bytes(3072), "labels from 0 to 9, found 10 at sample 1", id="label"),
    ],
)
def test_a_damaged_cifar_file_is_named_with_what_was_expected_and_found(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_cifar(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("read", [read_idx, read_cifar])
def test_what_cannot_be_read_is_named(tmp_path: Path, read: Any) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "link")
    for name, reason in (("folder", "directory"), ("link", "symbolic links"), ("absent", "No such file")):
        with pytest.raises(InputError, match=rf"{name} cannot be read \(.*{reason}"):
            read(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user who can be refused a file")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(GOOD)
    (tmp_path / "file").chmod(0)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        read_idx(tmp_path / "file")


def test_a_folder_in_place_of_a_file_is_found_and_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").unlink()
    (tmp_path / "test_batch.bin").mkdir()
    with pytest.raises(InputError, match=r"test_batch\.bin cannot be read"):
        load("cifar10", tmp_path)


def test_mnist_must_have_the_official_numbers_of_images(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / SOURCES["mnist"].files[2]).write_bytes(idx_bytes(np.zeros((7, 28, 28), np.uint8)))
    with pytest.raises(InputError, match=r"t10k-images.*expected 10000 x 28 x 28, found 7 x 28 x 28"):
        load("mnist", tmp_path)


def test_mnist_images_and_labels_must_not_change_places(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    images, labels = (tmp_path / file for file in SOURCES["mnist"].files[:2])
    images.write_bytes(labels.read_bytes())
    with pytest.raises(InputError, match=r"train-images.*expected 60000 x 28 x 28, found 60000;"):
        load("mnist", tmp_path)


def test_mnist_labels_must_be_digits(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = np.zeros(10_000, np.uint8)
    labels[42] = 11
    (tmp_path / SOURCES["mnist"].files[3]).write_bytes(idx_bytes(labels))
    with pytest.raises(InputError, match=r"t10k-labels.*labels from 0 to 9, found 11 at sample 42"):
        load("mnist", tmp_path)


def test_cifar10_must_have_the_official_numbers_of_images(tmp_path: Path) -> None:
    write_cifar10(tmp_path, images=3)
    with pytest.raises(InputError, match=r"data_batch_1\.bin .*expected 10000 images, found 3"):
        load("cifar10", tmp_path)


def test_a_data_set_compares_without_comparing_arrays() -> None:
    digits = load("digits")
    assert digits == digits
    assert digits != load("digits")


@pytest.mark.more
def test_fashion_mnist_emnist_and_cifar100_are_read_in_their_publishers_form(tmp_path: Path) -> None:
    def write_idx(name: str, train: int, test: int, last: int) -> None:
        (tmp_path / SOURCES[name].folder).mkdir()
        for file, count in zip(SOURCES[name].files, (train, train, test, test), strict=True):
            array = np.zeros((count, 28, 28) if "images" in file else count, np.uint8)
            array[1] = np.arange(28)[:, None] if array.ndim == 3 else last
            (tmp_path / SOURCES[name].folder / f"{file}.gz").write_bytes(gzip.compress(idx_bytes(array), 1))

    write_idx("fashion-mnist", 60_000, 10_000, 9)
    assert (load("fashion-mnist", tmp_path).classes, load("fashion-mnist", tmp_path).targets[1]) == (10, 9)
    write_idx("emnist", 112_800, 18_800, 46)
    emnist = load("emnist", tmp_path, fetch=False)
    assert (emnist.classes, emnist.targets[1], emnist.test_inputs.shape) == (47, 46, (18_800, 1, 28, 28))
    assert emnist.inputs[1, 0, 0].tolist() == [*range(28)], "the files hold images column by column"
    folder = tmp_path / SOURCES["cifar100"].folder
    folder.mkdir()
    record = bytes([19, 99]) + bytes(range(256)) * 12
    for file, count in zip(SOURCES["cifar100"].files, (50_000, 10_000), strict=True):
        (folder / file).write_bytes(record * count)
    cifar = load("cifar100", tmp_path, fetch=False)
    assert (cifar.classes, cifar.targets[7], cifar.inputs.shape) == (100, 99, (50_000, 3, 32, 32))
    assert cifar.inputs[7, 1, 0, :2].tolist() == [0, 1]
    (folder / "test.bin").write_bytes(bytes([19, 100]) + bytes(3072))
    with pytest.raises(InputError, match=r"test.bin is damaged .*: expected labels from 0 to 99, found 100"):
        load("cifar100", tmp_path)
