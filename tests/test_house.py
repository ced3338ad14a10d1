"""The rooms of src/atoll stand one above the other, and no room but `methods` knows a method by its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

from atoll.methods.named_methods import METHODS
from atoll.settings.validation import Settings
from tests.cli.pages import ROOT
from tests.hooks import hook_of

house = hook_of("house")

# From the ground up: a room imports only from rooms before it. `atoll` is the package's own __init__.py.
# fmt: off
ROOMS = [
    "support", "network", "schedules", "data", "clustering", "local", "aggregation", "evaluation", "engine", "codecs",
    "faults", "privacy", "secure", "executors", "methods", "settings", "experiment", "fleet", "bench", "runs", "report",
    "trackers", "api", "atoll", "sweep", "planner", "reproduce", "cli", "__main__",
]
# fmt: on


def test_every_room_has_its_place_in_the_order() -> None:
    assert sorted(house.house_of(house.imports())) == sorted(ROOMS)


def test_no_import_goes_up() -> None:
    """Wherever it stands: inside a function and for type checkers only, too."""
    rank = {room: place for place, room in enumerate(ROOMS)}
    rank |= dict.fromkeys(house.DATA, -1)
    up = [(i.by, i.of) for i in house.imports() if rank[house.room_of(i.of)] > rank[house.room_of(i.by)]]
    assert up == []


def test_no_files_of_a_room_import_each_other_in_a_circle() -> None:
    within = [i for i in house.imports() if i.at_once and house.room_of(i.by) == house.room_of(i.of)]
    files = nx.DiGraph([(i.by, i.of) for i in within])
    assert [sorted(circle) for circle in nx.strongly_connected_components(files) if len(circle) > 1] == []


@pytest.mark.parametrize("room", house.DATA)
def test_folders_of_data_hold_no_code(room: str) -> None:
    (init,) = (house.PACKAGE / room).rglob("*.py")
    assert len(ast.parse(init.read_text()).body) == 1, "only the docstring"


def test_every_room_says_in_a_sentence_what_is_in_it() -> None:
    assert [room for room in ROOMS if not house.sentence_of(room).endswith(".")] == []


def test_no_method_is_known_by_name_outside_its_room() -> None:
    """A method says what it needs; code that asks which one it is must be changed for every method added."""
    outside = [path for path in house.PACKAGE.rglob("*.py") if "methods" not in path.parts]
    told = [f"{path.relative_to(house.PACKAGE)}:{line}" for path in outside for line in branches_on_names(path)]
    assert told == []


def branches_on_names(path: Path) -> Iterator[int]:
    """Yield the lines on which a choice is made by a method's name."""
    tree = ast.parse(path.read_bytes())
    types = {id(inner) for node in ast.walk(tree) if is_literal_type(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) not in types and any(map(names_methods, looked_at(node))):
            assert hasattr(node, "lineno")
            yield node.lineno


def looked_at(node: ast.AST) -> list[ast.expr]:
    """Return what a node compares, or looks up by."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.MatchValue):
        return [node.value]
    if isinstance(node, ast.Subscript):
        return [node.slice]
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if key]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.args[:1] if node.func.attr in ("get", "startswith", "__eq__") else []
    return [node] if isinstance(node, ast.Set | ast.Tuple | ast.List) else []


def names_methods(node: ast.expr) -> bool:
    """Return whether this is a method's name, or a collection of nothing else."""
    if isinstance(node, ast.Constant):
        return node.value in METHODS and node.value not in Settings.model_fields  # [local] is also a section
    inside = node.elts if isinstance(node, ast.Set | ast.Tuple | ast.List) else []
    return len(inside) > 0 and all(map(names_methods, inside))


def is_literal_type(node: ast.AST) -> bool:
    """Return whether this is `Literal[...]`, which declares a setting's choices."""
    return isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")


def test_the_page_on_the_house_names_only_what_is_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", text))
    missing = [f"{file}:{name}" for file, name in named if not is_there(file, name)]
    assert missing == []
    assert len(named) > 50


def is_there(file: str, name: str) -> bool:
    """Return whether a file of the package, or of the project, defines a name such as ``Class.method``."""
    path = next((place for place in (house.PACKAGE / file, ROOT / file) if place.is_file()), None)
    body: list[ast.stmt] = ast.parse(path.read_bytes()).body if path else []
    for part in filter(None, name.split(".")):
        found = next((node for node in body if part in names_of(node)), None)
        if found is None:
            return False
        body = getattr(found, "body", [])
    return path is not None


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    return [str(getattr(node, "name", ""))]


@pytest.mark.parametrize(
    "line",
    [
        "method.name == 'fedbcd'",
        "'ifca' != wanted.name",
        "name in ('centralized', 'fedbcd')",
        "name not in {'cfl-mgd'}",
        "told = {'centralized': 1}",
        "told[settings.name, 'x'] or told['fedavg']",
        "told.get('hierarchical')",
        "PARTS = ['fedavg', 'ifca']",
        "match name:\n case 'fedcluster': pass",
    ],
)
def test_a_branch_on_a_name_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(line)
    assert list(branches_on_names(tmp_path / "code.py"))


def test_a_paper_a_default_and_a_docstring_may_name_a_method(tmp_path: Path) -> None:
    lines = ["'fedavg'", "('fedcluster', 'feduc')", "name: Literal['ifca', 'fedavg'] = 'ifca'", "{'name': 'fedavg'}"]
    (tmp_path / "code.py").write_text("\n".join(lines))
    assert list(branches_on_names(tmp_path / "code.py")) == []
