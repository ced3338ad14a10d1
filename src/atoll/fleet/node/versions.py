"""Client states on a fleet: the client's node stores every version, the server knows only its name.

A node cannot know whether its result was combined: the reply may be lost, late or rejected. So it stores a version for
each of a client's tasks, named by the task's nonce, and a task names the version that it starts from. A server that
resumes from a checkpoint names an older one. Every task lists the versions that may still be needed; the node drops the
rest.
"""

import json
import logging
from collections.abc import Iterable

import safetensors
import safetensors.torch
import torch

from atoll.fleet.node.store import Store
from atoll.local.models import Model

TASK = "@task"
SPARE = 3
"""Recent versions that are kept in addition: tasks running at the same time may each have made one."""

_LOG = logging.getLogger("atoll.fleet")


def named(task: str) -> Model:
    """Return the server's placeholder for a client's state: the name of the task that produced it."""
    return {TASK: torch.tensor(list(bytes.fromhex(task)), dtype=torch.uint8)}


def name_of(state: Model) -> str:
    """Return the task whose state this is a placeholder for."""
    return bytes(state[TASK].tolist()).hex()


class Versions:
    """The versions of one client's state in its node's store, separate for each agreement."""

    def __init__(self, store: Store, client: int, digest: str) -> None:
        """Use this store; `digest` is the agreement's."""
        self._store = store
        self._prefix = f"state-{client}-{digest[:16]}"

    def read(self, task: str) -> Model | None:
        """Return the client's state after a task, its tensors in order; None if it is missing or damaged."""
        content = self._store.get(self._key(task))
        if content is None:
            return None
        try:
            tensors = safetensors.torch.load(content)
        except (safetensors.SafetensorError, ValueError) as error:
            _LOG.error("%s is damaged (%s)", self._key(task), error)
            return None
        return {key.partition("/")[2]: tensors[key] for key in sorted(tensors)}

    def add(self, task: str, state: Model, needed: Iterable[str]) -> None:
        """Store a client's state after a task; drop versions that are neither recent nor `needed` by later tasks."""
        known = [name for name in self._names() if name != task]
        last, wanted = known[max(len(known) - SPARE, 0) :], set(needed)
        kept = [name for name in known if name in last or name in wanted]
        # The list is written first, so that a version left behind by a kill is on it and dropped later.
        self._store.put(self._prefix, json.dumps([*known, task]).encode())
        self._store.put(self._key(task), _pack(state))
        for name in known:
            if name not in kept:
                self._store.drop(self._key(name))
        if kept != known:
            self._store.put(self._prefix, json.dumps([*kept, task]).encode())

    def clear(self) -> None:
        """Drop all versions."""
        for name in self._names():
            self._store.drop(self._key(name))
        self._store.drop(self._prefix)

    def _names(self) -> list[str]:
        """Return the tasks with stored versions, oldest first."""
        try:
            names: list[str] = json.loads(self._store.get(self._prefix) or b"[]")
        except ValueError as error:
            _LOG.error("%s is damaged (%s)", self._prefix, error)
            return []
        return names

    def _key(self, task: str) -> str:
        return f"{self._prefix}-{task}"


def _pack(state: Model) -> bytes:
    """Return a state as bytes; safetensors reorders tensors, so their names include their positions."""
    return safetensors.torch.save(
        {
            f"{place:06d}/{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for place, (name, tensor) in enumerate(state.items())
        }
    )
