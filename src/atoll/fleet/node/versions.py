"""What clients keep on a fleet: each version at the client's node, at the server no more than the version's name.

A node cannot know whether its result was combined: the reply may be lost, late or refused. So it keeps a version for
each of a client's tasks, named by the task's nonce, and a task says which version it begins from. A server that goes on
from a checkpoint names an older one. What it may go on from stands in every task, and the node drops the rest.
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
"""Versions that stay besides those that are named: tasks under way at the same time may each have made one."""

_LOG = logging.getLogger("atoll.fleet")


def named(task: str) -> Model:
    """Return what stands for a client's state at the server: the name of the task that it is from.

    >>> name_of(named("00ff"))
    '00ff'
    """
    return {TASK: torch.tensor(list(bytes.fromhex(task)), dtype=torch.uint8)}


def name_of(state: Model) -> str:
    """Return the task whose state this stands for."""
    return bytes(state[TASK].tolist()).hex()


class Versions:
    """The versions of what one client keeps, in its node's store.

    Those of experiments that differ in what a client's work depends on are apart.
    """

    def __init__(self, store: Store, client: int, digest: str) -> None:
        """Keep them in this store; the digest is the agreement's."""
        self._store = store
        self._prefix = f"state-{client}-{digest[:16]}"

    def read(self, task: str) -> Model | None:
        """Return what the client kept after a task, its tensors in their order; None if it is not, or no longer, there.

        A damaged version is as good as none.
        """
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
        """Keep what a client has after a task; drop what is neither among the last, nor needed.

        Args:
            task: its name.
            state: what the client has.
            needed: tasks whose versions may yet be asked for.
        """
        known = [name for name in self._names() if name != task]
        last, wanted = known[max(len(known) - SPARE, 0) :], set(needed)
        kept = [name for name in known if name in last or name in wanted]
        # The list comes first, so that a version that a kill leaves behind is still on it, and dropped later.
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
        """Return the tasks whose versions are there, in the order in which they were made."""
        names: list[str] = json.loads(self._store.get(self._prefix) or b"[]")
        return names

    def _key(self, task: str) -> str:
        return f"{self._prefix}-{task}"


def _pack(state: Model) -> bytes:
    """Return a state as bytes; safetensors orders tensors anew, so their places stand in their names."""
    return safetensors.torch.save(
        {
            f"{place:06d}/{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for place, (name, tensor) in enumerate(state.items())
        }
    )
