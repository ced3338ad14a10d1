"""`make chaos` gives every kind of run its turn within the minutes."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.runs import KINDS, Kind


@pytest.mark.parametrize(("slow", "shares"), [(1.0, [240, 240, 240, 240, 240]), (2.0, [240, 180, 120, 60, 0])])
def test_each_kind_has_its_turn(monkeypatch: pytest.MonkeyPatch, slow: float, shares: list[float]) -> None:
    now, given = [0.0], list[tuple[str, float]]()

    def disturb(kind: Kind, _: object, seconds: float, *__: object) -> dict[str, Any]:
        given.append((kind.name, seconds))
        now[0] += slow * seconds
        right = {"hung": False, "stopped": False, "tracebacks": [], "ended by themselves": [], "like its replay": True}
        faults = [{"kind": "cut", "seconds": 1.0}] * 40
        return right | {
            "run": kind.name, "faults": faults, "events": 1, "seconds": 1.0, "results lost": 0, "calm": [],
            "like undisturbed": True,
        }  # fmt: skip

    monkeypatch.setattr(chaos, "disturb", disturb)
    monkeypatch.setattr(chaos, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(sys, "argv", ["chaos", "--faults", "200", "--minutes", "20"])
    assert chaos.main() == 0
    assert given == [(kind.name, pytest.approx(share)) for kind, share in zip(KINDS, shares, strict=True)]
