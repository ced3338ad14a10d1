"""Checkpoints give back the same tensors, and damaged ones are passed over."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll.engine.run_state import State
from atoll.local.models import Model
from atoll.runs import checkpoint
from atoll.runs.checkpoint import FORMAT, KEPT, drop_others, load_checkpoint, save_checkpoint
from atoll.runs.fingerprint import Fingerprint
from atoll.support.environment import package_versions
from atoll.support.errors import InputError
from tests.tiers import thinned

ORIGIN = Fingerprint(seed=0, settings="abc", executor="serial")


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
    both = (model(1.0), model(2.0))
    saved = state(3) if server else State(3, None, both, both)
    save_checkpoint(tmp_path, saved, ORIGIN)
    found = load_checkpoint(tmp_path, saved, ORIGIN)
    assert found is not None
    restored, warnings = found
    assert same(restored, saved)
    assert warnings == []
    assert (restored.server is None) == (saved.server is None)
    if server:
        assert restored.server is restored.starts[0] is restored.starts[2], "shared models stay shared"


def test_every_field_of_a_state_is_restored(tmp_path: Path) -> None:
    saved = replace(
        state(3),
        refused={"too_large": 2},
        server_state=model(3.0),
        clients={7: model(5.0), 2: model(6.0)},
        labels=np.array([1, -1, 0]),
        norms=((1.0, 4), (2.5, 7)),
        usual=(((0.5, 1),), ((1.0, 4), (2.5, 7)), ()),
    )
    save_checkpoint(tmp_path, saved, ORIGIN)
    found = load_checkpoint(tmp_path, saved, ORIGIN)
    assert found is not None
    for each in fields(State):
        assert as_lists(getattr(found[0], each.name)) == as_lists(getattr(saved, each.name)), each.name


def as_lists(value: Any) -> Any:
    """Return tensors, arrays and tuples, wherever in a value, as lists."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [as_lists(each) for each in value]
    return {key: as_lists(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def test_a_state_without_tensors_is_restored(tmp_path: Path) -> None:
    """As of a server rule that needs none."""
    saved = replace(state(3), server_state={}, clients={4: {}, 5: model(2.0)})
    save_checkpoint(tmp_path, saved, ORIGIN)
    found = load_checkpoint(tmp_path, saved, ORIGIN)
    assert found is not None
    assert found[0].server_state == {}
    assert [dict(found[0].clients[client]).keys() for client in (4, 5)] == [{}.keys(), model(2.0).keys()]


def test_tensors_are_restored_in_their_order(tmp_path: Path) -> None:
    """On which random numbers and sums may depend; safetensors gives them in any."""
    model = {f"{place * 7 % 10}.weight": torch.tensor(float(place)) for place in range(10)}
    kept = dict(reversed(model.items()))
    saved = State(3, model, (model,), (model,), server_state=kept, clients={2: kept})
    save_checkpoint(tmp_path, saved, ORIGIN)
    found = load_checkpoint(tmp_path, saved, ORIGIN)
    assert found is not None
    restored, _ = found
    assert [*restored.starts[0]] == [*model]
    assert [*(restored.server_state or {})] == [*restored.clients[2]] == [*kept]


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, state(0), ORIGIN) is None
    assert load_checkpoint(tmp_path / "missing", state(0), ORIGIN) is None


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    for event in range(1, 6):
        save_checkpoint(tmp_path, state(event), ORIGIN)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"event-{e:08d}.{s}" for e in range(6 - KEPT, 6) for s in ("json", "safetensors")]


@pytest.mark.parametrize("damage", ["tensors cut", "tensors changed", "tensors gone", "note cut", "note changed"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, state(1), ORIGIN)
    save_checkpoint(tmp_path, state(2), ORIGIN)
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
        note.write_text(note.read_text().replace('"events_done": 2', '"events_done": 3'))
    found = load_checkpoint(tmp_path, state(0), ORIGIN)
    assert found is not None
    assert same(found[0], state(1))
    assert len(found[1]) == 1
    assert found[1][0].startswith("the checkpoint event-00000002 is damaged (")


def test_when_all_are_damaged_that_is_said(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), ORIGIN)
    (tmp_path / "event-00000001.json").write_text("[]")
    with pytest.raises(InputError, match=r"every checkpoint in .* is damaged; add --overwrite"):
        load_checkpoint(tmp_path, state(0), ORIGIN)


def test_tensors_without_their_note_do_not_count(tmp_path: Path) -> None:
    """The note is written last, so a crash between the two leaves the tensors alone."""
    save_checkpoint(tmp_path, state(1), ORIGIN)
    save_checkpoint(tmp_path, state(2), ORIGIN)
    (tmp_path / "event-00000002.json").unlink()
    found = load_checkpoint(tmp_path, state(0), ORIGIN)
    assert found is not None
    assert found[0].events_done == 1


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), ORIGIN)
    wrong = 3 * ({"0.weight": torch.zeros(3, 2)},)
    other = State(0, None, wrong, wrong)
    with pytest.raises(InputError, match="another model"):
        load_checkpoint(tmp_path, other, ORIGIN)


def test_a_checkpoint_of_other_clusters_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), ORIGIN)
    two = State(0, None, 2 * (model(0.0),), 2 * (model(0.0),))
    with pytest.raises(InputError, match=r"has 3 clusters, method\.name now makes 2"):
        load_checkpoint(tmp_path, two, ORIGIN)


@pytest.mark.more
@pytest.mark.parametrize("suffix", thinned(["json", "safetensors"], 1))
def test_a_checkpoint_cut_at_any_byte_is_passed_over(tmp_path: Path, suffix: str) -> None:
    for event in (1, 2):
        save_checkpoint(tmp_path, state(event), ORIGIN)
    file = tmp_path / f"event-00000002.{suffix}"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        found = load_checkpoint(tmp_path, state(0), ORIGIN)
        assert found is not None
        restored, warnings = found
        if suffix == "json" and size == len(whole) - 1:  # the line's end says nothing
            assert same(restored, state(2))
        else:
            assert same(restored, state(1)), size
            assert len(warnings) == 1
            assert warnings[0].startswith("the checkpoint event-00000002 is damaged (")
            assert warnings[0].endswith("); an earlier one is used")


@pytest.mark.more
@pytest.mark.parametrize("suffix", thinned(["json", "safetensors"], 1))
def test_a_checkpoint_with_any_byte_changed_is_passed_over(tmp_path: Path, suffix: str) -> None:
    for event in (1, 2):
        save_checkpoint(tmp_path, state(event), ORIGIN)
    file = tmp_path / f"event-00000002.{suffix}"
    whole = file.read_bytes()
    for place in range(len(whole)):
        if whole[place : place + 1].isspace():  # between JSON's words it says nothing
            continue
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = load_checkpoint(tmp_path, state(0), ORIGIN)
        assert found is not None
        assert same(found[0], state(1)), place


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 1}, "is of a run with seed 0; remove it, or add --overwrite"),
        ({"settings": "abd"}, "is of a run with other settings; remove it, or add --overwrite"),
        ({"executor": "weighted"}, "set run.executor = 'serial'"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, changed: dict[str, str], told: str) -> None:
    save_checkpoint(tmp_path, state(1), ORIGIN)
    with pytest.raises(InputError, match=told):
        load_checkpoint(tmp_path, state(0), replace(ORIGIN, **changed))  # type: ignore[arg-type]


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", FORMAT + 1)
    save_checkpoint(tmp_path, state(1), ORIGIN)
    monkeypatch.undo()
    with pytest.raises(InputError, match=f"has format {FORMAT + 1}, this version of Atoll reads {FORMAT}"):
        load_checkpoint(tmp_path, state(0), ORIGIN)


def test_a_checkpoint_of_other_packages_is_used_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = package_versions()
    monkeypatch.setattr(checkpoint, "package_versions", lambda: now | {"torch": "1.0"})
    save_checkpoint(tmp_path, state(1), ORIGIN)
    monkeypatch.undo()
    found = load_checkpoint(tmp_path, state(0), ORIGIN)
    assert found is not None
    assert same(found[0], state(1))
    (warning,) = found[1]
    assert f"torch was 1.0, is now {now['torch']}: the result may differ" in warning


def test_after_a_damaged_checkpoint_the_one_that_was_used_is_kept(tmp_path: Path) -> None:
    for event in (3, 5):
        save_checkpoint(tmp_path, state(event), ORIGIN)
    (tmp_path / "event-00000005.json").write_text("torn")
    (tmp_path / ".event-00000007.safetensors.part").write_text("torn")
    (tmp_path / "event-00000007.safetensors").write_text("without its note")
    (tmp_path / "best.safetensors").write_text("mine")
    save_checkpoint(tmp_path, state(4), ORIGIN)
    stems = {path.stem for path in tmp_path.iterdir()}
    assert stems == {"event-00000003", "event-00000004", "best"}
    drop_others(tmp_path, 3)
    assert {path.stem for path in tmp_path.iterdir()} == {"event-00000003", "best"}
