"""Checkpoints: a run's state in safetensors and JSON, written atomically; no pickle."""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load, save

from atoll.engine import State
from atoll.errors import InputError
from atoll.models import Model
from atoll.record import to_json, write_atomically

KEPT = 2


def save_checkpoint(folder: Path, state: State) -> None:
    """Write the state after an event, then drop all but the last two checkpoints.

    A model that several clusters share is written once. The JSON file is written last and holds the tensors'
    checksum, so a checkpoint counts only when both files are whole.
    """
    models: list[Model] = []
    seen: dict[int, int] = {}

    def number(model: Model | None) -> int | None:
        if model is None:
            return None
        if id(model) not in seen:
            seen[id(model)] = len(models)
            models.append(model)
        return seen[id(model)]

    layout = {
        "events_done": state.events_done,
        "server": number(state.server),
        "starts": [number(model) for model in state.starts],
        "published": [number(model) for model in state.published],
    }
    content = save(
        {
            f"{i}/{name}": t.clone(memory_format=torch.contiguous_format)
            for i, model in enumerate(models)
            for name, t in model.items()
        }
    )
    stem = folder / f"event-{state.events_done:08d}"
    write_atomically(stem.with_suffix(".safetensors"), content)
    note = {"state": layout, "sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(stem.with_suffix(".json"), to_json(note))
    for old in sorted(folder.glob("event-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_checkpoint(folder: Path, first: State) -> tuple[State, list[str]] | None:
    """Return the latest whole checkpoint, and a sentence for each damaged one passed over; None if there is none.

    Args:
        folder: where the checkpoints are.
        first: the state before the first event, whose models tell the names, shapes and types to expect.

    Raises:
        InputError: there are checkpoints, but all are damaged or of another model.
    """
    warnings: list[str] = []
    for note_path in sorted(folder.glob("event-*.json"), reverse=True):
        try:
            note = json.loads(note_path.read_bytes())
            content = note_path.with_suffix(".safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != note["sha256"]:
                raise ValueError("its checksum does not fit")
            device = next(iter(first.starts[0].values())).device
            state = _restore(note["state"], {key: tensor.to(device) for key, tensor in load(content).items()})
            _require_same(state, first)
            return state, warnings
        except (OSError, ValueError, KeyError, TypeError, IndexError, safetensors.SafetensorError) as error:
            warnings.append(f"the checkpoint {note_path.stem} is damaged ({error}); an earlier one is used")
    if warnings:
        raise InputError(f"--resume: every checkpoint in {folder} is damaged; add --overwrite to start again")
    return None


def _restore(layout: dict[str, Any], tensors: Model) -> State:
    models: dict[int, Model] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        models.setdefault(int(number), {})[name] = tensor
    server = layout["server"]
    return State(
        events_done=layout["events_done"],
        server=None if server is None else models[server],
        starts=tuple(models[i] for i in layout["starts"]),
        published=tuple(models[i] for i in layout["published"]),
    )


def _require_same(state: State, first: State) -> None:
    """Refuse models of other names, shapes or types: the user's own module may have changed since."""
    wanted = _form(first.starts[0])
    for model in (*state.starts, *state.published):
        # Beyond the module's tensors, a model may carry the optimiser's, named parameter@slot.
        if {key: form for key, form in _form(model).items() if "@" not in key} != wanted:
            raise InputError("--resume: the checkpoint is of another model than model.name makes now")


def _form(model: Model) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()}
