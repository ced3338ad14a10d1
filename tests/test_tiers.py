"""`make test` is quick, and touches everything all the same; `make quick` runs what a change can break."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.quick import EVERYTHING, changed, git, places_for, rooms_above
from tests.tiers import ALL, ON_WORKERS, SINGLE, TESTS, as_more, rooms_there, thinned, untouched


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> Sequence[pytest.Item]:
    """All tests, whichever of them are run."""
    items = request.config.stash[ALL]
    if len({item.path for item in items if item.path.is_relative_to(TESTS)}) < len(list(TESTS.rglob("test_*.py"))):
        pytest.skip("looks at all tests, and only some were asked for")
    return items


def test_the_first_tier_touches_every_room_and_every_method(collected: Sequence[pytest.Item]) -> None:
    assert untouched(collected) == []


@pytest.mark.parametrize(
    ("part", "missing"),
    [
        ("tests/engine/", "the room engine"),
        ("[scaffold]", "the method scaffold by serial and cores"),
        ("tests/cli/test_p", "a page in a browser"),
        *((f"::{test}", what) for what, test in SINGLE.items()),
    ],
)
def test_what_the_first_tier_does_not_touch_is_told(collected: Sequence[pytest.Item], part: str, missing: str) -> None:
    assert untouched(item for item in collected if part not in item.nodeid) == [missing]


def test_a_test_for_later_touches_nothing(collected: Sequence[pytest.Item]) -> None:
    later = [item for item in collected if item.get_closest_marker("slow") or item.get_closest_marker("more")]
    assert any(ON_WORKERS in item.nodeid for item in later)
    assert set(untouched(later)) == set(untouched([]))


def test_parameters_are_marked_but_for_the_first_or_the_named() -> None:
    def kept(values: list[object]) -> list[object]:
        return [value for value in values if not hasattr(value, "marks")]

    assert kept(thinned("abc", 1)) == ["a"]
    assert kept(thinned("abc", "ca")) == ["a", "c"]
    assert thinned([(1, 2)], 0) == [pytest.param(1, 2, marks=pytest.mark.more)]


def names(places: set[Path]) -> set[str]:
    return {str(place.relative_to(TESTS.parent)) for place in places}


@pytest.mark.more
def test_a_room_that_changed_runs_its_tests_and_those_of_the_rooms_above() -> None:
    places, why = places_for(["src/atoll/planner/race.py"])
    assert {"tests/planner/test_race.py", "tests/cli/test_plan.py", "src/atoll/planner"} <= names(places)
    assert not {"tests/engine/test_engine.py", "src/atoll/engine"} & names(places)
    assert why.startswith("planner changed; above: __main__, cli; ")
    assert rooms_above({"cli"}) == {"__main__"}
    assert {"engine", "methods", "cli"} < rooms_above({"support"}) <= rooms_there() - {"support"}


def test_what_changed_is_what_main_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed on a branch, changed since, and unknown to git; not what happened on `main` meanwhile."""
    monkeypatch.setattr("tests.quick.ROOT", tmp_path)

    def commit(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(name)
        git("add", ".")
        git("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "more")

    git("init", "--quiet", "--initial-branch", "main")
    commit("old", "edited")
    git("checkout", "--quiet", "-b", "branch")
    commit("committed")
    git("checkout", "--quiet", "main")
    commit("meanwhile")
    git("checkout", "--quiet", "branch")
    assert changed() == ["committed"]
    (tmp_path / "edited").write_text("anew")
    (tmp_path / "unknown").touch()
    assert changed() == ["committed", "edited", "unknown"]


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("tests/planner/test_race.py", "tests/planner/test_race.py"),
        ("tests/fleets.py", "tests/fleet/test_fleet.py"),
        ("docs/settings.md", "tests/cli/test_docs.py"),
        as_more(("src/atoll/settings/sections.py", "tests/experiment/test_file.py")),
    ],
)
def test_what_else_changed_runs_the_tests_that_read_it(file: str, test: str) -> None:
    assert test in names(places_for([file])[0])


def test_what_every_test_reads_runs_all_and_nothing_runs_nothing() -> None:
    assert names(places_for([EVERYTHING[0]])[0]) == {"tests", "src/atoll"}
    assert places_for([]) == (set(), "no room of src/atoll changed; 0 files of tests")
