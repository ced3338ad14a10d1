"""How the data sets' official files get to disk: verified, and all of them or none."""

import logging
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.data.files.sources import SOURCES, DownloadSource
from atoll.support.errors import InputError, RunError


def locate(folder: Path, file: str) -> Path | None:
    """Return the path of a data file in a folder, gzipped or plain, or None."""
    # lexists: a dangling link counts, and reading it says what is wrong.
    return next((path for path in (folder / f"{file}.gz", folder / file) if os.path.lexists(path)), None)


def missing(name: str, folder: Path) -> tuple[str, ...]:
    """Return the files of a data set that a folder lacks."""
    return tuple(file for file in SOURCES[name].files if locate(folder, file) is None)


def explain_by_hand(name: str, root: Path) -> str:
    """Return, as the second half of a sentence, how to put a data set in place by hand."""
    source = SOURCES[name]
    return (
        f"put {', '.join(source.files)} (gzipped or plain) into {root / source.folder}, "
        "or set data.root or ATOLL_DATA to a folder that holds them"
    )


def download(name: str, root: Path) -> Path:
    """Download a data set's files, verify their checksums, and return the folder that now holds them.

    All files are gathered in a temporary folder below root, which is renamed at the end: the final folder is never
    incomplete, and existing files are never replaced or mixed with new ones.
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
            at = ""  # from here on the server is not involved
            _publish(Path(staging) / source.folder, target, name)
    except (OSError, ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(
            f"{name} could not be downloaded{at} into {root}: {_explain(error)}; "
            f"try again, or {explain_by_hand(name, root)}"
        ) from error
    return target


def _require_free(target: Path, name: str) -> None:
    """Refuse a path that exists, unless it is an empty folder."""
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(
            f"{target} exists but lacks {', '.join(missing(name, target))} of {name}: add them, or move the folder "
            "away and run again to download the whole set"
        )


def _gather(url: str, checksum: str, staging: Path, source: DownloadSource) -> None:
    """Download one file into its folder below staging, and unpack it if it is an archive."""
    folder = source.folder
    file = _retrieve(url, checksum, staging)
    if file.suffix == ".zip":
        _unzip(file, staging / folder, [f"{name}.gz" for name in source.files])
        return
    if file.name.endswith(".tar.gz"):
        with tarfile.open(file, "r:gz") as archive:
            archive.extractall(staging, filter="data")
        return
    # Temporary files are private to their owner, but a data root is often shared.
    file.chmod(0o644)
    (staging / folder).mkdir(exist_ok=True)
    file.rename(staging / folder / file.name)


def _unzip(file: Path, folder: Path, names: Collection[str]) -> None:
    """Extract the files with these names from an archive, ignoring its folders."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = entry.filename.rpartition("/")[2]
            if name in names:
                with archive.open(entry) as packed, open(folder / name, "wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)


def _retrieve(url: str, checksum: str, folder: Path) -> Path:
    import pooch  # these are slow to import, and few runs need them
    import requests
    from tqdm import tqdm

    file_name = url.rsplit("/", 1)[-1]
    # In terminals only; pooch sets the total, once it is known.
    with _quiet_pooch(), tqdm(desc=file_name, total=1, unit="B", unit_scale=True, disable=None) as bar:
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)
        try:
            return Path(pooch.retrieve(url, checksum, file_name, folder, downloader=downloader))
        except requests.HTTPError as error:
            # Pooch leaves a refused request's connection open until garbage collection.
            if error.response is not None:
                error.response.close()
            raise


def _publish(staged: Path, target: Path, name: str) -> None:
    """Rename the gathered folder to its final name."""
    if absent := missing(name, staged):
        raise FileNotFoundError(f"the download lacks {', '.join(absent)}")
    try:
        staged.replace(target)
    except OSError:
        # Another process may have downloaded the same set first; its files are as good as ours.
        if missing(name, target):
            raise


def _explain(error: Exception) -> str:
    """Return in a few words why a download failed."""
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
    """Keep pooch from logging the temporary folder's path, which is of no use to users."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
