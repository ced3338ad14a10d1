"""Client states, moved to files beyond a number of bytes, and read back when a client is drawn again.

Each file holds many states and never changes, so checkpoints refer to files without copying them.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save

from atoll.engine.run_state import ClientStates, State
from atoll.local.models import Model
from atoll.local.weights import count_bytes
from atoll.runs.data_files import digest_of_file
from atoll.support.errors import RunError
from atoll.support.files import write_atomically

FILE_BYTES, FILE_STATES = 2**24, 256  # in a file, at the most: more slows reading one, fewer makes many files

Note = dict[str, Any]


@dataclass(eq=False, slots=True)
class _Kept:
    """One state, in memory, in a file, or both; shared with earlier `State` objects."""

    model: Model | None
    file: int | None = None


class Shelf:
    """Numbered files of states in a folder.

    Attributes:
        most_bytes: most bytes of states in memory.
    """

    def __init__(
        self, folder: Path, device: torch.device, most_bytes: int = 0, files: Mapping[str, Note] | None = None
    ) -> None:
        """Write to a folder, and read onto a device; `files` are existing ones, as `describe` returned them."""
        self.most_bytes = most_bytes
        self._folder = folder
        self._device = device
        self._files = {int(number): file for number, file in (files or {}).items()}

    def write(self, states: Iterable[tuple[int, _Kept]]) -> None:
        """Write states to new files, whether or not they are in files already."""
        for batch in self._batches(states):
            content = save(
                {
                    f"{client}/{i:06d}/{name}": tensor.clone(memory_format=torch.contiguous_format)
                    for client, (_, model) in batch.items()
                    for i, (name, tensor) in enumerate(model.items())  # safetensors reorders them
                }
            )
            number = 1 + max(map(_number_of, files_in(self._folder)), default=0)
            write_atomically(self._path(number), content)
            self._files[number] = {"sha256": hashlib.sha256(content).hexdigest(), "clients": len(batch)}
            for kept, _ in batch.values():
                kept.file = number

    def read(self, client: int, kept: _Kept) -> Model:
        """Return a state, its tensors in order; only its part of the file is read."""
        if (model := kept.model) is not None:  # read once: another thread may move it to its file meanwhile
            return model
        if kept.file is None:
            raise RunError(f"the state of client {client} is lost")
        path, own = self._path(kept.file), f"{client}/"
        try:
            with safetensors.safe_open(path, "pt") as file:
                keys = sorted(key for key in file.keys() if key.startswith(own))  # noqa: SIM118 (it is no mapping)
                # Copies, so that no tensor keeps the file open, or is pickled with all of it.
                return {key.split("/", 2)[2]: file.get_tensor(key).clone().to(self._device) for key in keys}
        except (OSError, IndexError, safetensors.SafetensorError) as error:  # a damaged name has too few parts
            raise RunError(f"the state of client {client} cannot be read from {path} ({error})") from error

    def sparse(self, states: Mapping[int, _Kept]) -> set[int]:
        """Return the files of which less than half of the states are still used."""
        used = Counter(kept.file for kept in states.values() if kept.file is not None)
        return {number for number, count in used.items() if 2 * count < self._files[number]["clients"]}

    def describe(self, numbers: Iterable[int]) -> dict[str, Note]:
        """Return a checkpoint's description of files, by number."""
        return {str(number): self._files[number] for number in sorted(numbers)}

    def require_whole(self) -> None:
        """Compare the files with their checksums."""
        for number, file in self._files.items():
            if digest_of_file(self._path(number)) != file["sha256"]:
                raise ValueError(f"the checksum of {self._path(number).name} does not match")

    def _batches(self, states: Iterable[tuple[int, _Kept]]) -> Iterator[dict[int, tuple[_Kept, Model]]]:
        batch: dict[int, tuple[_Kept, Model]] = {}
        size = 0
        for client, kept in states:
            model = self.read(client, kept)
            batch[client] = kept, model
            size += count_bytes(model)
            if size >= FILE_BYTES or len(batch) == FILE_STATES:
                yield batch
                batch, size = {}, 0
        if batch:
            yield batch

    def _path(self, number: int) -> Path:
        return self._folder / f"clients-{number:08d}.safetensors"


class SpilledStates(ClientStates):
    """States in memory or, beyond `Shelf.most_bytes`, in files."""

    def __init__(self, shelf: Shelf, files: Mapping[int, int] | None = None) -> None:
        """Start empty, or with these clients' states in these files."""
        self.shelf = shelf
        self._kept = {client: _Kept(None, file) for client, file in (files or {}).items()}
        self._near: dict[int, _Kept] = {}  # those in memory

    def __getitem__(self, client: int) -> Model:
        return self.shelf.read(client, self._kept[client])

    def __contains__(self, client: object) -> bool:
        """Return whether a client has a state, without reading it."""
        return client in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of states in memory."""
        return sum(count_bytes(kept.model) for kept in self._near.values() if kept.model is not None)

    def __or__(self, newer: Mapping[int, Model]) -> "SpilledStates":
        """Return these states updated with newer ones; all go to files if they exceed the memory limit."""
        added = {client: _Kept(model) for client, model in newer.items()}
        near = {k: kept for k, kept in self._near.items() if kept.model is not None}
        after = SpilledStates(self.shelf)
        after._kept, after._near = self._kept | added, near | added
        if after.bytes_in_memory > self.shelf.most_bytes:
            after._leave_memory()
        return after

    def settle(self) -> dict[str, Note]:
        """Write states not in a file yet, rewrite those in mostly outdated files, and describe the files."""
        sparse = self.shelf.sparse(self._kept)
        self.shelf.write((k, kept) for k, kept in self._kept.items() if kept.file is None or kept.file in sparse)
        return self.shelf.describe(set(self.files.values()))

    @property
    def files(self) -> dict[int, int]:
        """File number by client, for states in files."""
        return {client: kept.file for client, kept in self._kept.items() if kept.file is not None}

    def _leave_memory(self) -> None:
        self.shelf.write((client, kept) for client, kept in self._near.items() if kept.file is None)
        for kept in self._near.values():
            kept.model = None
        self._near = {}


def place_states(state: State, folder: Path, most_bytes: int | None) -> State:
    """Return the state with client states in memory or, beyond this many bytes, in files of a folder."""
    if most_bytes is None:
        return replace(state, clients=dict(state.clients))
    if isinstance(state.clients, SpilledStates):
        state.clients.shelf.most_bytes = most_bytes
        return state
    shelf = Shelf(folder, next(iter(state.starts[0].values())).device, most_bytes)
    return replace(state, clients=SpilledStates(shelf) | state.clients)


def files_in(folder: Path) -> list[Path]:
    """Return the files of states in a folder."""
    return list(folder.glob("clients-*.safetensors"))


def drop_files(folder: Path, kept: Iterable[str]) -> None:
    """Delete all files of states except these numbers, and partial files left by a kill."""
    numbers = set(map(int, kept))
    for path in files_in(folder):
        if _number_of(path) not in numbers:
            path.unlink(missing_ok=True)
    for path in folder.glob(".clients-*.part"):
        path.unlink(missing_ok=True)


def _number_of(path: Path) -> int:
    return int(path.stem.removeprefix("clients-"))
