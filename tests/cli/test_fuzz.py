"""Whatever an experiment file says, there is no traceback: it runs, or one sentence tells what is wrong and where."""

import contextlib
import io
import string
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.cli import main
from atoll.settings.validation import Settings
from tests.experiment.test_file import another_value, leaves
from tests.tiers import part_of

SMALL = {
    "rounds": 1,
    "data": {"clients": 6, "samples": 8},
    "local": {"steps": 1, "batch_size": 4},
    "clustering": {"clusters": 2},
    "run": {"evaluate_samples": 20, "executor": "serial"},
}
NAMES = sorted(leaves())
# Values of this size would be carried out, at length: more clients, rounds or steps are no fault.
NUMBERS = st.one_of(st.integers(-2, 9), st.sampled_from([0.0, -0.0, 0.1, 0.5, 1.0, 1.5, 1e-300, 1e300, 2.0**63]))
HUGE = st.sampled_from([10**30, -(10**30), 2**63, -(2**63), float("nan"), float("inf"), float("-inf"), 5e-324])
WORDS = st.sampled_from(
    [
        *("", "full", "fedavg", "ifca", "cfl-mgd", "bcd", "hierarchical", "centralized", "decasy", "decsyn", "feduc"),
        *("dataw", "comaw", "timezone", "availability", "major-class", "one-label", "shards", "dirichlet", "rotated"),
        *(
            "regression",
            "planted",
            "linear",
            "lr",
            "adam",
            "momentum",
            "estimate",
            "labels",
            "gradients",
            "cuda",
            "time",
        ),
        *("os.path:join", "no.such:thing", "a:b:c", ":", "..", "/", "transfer", "edges", "star", "ring"),
    ]
)
TEXT = st.one_of(WORDS, st.text(max_size=8))
ATOMS = st.one_of(NUMBERS, TEXT, st.booleans())
VALUES = st.recursive(
    st.one_of(ATOMS, HUGE),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)
KEYS = st.one_of(st.sampled_from(NAMES), st.sampled_from(sorted(Settings.model_fields)), st.text(max_size=12))
CHANGES = st.lists(st.tuples(KEYS, VALUES), max_size=4)

Fuzz = Callable[[bytes], None]


def changed(changes: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the small experiment with these values put where the keys say, sections overwritten or not."""
    table: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}
    for key, value in changes:
        section, _, name = key.partition(".")
        inside = table.setdefault(section, {})
        if name and isinstance(inside, dict):
            inside[name] = value
        else:
            table[section] = value
    return table


@pytest.fixture
def fuzz(folder: Path) -> Fuzz:
    """Run a file's content; it must be run, or refused in one sentence."""

    def call(content: bytes) -> None:
        (folder / "exp.toml").write_bytes(content)
        told, shown = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(shown):
            code = main(["run", "exp.toml", "--out", "out", "--overwrite", "--json"])
        lines = [line for line in told.getvalue().splitlines() if not line.startswith(("warning: ", "run.executor"))]
        if code == 0:
            assert lines == []
            return
        assert code in (1, 2), told.getvalue()
        assert shown.getvalue() == ""
        assert len(lines) == 1, told.getvalue()
        assert lines[0].startswith("error: ")
        if code == 2 and "is not valid TOML" not in lines[0]:
            names = {*Settings.model_fields, *NAMES, *section_names(content), "runs", "panels", "scales"}
            assert any(name in lines[0] for name in names if name), lines[0]

    return call


def section_names(content: bytes) -> set[str]:
    """Return the keys at the file's top."""
    return set(tomllib.loads(content.decode()))


def check(fuzz: Fuzz, table: dict[str, Any]) -> None:
    fuzz(tomli_w.dumps(table).encode())


COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@settings(max_examples=part_of(80), **COMMON)  # type: ignore[arg-type]
@given(changes=CHANGES)
def test_random_settings(fuzz: Fuzz, changes: list[tuple[str, Any]]) -> None:
    check(fuzz, changed(changes))


@settings(max_examples=part_of(80), **COMMON)  # type: ignore[arg-type]
@given(keys=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), data=st.data())
def test_settings_of_the_right_type(fuzz: Fuzz, keys: list[str], data: st.DataObject) -> None:
    """Values that each setting alone allows, or the numbers just beside them; together they may make no sense."""
    changes = []
    for key in keys:
        _, valid = another_value(key, leaves()[key])
        kind = type(valid)
        others = {int: st.integers(-1, 8), float: NUMBERS.map(float), str: TEXT, bool: st.booleans()}
        changes.append((key, data.draw(st.one_of(st.just(valid), others.get(kind, VALUES)))))
    check(fuzz, changed(changes))


@settings(max_examples=part_of(40), **COMMON)  # type: ignore[arg-type]
@given(content=st.one_of(st.binary(max_size=40), st.text(string.printable, max_size=60).map(str.encode)))
def test_content_that_is_hardly_toml(fuzz: Fuzz, content: bytes) -> None:
    fuzz(tomli_w.dumps(SMALL).encode().replace(b"[data]", content + b"\n[data]"))


@pytest.mark.slow
@settings(max_examples=1500, **COMMON)  # type: ignore[arg-type]
@given(changes=CHANGES)
def test_many_random_settings(fuzz: Fuzz, changes: list[tuple[str, Any]]) -> None:
    check(fuzz, changed(changes))


@pytest.mark.slow
@settings(max_examples=1000, **COMMON)  # type: ignore[arg-type]
@given(name=st.sampled_from(NAMES), value=VALUES, method=WORDS)
def test_each_setting_beside_each_method(fuzz: Fuzz, name: str, value: Any, method: str) -> None:
    check(fuzz, changed([("method.name", method), (name, value)]))
