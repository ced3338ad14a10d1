"""Checkpoints give back the same tensors, and damaged ones are passed over."""

import json
from pathlib import Path

import pytest
import torch

from atoll.checkpoint import KEPT, load_checkpoint, save_checkpoint
from atoll.engine import State
from atoll.errors import InputError
from atoll.models import Model


def model(value: float) -> Model:
    return {"0.weight": torch.full((2, 3), value), "1.count": torch.tensor(int(value)), "2.empty": torch.empty(0)}


def state(events_done: int) -> State:
    """Three clusters, of which two share a model with the server, as after a cycle of FedCluster."""
    shared, own = model(1.5 + events_done), model(7.0)
    return State(events_done, shared, (shared, own, shared), (own, own, shared))


def same(first: State, second: State) -> bool:
    models = [zip(a, b, strict=True) for a, b in ((first.starts, second.starts), (first.published, second.published))]
    return first.events_done == second.events_done and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)
        for pairs in models
        for a, b in pairs
    )


@pytest.mark.parametrize("server", [True, False])
def test_what_is_saved_is_restored(tmp_path: Path, server: bool) -> None:
    saved = state(3) if server else State(3, None, *(2 * [(model(1.0), model(2.0))]))
    save_checkpoint(tmp_path, saved)
    found = load_checkpoint(tmp_path, saved)
    assert found is not None
    restored, warnings = found
    assert same(restored, saved)
    assert warnings == []
    assert (restored.server is None) == (saved.server is None)
    if server:
        assert restored.server is restored.starts[0] is restored.starts[2], "shared models stay shared"


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, state(0)) is None
    assert load_checkpoint(tmp_path / "missing", state(0)) is None


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    for event in range(1, 6):
        save_checkpoint(tmp_path, state(event))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"event-{e:08d}.{s}" for e in range(6 - KEPT, 6) for s in ("json", "safetensors")]


@pytest.mark.parametrize("damage", ["tensors cut", "tensors changed", "tensors gone", "note cut", "note of another"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, state(1))
    save_checkpoint(tmp_path, state(2))
    tensors, note = tmp_path / "event-00000002.safetensors", tmp_path / "event-00000002.json"
    if damage == "tensors cut":
        tensors.write_bytes(tensors.read_bytes()[:-5])
    elif damage == "tensors changed":
        tensors.write_bytes(tensors.read_bytes()[:-1] + b"\x01")
    elif damage == "tensors gone":
        tensors.unlink()
    elif damage == "note cut":
        note.write_bytes(note.read_bytes()[:-5])
    else:
        content = json.loads(note.read_bytes())
        content["state"]["starts"] = [9, 9, 9]
        note.write_text(json.dumps(content))
    found = load_checkpoint(tmp_path, state(0))
    assert found is not None
    assert same(found[0], state(1))
    assert len(found[1]) == 1
    assert found[1][0].startswith("the checkpoint event-00000002 is damaged (")


def test_when_all_are_damaged_that_is_said(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    (tmp_path / "event-00000001.json").write_text("[]")
    with pytest.raises(InputError, match=r"every checkpoint in .* is damaged; add --overwrite"):
        load_checkpoint(tmp_path, state(0))


def test_tensors_without_their_note_do_not_count(tmp_path: Path) -> None:
    """The note is written last, so a crash between the two leaves the tensors alone."""
    save_checkpoint(tmp_path, state(1))
    save_checkpoint(tmp_path, state(2))
    (tmp_path / "event-00000002.json").unlink()
    found = load_checkpoint(tmp_path, state(0))
    assert found is not None
    assert found[0].events_done == 1


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    other = State(0, None, *(2 * [({"0.weight": torch.zeros(3, 2)},)]))
    with pytest.raises(InputError, match="another model"):
        load_checkpoint(tmp_path, other)
