"""The race on a GPU: cut-offs, one file that grows by cases, and going on where it stopped."""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench import Case, Contender
from bench import work as bench_work
from bench.contenders import PLAIN
from bench.peak_memory import can_measure, descendants

ROOT = Path(__file__).parents[2]
TINY = Case("mlp", clients=3, steps=2, batch_size=4)
PACED = f"""
import subprocess, sys, time
sys.path.insert(0, {str(Path(bench_work.__file__).parent)!r})
import work
slow_from, starts_a_server = map(int, sys.argv[1:3])
if starts_a_server:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pace, rounds = work.WorkRate(5, lambda: 1.0), 0
while pace.next_round():
    time.sleep(600 if rounds >= slow_from else 0.01)
    rounds += 1
"""


def paced(name: str, slow_from: int = 99, server: bool = False) -> Contender:
    return Contender(name, (sys.executable, "-c", PACED, str(slow_from), str(int(server))))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield importlib.import_module("card_race")
    for name in set(sys.modules) - before:
        if name in ("card_race", "gpu", "speed", "torch_models", "shared", "work"):
            del sys.modules[name]


@pytest.mark.more
def test_slow_contenders_are_cut_off_and_the_others_go_on(card: ModuleType) -> None:
    there = descendants(os.getpid()) if can_measure() else []
    contenders = [paced(PLAIN), paced("slow later", 2), paced("slow at once", 1), paced("fast", server=True)]
    contenders += [paced("never ready", 0), Contender("dies", (sys.executable, "-c", "raise ValueError('no card')"))]
    results = card.race_case(TINY, contenders, card.Limits(3, start_seconds=8.0, round_seconds=1.5, case_seconds=8.0))
    assert {each["contender"]: len(each["seconds"]) for each in results} == {
        PLAIN: 3,
        "slow later": 1,
        "slow at once": 0,
        "fast": 3,
        "never ready": 0,
        "dies": 0,
    }
    over = {each["contender"]: each["over"] for each in results if each["over"]}
    late = "start and first round over 8 s"
    assert over == {"slow later": "over 1.5 s", "slow at once": "over 1.5 s", "never ready": late}
    failures = [each["failure"] for each in results if each["failure"]]
    assert failures == ["it ended without an answer: ValueError: no card"]
    assert results[1]["speed"] == pytest.approx(results[0]["seconds"][0] / results[1]["seconds"][0])
    assert set(alive(descendants(os.getpid()))) <= set(there) or not can_measure()  # the server in its own session


def alive(pids: list[int]) -> list[int]:
    """Those that are not merely waiting for their end to be noticed."""
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [pid for pid, file in states.items() if file.is_file() and ") Z " not in file.read_text()]


@pytest.mark.more
def test_no_turn_begins_after_the_seconds_of_a_case(card: ModuleType) -> None:
    limits = card.Limits(rounds=50, start_seconds=8.0, case_seconds=0.0)
    (result,) = card.race_case(TINY, [paced(PLAIN)], limits)
    assert len(result["seconds"]) == 1


def test_an_interrupted_race_ends_its_contenders_at_once(card: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    there = descendants(os.getpid()) if can_measure() else []
    began: list[float] = []

    def interrupted(racers: Sequence[Any], *_: object) -> Iterator[None]:
        for racer in racers:
            racer.start()
        yield
        began.append(time.monotonic())
        raise KeyboardInterrupt

    monkeypatch.setattr(card, "_raced", interrupted)
    with pytest.raises(KeyboardInterrupt):
        card.race_case(TINY, [paced(PLAIN, 0), paced("never ready", 0), paced("nor this", 0)], card.Limits())
    assert time.monotonic() - began[0] < 5 or not can_measure()
    assert set(alive(descendants(os.getpid()))) <= set(there) or not can_measure()


@pytest.mark.more
def test_a_race_goes_on_where_it_stopped(card: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def contenders_of(case: Case, sites: Path, without: Any) -> list[Contender]:
        asked.append(case.name)
        return [paced(PLAIN), paced("late", 1)]

    monkeypatch.setattr(card, "contenders_of", contenders_of)
    monkeypatch.setattr(card, "describe", lambda device, precision: {"device": device})
    cases = [TINY, TINY, Case("cnn", 2, steps=1, batch_size=3)]

    def race(minutes: float, precision: str = "float32") -> list[dict[str, Any]]:
        limits = card.Limits(rounds=1, start_seconds=8.0, round_seconds=0.5)
        card.race_on("cpu", cases, precision, tmp_path, tmp_path / "out", minutes, limits)
        file = tmp_path / "out/speed-cpu.json"
        found: list[dict[str, Any]] = json.loads(file.read_text())["cases"] if file.is_file() else []
        return found

    assert race(minutes=-1) == []  # nothing begins without time
    before = cases.pop()
    assert [each["case"] for each in race(1)] == ["mlp, 3 clients"]
    cases.append(before)
    first, second = race(1)
    assert asked == ["mlp, 3 clients", "cnn, 2 clients, 1 step"]
    assert [len(first["results"][0]["seconds"]), second["results"][1]["over"]] == [1, "over 0.5 s"]
    assert len(race(1, "tf32")) == 4  # another precision is another case
    table = (tmp_path / "out/speed-cpu.md").read_text().splitlines()
    assert len(table) == 2 + 8
    assert table[3].startswith("| mlp, 3 clients, 2 steps of 4, float32 | late |  |")
    assert table[3].endswith("| over 0.5 s |")


@pytest.mark.more
def test_a_case_that_came_to_nothing_is_raced_again(
    card: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "describe", lambda device, precision: {"device": device})
    for slow_from, rounds in ((0, 0), (99, 1), (0, 1)):
        monkeypatch.setattr(card, "contenders_of", lambda *_, slow_from=slow_from: [paced(PLAIN, slow_from)])
        limits = card.Limits(rounds=1, start_seconds=8.0, round_seconds=0.5)
        card.race_on("cpu", [TINY], "float32", tmp_path, tmp_path / "out", 1, limits)
        (found,) = json.loads((tmp_path / "out/speed-cpu.json").read_text())["cases"]
        assert len(found["results"][0]["seconds"]) == rounds


@pytest.mark.more
def test_every_contender_and_model_of_a_case_is_there(card: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks/peers")
    models = importlib.import_module("torch_models").MODELS
    for dropout in (False, True):
        assert all(case.model in models for case in card.card_cases(dropout))
    for entry in card.ENTRIES:
        assert (ROOT / "benchmarks/peers" / entry.runner).is_file()
    assert all(card._flops(case) > 0 for case in card.CASES)
    on_cpu = {each.name for each in card.contenders_of(TINY, Path(), ["pfl"])}
    assert on_cpu == {
        PLAIN,
        "torch.func",
        "Atoll, stacked",
        "Atoll, serial",
        "Flower, 5 processes",
        "BlazeFL, threads",
        "FedJAX",
    }
    assert card.in_short(card.CASES[0]) == Case("mlp", 5, steps=2)
    launched = {each.name: each.command[1:-1] for each in card.contenders_of(TINY, Path()) if "pfl," in each.name}
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    assert launched == {"pfl, 1 process": (), **{f"pfl, {n} processes": (*run, str(n)) for n in (2, 3, 4, 5)}}


@pytest.mark.more
def test_those_that_need_no_other_library_train_and_do_equal_work(card: ModuleType) -> None:
    others = ("pfl", "Flower", "BlazeFL", "PFLlib", "FedJAX")
    contenders = card.contenders_of(TINY, Path(), others)
    results = card.race_case(TINY, contenders, card.Limits(rounds=1, start_seconds=200.0, round_seconds=80.0))
    assert [each["contender"] for each in results] == [PLAIN, "torch.func", "Atoll, stacked", "Atoll, serial"]
    assert [(each["failure"], each["over"], len(each["seconds"])) for each in results] == [("", "", 1)] * 4
    assert {each["work"]["parameters"] for each in results} == {159_010}
