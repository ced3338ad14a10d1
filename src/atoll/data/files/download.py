"""Where the data sets' official files are, and how they get to disk: checked, and whole or not at all."""

import logging
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from atoll.support.errors import InputError, RunError


@dataclass(frozen=True)
class DownloadSource:
    """The official files of one data set: where they come from and where they go.

    folder: their place below the data root.
    files: what that folder holds, each as it is or gzipped (with .gz after its name).
    downloads: URL -> "algorithm:checksum". A .tar.gz must hold the folder itself; of a .zip the files are taken,
        gzipped, from whichever folder they lie in.
    """

    folder: str
    files: tuple[str, ...]
    downloads: Mapping[str, str]


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"

SOURCES = {
    "mnist": DownloadSource(
        folder="mnist",
        files=_IDX,
        downloads={
            f"{_MNIST_URL}/train-images-idx3-ubyte.gz": (
                "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
            ),
            f"{_MNIST_URL}/train-labels-idx1-ubyte.gz": (
                "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
            ),
            f"{_MNIST_URL}/t10k-images-idx3-ubyte.gz": (
                "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            f"{_MNIST_URL}/t10k-labels-idx1-ubyte.gz": (
                "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
            ),
        },
    ),
    "cifar10": DownloadSource(
        folder="cifar-10-batches-bin",
        files=(
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
            "test_batch.bin",
        ),
        downloads={
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": ("md5:c32a1d4ab5d03f1284b67883e8d87530"),
        },
    ),
    "fashion-mnist": DownloadSource(
        folder="fashion-mnist",
        files=_IDX,
        downloads={
            f"{_FASHION_URL}/train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            f"{_FASHION_URL}/train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            f"{_FASHION_URL}/t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            f"{_FASHION_URL}/t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "emnist": DownloadSource(
        folder="emnist",
        files=(
            "emnist-balanced-train-images-idx3-ubyte",
            "emnist-balanced-train-labels-idx1-ubyte",
            "emnist-balanced-test-images-idx3-ubyte",
            "emnist-balanced-test-labels-idx1-ubyte",
        ),
        downloads={"https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
    ),
    "cifar100": DownloadSource(
        folder="cifar-100-binary",
        files=("train.bin", "test.bin"),
        downloads={"https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
    ),
}


def locate(folder: Path, file: str) -> Path | None:
    """Return the path of a data file in a folder, gzipped or plain, or None."""
    # lexists: a link that leads nowhere is there, and reading it says what is wrong with it.
    return next((path for path in (folder / f"{file}.gz", folder / file) if os.path.lexists(path)), None)


def missing(name: str, folder: Path) -> tuple[str, ...]:
    """Return which files of a data set are not in a folder."""
    return tuple(file for file in SOURCES[name].files if locate(folder, file) is None)


def explain_by_hand(name: str, root: Path) -> str:
    """Say, as the second half of a sentence, how a user gets a data set into place without a download."""
    source = SOURCES[name]
    return (
        f"put {', '.join(source.files)} (gzipped or plain) into {root / source.folder}, "
        "or set data.root or ATOLL_DATA to a folder that holds them"
    )


def download(name: str, root: Path) -> Path:
    """Download a data set's files, check their checksums, and return the folder that now holds them.

    All files are gathered in a temporary folder below root, which takes its final name in one step: the
    folder is never there half filled, and files already there are never replaced or mixed with others.
    Errors: InputError where the folder is already there without all the files; RunError where the
    download, its check or the writing fails.
    """
    source = SOURCES[name]
    target = root / source.folder
    if not missing(name, target):
        return target
    at = ""
    try:
        _require_free(target, name)
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as staging:
            for url, checksum in source.downloads.items():
                at = f" from {url}"
                _gather(url, checksum, Path(staging), source)
            at = ""  # what can fail now has nothing to do with the server
            _publish(Path(staging) / source.folder, target, name)
    except (OSError, ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(
            f"{name} could not be downloaded{at} into {root}: {_explain(error)}; "
            f"try again, or {explain_by_hand(name, root)}"
        ) from error
    return target


def _require_free(target: Path, name: str) -> None:
    """Accept only a place where nothing is, or an empty folder."""
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(
            f"{target} is there but lacks {', '.join(missing(name, target))} of {name}: add what it lacks, "
            "or move it away and run again to download the whole set"
        )


def _gather(url: str, checksum: str, staging: Path, source: DownloadSource) -> None:
    """Bring one download into its folder below staging, unpacked if it is an archive."""
    folder = source.folder
    file = _retrieve(url, checksum, staging)
    if file.suffix == ".zip":
        _unzip(file, staging / folder, [f"{name}.gz" for name in source.files])
        return
    if file.name.endswith(".tar.gz"):
        with tarfile.open(file, "r:gz") as archive:
            archive.extractall(staging, filter="data")
        return
    # Temporary files are private to their owner; a data root is often shared between users.
    file.chmod(0o644)
    (staging / folder).mkdir(exist_ok=True)
    file.rename(staging / folder / file.name)


def _unzip(file: Path, folder: Path, names: Collection[str]) -> None:
    """Take files of these names out of an archive."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = entry.filename.rpartition("/")[2]
            if name in names:
                with archive.open(entry) as packed, open(folder / name, "wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)


def _retrieve(url: str, checksum: str, folder: Path) -> Path:
    import pooch  # these two load slowly, and few runs need them
    import requests

    file_name = url.rsplit("/", 1)[-1]
    with _quiet_pooch(), _Bar(file_name) as bar:
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)
        try:
            return Path(pooch.retrieve(url, checksum, file_name, folder, downloader=downloader))
        except requests.HTTPError as error:
            # Pooch leaves the connection of a refused request open until the garbage is collected.
            if error.response is not None:
                error.response.close()
            raise


def _publish(staged: Path, target: Path, name: str) -> None:
    """Give the gathered folder its final name, in one step."""
    if absent := missing(name, staged):
        raise FileNotFoundError(f"the download lacks {', '.join(absent)}")
    try:
        staged.replace(target)
    except OSError:
        # Another process that fetched the same set may have been faster; its files are as good as ours.
        if missing(name, target):
            raise


def _explain(error: Exception) -> str:
    """Say in a few words why a download failed."""
    import requests

    match error:
        case requests.HTTPError(response=requests.Response() as response):
            return f"the server answered {response.status_code} {response.reason}"
        case requests.Timeout():
            return "the server did not answer in time"
        case requests.exceptions.ChunkedEncodingError():
            return "the transfer broke off before its end"
        case requests.RequestException():
            return "the server cannot be reached"
        case OSError():
            return error.strerror or str(error)
        case ValueError():
            return "the checksum is not that of the official file, so it was discarded"
        case _:
            return f"the archive cannot be unpacked ({error})"


@contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Keep pooch from logging the path of the temporary folder, which is of no use to anyone."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Bar:
    """A progress bar on standard error, on terminals only, with the four names that pooch asks for."""

    def __init__(self, title: str) -> None:
        console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)
        self.total = 0  # bytes; pooch sets it when the transfer starts

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, advance: int) -> None:
        self._progress.update(self._task, advance=advance, total=self.total or None)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
