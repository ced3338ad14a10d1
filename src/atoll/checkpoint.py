"""Checkpoints: a run's state in safetensors and JSON, written atomically; no pickle."""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load, save

from atoll.engine import State
from atoll.errors import InputError
from atoll.local import Model
from atoll.record import to_json, write_atomically

KEPT = 2


def save_checkpoint(folder: Path, state: State, extra: dict[str, Any]) -> None:
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
    content = save({f"{i}/{name}": t.contiguous() for i, model in enumerate(models) for name, t in model.items()})
    stem = folder / f"event-{state.events_done:08d}"
    write_atomically(stem.with_suffix(".safetensors"), content)
    note = {"state": layout, "sha256": hashlib.sha256(content).hexdigest(), "extra": extra}
    write_atomically(stem.with_suffix(".json"), to_json(note))
    for old in sorted(folder.glob("event-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[State, dict[str, Any], list[str]] | None:
    """Return the latest whole checkpoint, what was stored with it, and a sentence for each damaged one passed over.

    None if there is no checkpoint at all.

    Raises:
        InputError: there are checkpoints, but all are damaged.
    """
    warnings: list[str] = []
    for note_path in sorted(folder.glob("event-*.json"), reverse=True):
        try:
            note = json.loads(note_path.read_bytes())
            content = note_path.with_suffix(".safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != note["sha256"]:
                raise ValueError("its checksum does not fit")
            return _restore(note["state"], load(content)), note["extra"], warnings
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
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
