"""The tiers of tests: marking parameters for `make test-more`, and what `make test` must touch all the same."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from atoll.methods.named_methods import METHODS
from tests.cli.pages import ROOT
from tests.hooks import hook_of

TESTS = ROOT / "tests"
LATER = ("more", "slow")  # markers of the tests that `make test` leaves out
ALL = pytest.StashKey[Sequence[pytest.Item]]()  # every test that was collected, whatever its markers

IMPORT = re.compile(r"^ *(?:from|import) (\w[\w.]*)", re.MULTILINE)
ON_WORKERS = "test_workers_killed_once_give_the_bits_of_serial"
SINGLE = {
    "a fleet of real processes": "test_two_nodes_end_with_the_bits_of_the_simulation",
    "a killed run that is resumed": "test_a_stopped_run_goes_on_to_the_same_bits",
}
FIXTURES = {"a page in a browser": "browser", "the room __main__": "process"}  # that nobody imports, but runs


def thinned(values: Iterable[Any], first: int | Collection[Any] = 2) -> list[Any]:
    """Mark a test's parameters as `more`, but for so many at the beginning, or for those that are named."""
    return [
        value
        if hasattr(value, "marks") or (i < first if isinstance(first, int) else value in first)
        else as_more(value)
        for i, value in enumerate(values)
    ]


def part_of(examples: int) -> int:
    """Return how many examples a law draws that has a number of its own: a quarter of them in `make test`."""
    return max(4, examples * settings().max_examples // 100)


def as_more(value: Any) -> Any:
    """Mark one parameter, or a tuple of several, as `more`."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.more)


def untouched(items: Iterable[pytest.Item]) -> list[str]:
    """Return what `make test` has to touch and does not, given all tests that were collected."""
    first = [item for item in items if not any(item.get_closest_marker(name) for name in LATER)]
    names = {getattr(item, "originalname", item.name) for item in first}
    fixtures = {name for item in first for name in getattr(item, "fixturenames", ())}
    methods = {value for item in first if item.name.startswith(ON_WORKERS) for value in parameters_of(item)}
    rooms = {room for path in {item.path for item in first} for room in rooms_of(path)}
    return [
        *(f"the room {room}" for room in sorted(rooms_there() - rooms - {"__main__"})),
        *(f"the method {name} by serial and cores" for name in METHODS if name not in methods),
        *(what for what, fixture in FIXTURES.items() if fixture not in fixtures),
        *(what for what, test in SINGLE.items() if test not in names),
    ]


def parameters_of(item: pytest.Item) -> Collection[object]:
    """Return a test's parameters."""
    given: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return given.values()


@cache
def rooms_there() -> set[str]:
    """Return the rooms of `src/atoll`."""
    house = hook_of("house")
    return {house.room_of(module) for module in house.modules()} - set(house.DATA)


def rooms_of(path: Path) -> set[str]:
    """Return the rooms that a file tests: its folder's, and those without a folder of tests that it imports."""
    if path.is_relative_to(TESTS):
        folder = path.relative_to(TESTS).parts[0]
        return {room for room in imported_rooms(path) if not (TESTS / room).is_dir()} | ({folder} & rooms_there())
    room = path.relative_to(ROOT / "src/atoll").with_suffix("").parts[0]
    return set() if (TESTS / room).is_dir() else {room}


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms that a file imports from."""
    return {hook_of("house").room_of(name) for name in imported(path) if name.partition(".")[0] == "atoll"}


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, wherever in it."""
    return frozenset(IMPORT.findall(path.read_text()))
