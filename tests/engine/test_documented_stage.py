"""The stage of docs/extending.md: the same bits on every executor, resumed and on a fleet, in the bytes planned."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from atoll import Experiment, InputError, Stage, make_runs, read_experiment
from atoll.engine.stages import require_chain
from atoll.fleet.agreed.messages import TrainReply, decode
from atoll.fleet.agreed.transport import Failure
from atoll.local.weights import count_bytes
from tests.cli.pages import ROOT, write_files
from tests.engine.test_composition import bits, carry
from tests.fleets import join, open_sites
from tests.memory_fleet import MemoryFleet


@pytest.fixture(scope="module", autouse=True)
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("page")
    write_files(ROOT / "docs/extending.md", folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("own_stage", None)


def documented(page: Path, *changes: str) -> Experiment:
    given = ["rounds=4", "data.samples=40", "local.steps=3", *changes]
    return Experiment(make_runs(read_experiment(page / "own-stage.toml"), changes=given)[0])


def test_serial_cores_and_resumed_are_bit_identical(page: Path) -> None:
    one, two = documented(page, "run.executor=serial"), documented(page, "run.executor=cores", "run.workers=2")
    states = carry(one)
    assert states[-1].clients, "clients keep what is lost"
    assert bits(carry(two)[-1], states[-1])
    assert bits(carry(one, states[1])[-1], states[-1])


def test_a_fleet_gives_the_bits_of_simulation_in_the_bytes_planned(page: Path, tmp_path: Path) -> None:
    one, other = documented(page, "run.executor=serial"), documented(page, "run.executor=fleet")
    sent: list[int] = []

    def counted(task: str, payload: bytes, honest: Callable[[], bytes]) -> bytes | Failure | None:
        reply = honest()
        if task == "train":
            sent.append(count_bytes(decode(reply, TrainReply)[1][0]))
        return reply

    sites = open_sites(other, tmp_path)
    executor = join(other, MemoryFleet(sites, dict.fromkeys(sites, counted)))
    for mine, theirs in zip(carry(other, executor=executor), carry(one), strict=True):
        assert all(mine.starts[0][name].equal(own) for name, own in theirs.starts[0].items())
    assert executor.refused == {}
    planned = other.traffic.update_bytes
    assert sent == [planned] * sum(event.client_updates for event in other.method.schedule.events)
    assert 20 * planned < other.traffic.message_bytes


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("send=lambda task, update: update.model", "its client half must return ClientUpdate, not 'dict'"),
        ("send=lambda task, update: 1 / 0", "its client half failed (ZeroDivisionError: division by zero, failing_"),
        (
            "send=lambda task, update: atoll.ClientUpdate({'a': 1.0}, 0.0)",
            "its client half must give tensors, not 'float' as 'a'",
        ),
        ("receive=lambda sent, start, form: None", "its server half must return a dict, not 'NoneType'"),
        ("receive=lambda sent, start, form: sent['no']", "its server half failed (KeyError: 'no', failing_"),
        ("receive=lambda sent, start, form: {'a': 1}", "its server half must give tensors, not 'int' as 'a'"),
        ("form=lambda form: None", "its form must return a dict of (torch.Size, torch.dtype) by name"),
        (
            "form=lambda form: dict.fromkeys(form, ((3,), 1))",
            "its form must return a dict of (torch.Size, torch.dtype)",
        ),
        ("form=lambda form: form.nothing", "its form failed (AttributeError"),
        ("begin=lambda task: task.nothing", "its client half failed (AttributeError"),
    ],
)
def test_a_half_that_fails_is_told_before_anything_is_written(page: Path, code: str, told: str) -> None:
    name = f"failing_{crc32(code.encode())}"
    (page / f"{name}.py").write_text(
        f'import atoll\n\ndef own(factor: float):\n    return atoll.Stage(name="own", {code})\n'
    )
    with pytest.raises(InputError) as refused:
        documented(page, f'travel.stages=["{name}:own"]').check()
    assert f"travel.stages = '{name}:own': {told}" in str(refused.value)


def test_a_state_of_another_form_is_told_with_the_stage_before_anything_is_written(page: Path) -> None:
    (page / "growing.py").write_text(GROWING)
    with pytest.raises(InputError) as refused:
        documented(page, 'travel.stages=["growing:own"]').check()
    told = "returned a state of another form than it was given: 'x' was torch.float32 [1], is now torch.float32 [2]"
    assert str(refused.value) == f"travel.stages = 'growing:own': its client half {told}"


GROWING = """
import torch

import atoll


def own(factor: float):
    def send(task, update):
        return atoll.ClientUpdate(update.model, update.loss, {"x": torch.zeros(1 if task.state is None else 2)})

    return atoll.Stage(name="growing", send=send, keeps_state=True)
"""


@pytest.mark.parametrize("field", [{"name": 3}, {"name": "a", "needs": "server"}, {"name": "a", "lacks": ["b"]}])
def test_a_stage_with_fields_of_a_wrong_type_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="Stage: name must be a text, and needs and lacks dicts"):
        Stage(**field)


def test_of_two_stages_that_replace_training_neither_is_left_out_silently() -> None:
    taught, other = (Stage(name=name, trains=lambda trainer: trainer.train) for name in ("taught", "other"))
    require_chain([taught], lambda need: "")
    with pytest.raises(InputError, match="stage 'other': cannot be used with stage 'taught': both replace how clients"):
        require_chain([taught, Stage(name="between"), other], lambda need: "")


def test_a_server_half_that_fails_on_a_message_refuses_it(page: Path, tmp_path: Path) -> None:
    """A hostile node's message has the right form, and may still be nothing that the half expects."""
    (page / "picky.py").write_text(PICKY)
    other = documented(page, "run.executor=fleet", 'travel.stages=["picky:own"]', "method.fraction=1.0")
    executor = join(other, MemoryFleet(open_sites(other, tmp_path)))
    carry(other, executor=executor)
    assert executor.refused["wrong_form"] == 4, "one client, in each round"


PICKY = """
import atoll


def own(factor: float):
    def receive(sent, start, form):
        if sent["1.bias"].sum() == 0:
            raise KeyError("nothing in it")
        return sent

    def send(task, update):
        bias = update.model["1.bias"] * (0 if task.client == 2 else 1)
        return atoll.ClientUpdate({**update.model, "1.bias": bias}, update.loss)

    return atoll.Stage(name="picky", send=send, receive=receive)
"""
