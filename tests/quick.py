"""`make quick`: run the tests of the rooms that changed, and of the rooms above them, by their imports.

What changed is what differs from where this branch left `main`, and files that git does not know yet.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import networkx as nx

from tests.cli.pages import ROOT
from tests.hooks import hook_of
from tests.tiers import TESTS, imported, rooms_of, rooms_there

EVERYTHING = ("pyproject.toml", "tests/conftest.py")


def git(*words: str) -> list[str]:
    """Return the lines that git prints; none if it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def changed() -> list[str]:
    """Return the files that changed, relative to the project."""
    (base, *_) = [*git("merge-base", "HEAD", "main"), *git("merge-base", "HEAD", "origin/main"), "HEAD"]
    return sorted({*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")})


def rooms_that_changed(files: Iterable[str]) -> set[str]:
    """Return the rooms of `src/atoll` that these files are in."""
    inside = [Path(file).relative_to("src/atoll") for file in files if file.startswith("src/atoll/")]
    return {path.parts[0] if len(path.parts) > 1 else path.stem.replace("__init__", "atoll") for path in inside}


def rooms_above(rooms: set[str]) -> set[str]:
    """Return the rooms that import one of these, directly or not, and are not among them."""
    if not rooms:
        return set()
    house = hook_of("house")
    arrows = nx.DiGraph([(house.room_of(each.by), house.room_of(each.of)) for each in house.imports()])
    return {above for room in rooms if room in arrows for above in nx.ancestors(arrows, room)} - rooms


def files_for(files: Iterable[str]) -> set[Path]:
    """Return the test files that changed, or that import something of `tests` that did, or that read pages that did."""
    tests, found = sorted(TESTS.rglob("*.py")), {ROOT / file for file in files if file.startswith("tests/")}
    if any(file.startswith("docs/") or file.endswith(".md") for file in files):
        found.add(TESTS / "cli/pages.py")  # by which tests read them
    while more := {path for path in tests if path not in found and imported(path) & {module_of(one) for one in found}}:
        found |= more
    return {path for path in found if path.name.startswith("test_") and path.is_file()}


def module_of(path: Path) -> str:
    """Return the name that a file below `tests` is imported by."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def places_for(files: list[str]) -> tuple[set[Path], str]:
    """Return the files and folders of tests to run, and why in a line."""
    if whole := [file for file in EVERYTHING if file in files]:
        return {TESTS, ROOT / "src/atoll"}, f"all tests, since {whole[0]} changed"
    rooms = rooms_that_changed(files)
    above = rooms_above(rooms)
    tests = {path for path in TESTS.rglob("test_*.py") if rooms_of(path) & (rooms | above)} | files_for(files)
    doctests = {path for path in (ROOT / "src/atoll").iterdir() if path.stem in (rooms | above) & rooms_there()}
    why = f"{said(rooms)} changed; above: {said(above)}" if rooms else "no room of src/atoll changed"
    return tests | doctests, f"{why}; {len(tests)} files of tests"


def said(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def main(options: list[str]) -> int:
    """Say what is run and why, and run it; return the exit code."""
    places, why = places_for(changed())
    print(why, flush=True)
    if not places:
        return 0
    given = [str(place.relative_to(ROOT)) for place in sorted(places)]
    return subprocess.run([sys.executable, "-m", "pytest", *options, *given], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
