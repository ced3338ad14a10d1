"""Checkpoints: a run's state in safetensors and JSON, written atomically; no pickle."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load, save

from atoll.aggregation.usual_norms import Norms
from atoll.engine.run_state import State
from atoll.local.models import Model, form_of, without_moments
from atoll.runs.fingerprint import Fingerprint
from atoll.runs.spilling import Shelf, SpilledStates, drop_files
from atoll.support.environment import package_versions
from atoll.support.errors import InputError, reason_of
from atoll.support.files import to_json, write_atomically
from atoll.support.untrusted import read_bytes, read_json

FORMAT = 2
KEPT = 2
DAMAGED = (OSError, ValueError, LookupError, TypeError, RecursionError, safetensors.SafetensorError)
"""What reading a damaged checkpoint may raise."""
MOST_BYTES = 2**36
"""The largest file of tensors that is read: 64 GiB."""
SPILLED = "clients"
"""Name of the tensor of pairs of client and file number, int64 [states, 2]."""

Note = dict[str, Any]


def save_checkpoint(folder: Path, state: State, origin: Fingerprint) -> None:
    """Write the state after an event, then drop all but the last two checkpoints.

    A model that several clusters share is written once. The JSON file is written last and holds the tensors'
    checksum and its own, so a checkpoint is valid only if both files are complete. Of `SpilledStates` only those not
    in a file yet are written; the checksums of their files are in the JSON file too.
    """
    models, layout = lay_out(state)
    tensors = {
        f"{i}/{name}": t.clone(memory_format=torch.contiguous_format)
        for i, model in enumerate(models)
        for name, t in model.items()
    }
    if isinstance(state.clients, SpilledStates):
        layout["files"] = state.clients.settle()
        tensors[SPILLED] = torch.tensor(list(state.clients.files.items()), dtype=torch.int64).reshape(-1, 2)
    content = save(tensors)
    stem = _stem(folder, state.events_done)
    write_atomically(stem.with_suffix(".safetensors"), content)
    note = {
        "format": FORMAT,
        "packages": package_versions(),
        "origin": asdict(origin),
        "state": layout,
        "tensors": hashlib.sha256(content).hexdigest(),
    }
    write_atomically(stem.with_suffix(".json"), to_json(note | {"checksum": _checksum(note)}))
    drop_others(folder, state.events_done)


def load_checkpoint(folder: Path, first: State, origin: Fingerprint) -> tuple[State, list[str]] | None:
    """Return the latest intact checkpoint, and a sentence for each damaged one skipped; None if there is none.

    The models of `first`, the state before the first event, have the expected names, shapes and types.
    """
    warnings: list[str] = []
    for path in sorted(folder.glob("event-*.json"), reverse=True):
        try:
            note = read_note(path)
            _require_origin(path, note, origin)
            state = read_state(path, note, next(iter(first.starts[0].values())).device)
        except DAMAGED as error:
            warnings.append(f"the checkpoint {path.stem} is damaged ({reason_of(error)}); an earlier one is used")
            continue
        _require_same(state, first)
        return state, warnings + _changed_packages(path, note)
    if warnings:
        raise InputError(f"--resume: every checkpoint in {folder} is damaged; add --overwrite to start again")
    return None


def read_state(path: Path, note: Note, device: torch.device) -> State:
    """Return the state that a checkpoint's tensors hold."""
    content = read_bytes(path.with_suffix(".safetensors"), most=MOST_BYTES)
    if hashlib.sha256(content).hexdigest() != note["tensors"]:
        raise ValueError("the checksum of its tensors does not match")
    tensors = load(content)
    in_files = tensors.pop(SPILLED, None)
    state = restore(note["state"], {key: tensor.to(device) for key, tensor in tensors.items()})
    if in_files is None:
        return state
    shelf = Shelf(path.parent, device, files=note["state"]["files"])
    shelf.require_whole()
    return replace(state, clients=SpilledStates(shelf, dict(in_files.tolist())))


def kept_by_checkpoints(folder: Path, device: torch.device) -> list[Mapping[int, Model]]:
    """Return the clients' states in each intact checkpoint of a folder, the latest last."""
    kept: list[Mapping[int, Model]] = []
    for path in sorted(folder.glob("event-*.json")):
        with suppress(*DAMAGED):
            kept.append(read_state(path, read_note(path), device).clients)
    return kept


def drop_others(folder: Path, events_done: int) -> None:
    """Keep the last two checkpoints up to this event; later ones are damaged, those without JSON incomplete."""
    notes = sorted(path.stem for path in folder.glob("event-*.json"))
    kept = [stem for stem in notes if stem <= _stem(folder, events_done).name][-KEPT:]
    # The JSON file is deleted first, so that a dropped checkpoint left by a kill does not look damaged.
    for pattern in ("event-*.json", "event-*.safetensors", ".event-*.part"):
        for path in folder.glob(pattern):
            if path.stem not in kept:
                path.unlink(missing_ok=True)
    used = set[str]()
    for stem in kept:
        with suppress(*DAMAGED):
            used.update(read_note(folder / f"{stem}.json")["state"].get("files", {}))
    drop_files(folder, used)


def _stem(folder: Path, events_done: int) -> Path:
    return folder / f"event-{events_done:08d}"


def _checksum(note: Note) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()


def read_note(path: Path) -> Note:
    """Return the content of a checkpoint's JSON file."""
    note = read_json(path)
    if not isinstance(note, dict) or note.pop("checksum", None) != _checksum(note):
        raise ValueError("its checksum does not match")
    return note


def _require_origin(path: Path, note: Note, origin: Fingerprint) -> None:
    """Reject a checkpoint from which this run cannot resume."""
    if note["format"] != FORMAT:
        raise InputError(
            f"--resume: the checkpoint {path} has format {note['format']}, this version of Atoll reads {FORMAT}; "
            "resume with the version that wrote it, or add --overwrite to start again"
        )
    before, now = note["origin"], asdict(origin)
    if before["executor"] != now["executor"]:
        ours, theirs = (re.sub("^[^,]+", r"'\g<0>'", each["executor"]) for each in (now, before))
        raise InputError(
            f"--resume: run.executor now gives the bits of {ours}, which round differently from those of {theirs}, "
            f"with which the run was begun; set run.executor = {theirs}"
        )
    if before != now:
        other = f"seed {before['seed']}" if before["seed"] != now["seed"] else "other settings"
        told = f"--resume: the checkpoint {path} is of a run with {other}"
        raise InputError(f"{told}; remove it, or add --overwrite to start again")


def _changed_packages(path: Path, note: Note) -> list[str]:
    """Return a warning if packages that affect results have changed since the checkpoint was written."""
    before, now = note["packages"], package_versions()
    changed = [f"{name} was {before.get(name)}, is now {now[name]}" for name in now if before.get(name) != now[name]]
    if not changed:
        return []
    return [
        f"since the checkpoint {path.stem}, {', '.join(changed)}: the result may differ in its last bits from that of "
        "an uninterrupted run"
    ]


def _require_same(state: State, first: State) -> None:
    """Reject models of other names, shapes or types: a custom module may have changed since."""
    form = without_moments(form_of(first.starts[0]))
    if len(state.starts) != len(first.starts):
        told = f"--resume: the checkpoint has {len(state.starts)} clusters"
        raise InputError(f"{told}, method.name now makes {len(first.starts)}")
    server = () if state.server is None else (state.server,)
    for model in (*server, *state.starts, *state.published):
        if without_moments(form_of(model)) != form:
            raise InputError("--resume: the checkpoint is of another model than model.name makes now")


def lay_out(state: State) -> tuple[list[Model], dict[str, Any]]:
    """Return the distinct models of a state, and the index of the model at each place."""
    models: list[Model] = []
    seen: dict[int, int] = {}

    def number(model: Model) -> int:
        if id(model) not in seen:
            seen[id(model)] = len(models)
            models.append(model)
        return seen[id(model)]

    kept = {} if isinstance(state.clients, SpilledStates) else state.clients
    return models, {
        "events_done": state.events_done,
        "server": None if state.server is None else number(state.server),
        "starts": [number(model) for model in state.starts],
        "published": [number(model) for model in state.published],
        "refused": dict(state.refused),
        "server_state": None if state.server_state is None else number(state.server_state),
        "clients": {str(client): number(model) for client, model in kept.items()},
        "labels": None if state.labels is None else state.labels.tolist(),
        "norms": _lay_out_norms(state),
        "order": [f"{i}/{name}" for i, model in enumerate(models) for name in model],  # safetensors has another
    }


def _lay_out_norms(state: State) -> dict[str, Any]:
    """Return the distinct lists of norms, and which of them is the latest and each cluster's."""
    numbers: dict[Norms, int] = {}
    for each in (state.norms, *state.usual):
        numbers.setdefault(each, len(numbers))
    return {"lists": [list(each) for each in numbers], "usual": [numbers[each] for each in state.usual]}


def restore(layout: dict[str, Any], tensors: Model) -> State:
    """Return the state with this layout, given its tensors as ``index/name``, in any order."""
    models: dict[int, Model] = {}  # without those that have no tensors, such as a rule's empty state
    for key in layout["order"]:
        number, _, name = key.partition("/")
        models.setdefault(int(number), {})[name] = tensors[key]
    server, server_state = layout["server"], layout.get("server_state")
    norms = [tuple((norm, client) for norm, client in each) for each in layout["norms"]["lists"]]
    return State(
        events_done=layout["events_done"],
        server=None if server is None else models[server],
        starts=tuple(models[i] for i in layout["starts"]),
        published=tuple(models[i] for i in layout["published"]),
        refused=layout["refused"],
        server_state=None if server_state is None else models.get(server_state, {}),
        clients={int(client): models.get(i, {}) for client, i in layout.get("clients", {}).items()},
        labels=None if layout.get("labels") is None else np.array(layout["labels"], np.int64),
        norms=norms[0],
        usual=tuple(norms[number] for number in layout["norms"]["usual"]),
    )
