"""What a node keeps between tasks."""

import re
from pathlib import Path
from typing import Protocol

from atoll.support.errors import RunError, reason_of
from atoll.support.files import make_folder, write_atomically

_KEY = re.compile(r"[a-z0-9-]{1,100}")


class Store(Protocol):
    """Bytes by key; keys consist of lower-case letters, digits and hyphens."""

    def get(self, key: str) -> bytes | None:
        """Return what was last stored under a key, or None."""

    def put(self, key: str, content: bytes) -> None:
        """Store bytes under a key, replacing earlier ones."""

    def drop(self, key: str) -> None:
        """Delete what is stored under a key, if anything."""


class FolderStore:
    """Keeps bytes in files, each written atomically, so that they survive a restart."""

    def __init__(self, folder: Path) -> None:
        """Use this folder, which is created if necessary."""
        make_folder(folder)
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        """Return what was last stored under a key, or None."""
        path = self._folder / checked_key(key)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"cannot read {path}: {reason_of(error)}") from error

    def put(self, key: str, content: bytes) -> None:
        """Store bytes under a key, replacing earlier ones."""
        write_atomically(self._folder / checked_key(key), content)

    def drop(self, key: str) -> None:
        """Delete what is stored under a key, if anything."""
        path = self._folder / checked_key(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"cannot delete {path}: {reason_of(error)}") from error


def checked_key(key: str) -> str:
    """Return the key, which must be of lower-case letters, digits and hyphens."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no key")
    return key
