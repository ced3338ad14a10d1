"""Rules by name: found, given what they ask for, and refused in words."""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll.experiment.cluster_plan import read_clustering
from atoll.settings.plugins import bind, call, import_from, resolve
from atoll.settings.validation import validate
from atoll.support.errors import InputError

KNOWN: dict[str, Callable[..., Any]] = {"sum": sum, "len": len}


def test_resolve_prefers_known_names_and_finds_own_ones() -> None:
    assert resolve("x.y", "sum", KNOWN) is sum
    assert resolve("x.y", "json:dumps", KNOWN).__name__ == "dumps"
    assert resolve("x.y", "json:JSONEncoder.encode", KNOWN).__qualname__ == "JSONEncoder.encode"
    with pytest.raises(InputError, match=r"x\.y = 'summ': unknown, did you mean 'sum'\? Allowed: len, sum, or 'module"):
        resolve("x.y", "summ", KNOWN)


def test_another_experiments_module_of_this_name_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own_twice.py").write_text(f"def rule(): return {name!r}\n")
        import_from(tmp_path / name)
        if name == "one":
            assert resolve("x.y", "own_twice:rule", KNOWN)() == "one"
    with pytest.raises(InputError, match=r"'own_twice:rule': Python has loaded .*one.own_twice\.py before, and so not"):
        resolve("x.y", "own_twice:rule", KNOWN)
    import_from(tmp_path / "one")
    assert resolve("x.y", "own_twice:rule", KNOWN)() == "one"
    del sys.modules["own_twice"]


def test_call_gives_what_is_asked_for() -> None:
    def rule(a: int, b: int = 2, *, c: int) -> tuple[int, int, int]:
        return a, b, c

    assert call("x.rule", rule, {"a": 1, "d": 4, "b": None, "c": 3}) == (1, 2, 3)
    with pytest.raises(InputError, match=r"x\.c is not set, but x\.rule = '.*rule' needs it"):
        call("x.rule", rule, {"a": 1})
    with pytest.raises(InputError, match=r"x\.a is not set"):
        call("x.rule", rule, {"a": None, "c": 3})


def sized(size: "int" = 0, ratio: float = 0.0, words: list[str] | None = None, own: "Own | None" = None) -> Any:
    """A data set of one's own, as far as its settings go."""


class Own:
    """A type that pydantic does not know."""


def needing(size: int) -> Any:
    """A function with a setting that has no default."""


def test_settings_are_checked_by_the_types_of_the_function_that_takes_them() -> None:
    name = f"{__name__}:sized"
    data = validate({"data": {"dataset": name, "size": 2, "ratio": 1, "words": ["a"]}}).data
    assert (data.get("size"), data.get("ratio"), data.get("words"), data.get("own")) == (2, 1.0, ["a"], None)
    for key, value in (("size", 2.5), ("size", True), ("ratio", "1"), ("words", "a"), ("own", 5)):
        with pytest.raises(InputError, match=rf"data\.{key} = .*: must be "):
            validate({"data": {"dataset": name, key: value}})
    with pytest.raises(InputError, match=r"data\.sise: unknown, did you mean 'size'\?"):
        validate({"data": {"dataset": name, "sise": 2}})
    told = r"data\.size is not set, but data\.dataset = '.*needing' needs it; besides settings it may take clients, "
    with pytest.raises(InputError, match=told):
        validate({"data": {"dataset": f"{__name__}:needing"}})


def first(models: Any, start: Any, weight: float) -> Any:
    """A combine rule itself, in place of a function that returns one."""


def test_a_combine_rule_itself_is_told_from_a_function_that_returns_one() -> None:
    told = "must be a function that returns the combine rule, not the rule itself"
    with pytest.raises(InputError, match=rf"method\.combine = '.*:first' needs it; it {told}"):
        validate({"method": {"combine": f"{__name__}:first"}})
    with pytest.raises(InputError, match=r"method\.size is not set, but method\.combine = '.*:needing' needs it$"):
        validate({"method": {"combine": f"{__name__}:needing"}})


def test_a_rule_may_take_any_setting() -> None:
    assert call("x.rule", lambda **options: options, {"a": 1}, {"b": 2}) == {"b": 2}


def test_bind_leaves_later_arguments_to_the_caller() -> None:
    def rule(parameters: list[int], lr: float, momentum: float) -> tuple[list[int], float, float]:
        return parameters, lr, momentum

    bound = bind("local.optimizer", rule, {"momentum": 0.5}, later=("parameters", "lr"))
    assert bound([1], 0.1) == ([1], 0.1, 0.5)


def test_a_partial_and_a_class_are_rules() -> None:
    class Rule:
        def __init__(self, a: int, b: int = 0) -> None:
            self.total = a + b

    assert call("x.rule", Rule, {"a": 1, "b": 2}).total == 3
    assert call("x.rule", partial(Rule, 5), {"b": 2}).total == 7


def test_the_line_is_the_users_where_pytorch_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system-wide PyTorch, or one that a .pth file names."""
    (tmp_path / "deep_inside.py").write_text("def fail():\n    raise ValueError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch, "__path__", [str(tmp_path)])
    inside = importlib.import_module("deep_inside")

    def rule() -> None:
        inside.fail()

    with pytest.raises(InputError, match=r"calling it failed \(ValueError: no, test_plugins\.py line \d+\)"):
        call("x.rule", rule, {})
    del sys.modules["deep_inside"]


def test_what_a_rule_raises_is_told_with_its_line() -> None:
    def rule() -> None:
        raise ValueError("two\nlines")

    with pytest.raises(InputError, match=r"calling it failed \(ValueError: two lines, test_plugins\.py line \d+\)"):
        call("x.rule", rule, {})

    def refuses() -> None:
        raise InputError("as it is")

    with pytest.raises(InputError, match=r"^as it is$"):
        call("x.rule", refuses, {})


def test_labels_that_are_not_a_number_are_refused_without_numpys_warning() -> None:
    with pytest.raises(InputError, match=r"clustering\.method = 'own:labels': clustering: labels: must hold finite"):
        read_clustering(np.array([0, np.nan]), 2, "own:labels", 2, may_empty=True)
