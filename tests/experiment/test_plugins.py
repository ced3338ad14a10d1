"""Rules by name: found, given what they ask for, and refused in words."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from atoll.experiment.plugins import bind, call, resolve
from atoll.support.errors import InputError

KNOWN: dict[str, Callable[..., Any]] = {"sum": sum, "len": len}


def test_resolve_prefers_known_names_and_finds_own_ones() -> None:
    assert resolve("x.y", "sum", KNOWN) is sum
    assert resolve("x.y", "json:dumps", KNOWN).__name__ == "dumps"
    assert resolve("x.y", "json:JSONEncoder.encode", KNOWN).__qualname__ == "JSONEncoder.encode"
    with pytest.raises(InputError, match=r"x\.y = 'summ': unknown, did you mean 'sum'\? Allowed: len, sum, or 'module"):
        resolve("x.y", "summ", KNOWN)


def test_call_gives_what_is_asked_for() -> None:
    def rule(a: int, b: int = 2, *, c: int) -> tuple[int, int, int]:
        return a, b, c

    assert call("x.rule", rule, {"a": 1, "d": 4, "b": None}, {"c": 3}) == (1, 2, 3)
    assert call("x.rule", rule, {"a": 1, "b": 5}, {"c": 3, "b": 6}) == (1, 6, 3), "an option wins over a setting"
    with pytest.raises(InputError, match=r"x\.options\.c is not set, but x\.rule = '.*rule' needs it"):
        call("x.rule", rule, {"a": 1}, {})
    with pytest.raises(InputError, match=r"x\.a is not set"):
        call("x.rule", rule, {"a": None}, {"c": 3})
    with pytest.raises(InputError, match=r"x\.options\.d: unknown"):
        call("x.rule", rule, {"a": 1}, {"d": 3})


def test_options_are_checked_by_type() -> None:
    class Own:
        pass

    def rule(size: "int" = 0, ratio: float = 0.0, words: list[str] | None = None, own: Own | None = None) -> float:
        return size + ratio

    assert call("x.rule", rule, {}, {"size": 2, "ratio": 1, "words": ["a"]}) == 3
    for name, value in (("size", 2.5), ("size", True), ("ratio", "1"), ("words", "a"), ("own", 5)):
        with pytest.raises(InputError, match=rf"x\.options\.{name} = .*: must be "):
            call("x.rule", rule, {}, {name: value})


def test_a_rule_may_take_any_option() -> None:
    assert call("x.rule", lambda **options: options, {"a": 1}, {"b": 2}) == {"b": 2}


def test_bind_leaves_later_arguments_to_the_caller() -> None:
    def rule(parameters: list[int], lr: float, momentum: float) -> tuple[list[int], float, float]:
        return parameters, lr, momentum

    bound = bind("local.optimizer", rule, {"momentum": 0.5}, {}, later=("parameters", "lr"))
    assert bound([1], 0.1) == ([1], 0.1, 0.5)


def test_a_partial_and_a_class_are_rules() -> None:
    class Rule:
        def __init__(self, a: int, b: int = 0) -> None:
            self.total = a + b

    assert call("x.rule", Rule, {"a": 1}, {"b": 2}).total == 3
    with pytest.raises(InputError, match=r"x\.options\.b = 'c': must be a whole number"):
        call("x.rule", Rule, {"a": 1}, {"b": "c"})
    assert call("x.rule", partial(Rule, 5), {}, {"b": 2}).total == 7


def test_what_a_rule_raises_is_told_with_its_line() -> None:
    def rule() -> None:
        raise ValueError("two\nlines")

    with pytest.raises(InputError, match=r"calling it failed \(ValueError: two lines, test_plugins\.py line \d+\)"):
        call("x.rule", rule, {}, {})

    def refuses() -> None:
        raise InputError("as it is")

    with pytest.raises(InputError, match=r"^as it is$"):
        call("x.rule", refuses, {}, {})
