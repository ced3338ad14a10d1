"""`make flower`: one fleet of real processes on each version of Flower that pip offers, each in its own environment.

It needs pip's network and minutes a version, so it is no test of the suite. For every version it prints the names that
Flower no longer has, and whether the fleet's run ends with the bits of simulation. A version above the limit of the
extra `fleet` is reported: raise the limit in `pyproject.toml`, and run it again.
"""

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.cli.pages import ROOT

ROOM = ROOT / "src" / "atoll" / "fleet" / "flower"
FLEET = (
    "fleet up quickstart --only FedCluster --set rounds=2 --nodes 2 --set data.clients=4 --set clustering.clusters=2 "
    "--set method.fraction=1.0 --out run"
)


def allowed() -> SpecifierSet:
    """Return the versions that the extra `fleet` allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return SpecifierSet(next(each for each in extras["fleet"] if each.startswith("flwr")).removeprefix("flwr"))


def offered() -> list[str]:
    """Return the versions that pip offers from the lowest allowed one on, the newest first."""
    words = [sys.executable, "-m", "pip", "index", "versions", "flwr"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lowest = min(Version(each.version) for each in allowed() if each.operator == ">=")
    found = re.search(r"^Available versions: (.*)$", told, re.MULTILINE)
    assert found, told
    return [version for version in found[1].split(", ") if Version(version) >= lowest]


def names() -> Iterator[tuple[str, str]]:
    """Yield each module of Flower that the adapter imports from, and the name that it takes."""
    for path in sorted(ROOM.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr"):
                yield from ((node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names if alias.name.startswith("flwr"))


def missing() -> list[str]:
    """Return the names that the installed Flower does not have."""
    gone = []
    for module, name in sorted(set(names())):
        try:
            found = import_module(module)
        except ImportError:
            gone.append(module)
            continue
        if name and not hasattr(found, name):
            gone.append(f"{module}.{name}")
    return gone


def outcome(version: str, folder: Path) -> str:
    """Return how a fleet does on this version: "equal", or what is wrong."""
    if version not in allowed():
        return f"not tried: pyproject.toml allows flwr {allowed()}"
    python = folder / "bin" / "python"
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        f"flwr=={version}",
        "click<8.5",
        "packaging",
        "torch==2.13.0",
        str(ROOT),
    ]
    steps = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), *install],
        [str(python), "-c", f"import sys; sys.path.append({str(ROOT)!r}); from tests.flower_versions import missing; "
         "gone = missing(); sys.exit(f'Flower no longer has {gone}' if gone else 0)"],
        [str(python), "-m", "atoll", *FLEET.split()],
        [str(python), "-m", "atoll", "verify", "run"],
    ]  # fmt: skip
    for words in steps:
        done = subprocess.run(words, capture_output=True, text=True, cwd=folder.parent)
        if done.returncode:
            return (done.stdout + done.stderr).strip().splitlines()[-1]
    return done.stdout.strip().splitlines()[-1]


def main() -> int:
    """Try each version given, or each that pip offers; return 1 unless all end as simulation does."""
    outcomes = []
    for version in sys.argv[1:] or offered():
        with tempfile.TemporaryDirectory(prefix="atoll-flower-") as place:
            outcomes.append(outcome(version, Path(place) / "environment"))
        print(f"flwr {version}: {outcomes[-1]}", flush=True)
    return int(set(outcomes) != {"equal"})


if __name__ == "__main__":
    sys.exit(main())
