"""Digests of a run's data files, so that it does not resume with changed ones."""

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path

from atoll.data.datasets import find
from atoll.data.files.download import locate
from atoll.data.files.sources import SOURCES
from atoll.data.named_datasets import files_at
from atoll.experiment.start_model import file_of
from atoll.network.network_records import read_document
from atoll.settings.file_paths import files_in
from atoll.settings.validation import Settings
from atoll.support.untrusted import open_regular

MOST_FILES = 1000  # beyond which all share one digest


def digest_of_file(path: Path) -> str:
    """Return a file's SHA-256."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(settings: Settings) -> dict[str, str]:
    """Return the SHA-256 of each existing file, uncompressed if gzipped, by setting and name.

    The location of `data.root` does not matter. Files read by custom functions are not known.
    """
    files = {name: path for name, path in files_of(settings).items() if path.is_file()}
    digests = {name: _digest(path, path.stat().st_mtime_ns, path.stat().st_size) for name, path in files.items()}
    if len(digests) <= MOST_FILES:
        return digests
    whole = hashlib.sha256("".join(f"{name}\0{digest}\n" for name, digest in sorted(digests.items())).encode())
    return {"data.root": whole.hexdigest()}


def files_of(settings: Settings) -> dict[str, Path]:
    """Return the files named in the settings, by setting and name."""
    data = settings.data
    files = dict[str, Path]()
    if data.dataset in SOURCES and (folder := find(data.dataset, data.root)):
        found = {name: locate(folder, name) for name in SOURCES[data.dataset].files}
        files |= {f"data.root/{name}": path for name, path in found.items() if path}
    if own := files_at(data.dataset, data.root):
        root = Path(data.root or "").expanduser()
        files |= {f"data.root/{path.relative_to(root if root.is_dir() else root.parent)}": path for path in own}
    files |= {name: Path(value) for name, value in files_in(settings)}
    if (place := Path(settings.network.file or "")).suffix.lower() in (".toml", ".json") and place.is_file():
        named = [(key, each) for key, each in read_document(place).items() if isinstance(each, str) and key != "server"]
        files |= {f"network.file/{key}": place.parent / each for key, each in named}
    for section, key in (("data", "tokenizer"), ("model", "path")):  # a folder, a file, or a name on Hugging Face's hub
        if isinstance(value := getattr(settings, section).get(key), str):
            own = sorted(Path(value).iterdir()) if Path(value).is_dir() else [Path(value)]
            files |= {f"{section}.{key}/{path.name}": path for path in own}
    if settings.model.start is not None:
        files["model.start"] = file_of(Path(settings.model.start).expanduser())
    return files


@lru_cache(maxsize=4 * MOST_FILES)
def _digest(path: Path, _changed: int, _size: int) -> str:
    with open_regular(path) as file:
        is_packed = file.peek(2)[:2] == b"\x1f\x8b"
        with gzip.open(file) if is_packed else file as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
