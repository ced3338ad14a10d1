"""The rooms of src/atoll stand one above the other, and no room but `methods` knows a method by its name."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from atoll.methods.named_methods import METHODS
from atoll.settings.validation import Settings
from tests.hooks import hook_of
from tests.names_in_docs import named_in, pages, stands_for_something

house = hook_of("house")

SRC_LINES = 59_520
LARGE_FILES = 13  # above 250 lines
LONG_FUNCTION = 17  # lines without the docstring; nine of ten functions have no more
COMPLEXITY = 15
PARTS_METHODS = 15  # of `Experiment` and of each of its parts, properties included

# From the ground up: a room imports only from rooms before it. `atoll` is the package's own __init__.py.
# fmt: off
ROOMS = [
    "support", "network", "schedules", "data", "clustering", "local", "aggregation", "evaluation", "engine", "codecs",
    "faults", "privacy", "secure", "executors", "methods", "settings", "experiment", "fleet", "runs", "report",
    "trackers", "api", "atoll", "sweep", "planner", "reproduce", "benchmark",
    "cli", "__main__",
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


def test_no_files_import_each_other_in_a_circle() -> None:
    """Late imports count: those inside functions and for type checkers only."""
    assert circles((i.by, i.of) for i in house.imports()) == []


def test_the_files_and_folders_of_a_folder_import_each_other_in_no_circle() -> None:
    files = {module: path.relative_to(house.PACKAGE).parts for module, path in house.modules().items()}
    pairs = [(files[i.by], files[i.of]) for i in house.imports()]
    folders = {path[:depth] for path in files.values() for depth in range(1, len(path))}
    found = []
    for folder in sorted(folders):
        depth = len(folder)
        within = [(by[depth], of[depth]) for by, of in pairs if by[:depth] == of[:depth] == folder]
        found += [("/".join(folder), circle) for circle in circles((by, of) for by, of in within if by != of)]
    assert found == []


def circles(pairs: Iterator[tuple[str, str]]) -> list[list[str]]:
    """Return the sets of names that import each other in a circle."""
    graph = nx.DiGraph(pairs)
    return [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


def test_flower_is_imported_in_its_adapter_alone() -> None:
    """What a new version of Flower moves is then looked for in one folder, by `make flower`."""
    importing = {path for path, tree in trees().items() if "flwr" in set(top_imports(tree))}
    assert {path.parent.as_posix() for path in importing} == {"fleet/flower"}
    assert not [path for path, tree in trees().items() if "grpc" in set(top_imports(tree))], "Flower leaves gRPC"


def top_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that a file imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


@pytest.mark.parametrize("room", house.DATA)
def test_folders_of_data_hold_no_code(room: str) -> None:
    (init,) = (house.PACKAGE / room).rglob("*.py")
    assert len(ast.parse(init.read_text()).body) == 1, "only the docstring"


def test_every_room_says_in_a_sentence_what_is_in_it() -> None:
    assert [room for room in ROOMS if not house.sentence_of(room).endswith(".")] == []


def test_every_folder_says_in_a_sentence_what_is_in_it() -> None:
    texts = {path: ast.get_docstring(tree) or "" for path, tree in trees().items() if path.name == "__init__.py"}
    assert [str(path) for path, text in texts.items() if not text.partition("\n")[0].endswith(".")] == []


def test_no_two_public_classes_share_a_name() -> None:
    classes = [node for tree in trees().values() for node in tree.body if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in classes if not node.name.startswith("_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_files_share_a_name() -> None:
    names = Counter(path.stem for path in trees() if path.stem not in ("__init__", "__main__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_part_of_an_experiment_has_many_methods() -> None:
    bodies = {
        node.name: node.body
        for path, tree in trees().items()
        if path.parts[0] == "experiment"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    methods = {name: sum(isinstance(each, ast.FunctionDef) for each in body) for name, body in bodies.items()}
    assert "Experiment" in methods
    assert {name: count for name, count in methods.items() if count > PARTS_METHODS} == {}


def test_only_the_engine_asks_of_which_class_a_trainer_is() -> None:
    asked = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        if path.parts[0] != "engine"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and re.search(r"\b(Trainer|Chain)\b", ast.unparse(node.args[1]))
    ]
    assert asked == []


def test_sizes() -> None:
    lines = {path: len((house.PACKAGE / path).read_bytes().splitlines()) for path in trees()}
    large = [f"{path}: {count}" for path, count in lines.items() if count > 250]
    assert sum(lines.values()) <= SRC_LINES
    assert len(large) <= LARGE_FILES, large
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    lengths = sorted(length_of(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    assert lengths[len(lengths) * 9 // 10] <= LONG_FUNCTION


def length_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return a function's lines without its docstring."""
    first = node.body[0]
    described = ast.get_docstring(node) is not None
    assert node.end_lineno
    assert first.end_lineno
    return node.end_lineno - node.lineno + 1 - described * (first.end_lineno - first.lineno + 1)


def test_no_function_is_complex() -> None:
    limit = f"lint.mccabe.max-complexity={COMPLEXITY}"
    words = [sys.executable, "-m", "ruff", "check", "--select", "C901", "--config", limit, "--output-format", "concise"]
    ruff = subprocess.run([*words, str(house.PACKAGE)], capture_output=True, text=True)
    assert ruff.returncode == 0, ruff.stdout + ruff.stderr


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the package's files, by their paths inside it."""
    paths = house.modules().values()
    return {path.relative_to(house.PACKAGE): house.syntax_of(path) for path in paths}


def test_no_method_is_known_by_name_outside_its_room() -> None:
    """A method says what it needs; code that asks which one it is must be changed for every method added."""
    outside = [path for path in house.PACKAGE.rglob("*.py") if "methods" not in path.parts]
    told = [f"{path.relative_to(house.PACKAGE)}:{line}" for path in outside for line in branches_on_names(path)]
    assert told == []


def branches_on_names(path: Path) -> Iterator[int]:
    """Yield the lines on which a choice is made by a method's name."""
    tree = house.syntax_of(path)
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


@pytest.mark.parametrize(
    "line",
    [
        "method.name == 'bcd'",
        "'ifca' != wanted.name",
        "name in ('centralized', 'bcd')",
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


def test_every_name_in_the_documentation_stands_for_something() -> None:
    named = {page.name: named_in(page.read_text()) for page in pages()}
    missing = [f"{page}: {name}" for page, names in named.items() for name in names if not stands_for_something(name)]
    assert missing == []
    assert sum(map(len, named.values())) > 500


@pytest.mark.parametrize(
    "name",
    [
        "engine/gone.py", "engine/engine.py:gone", "atoll.gone", "run.gone", "schedules.gone.Clock", "Method.gone",
        "Gone.stages", "gone.json", "gone.function", "experiment/experiment.py:Experiment.gone",
    ],
)  # fmt: skip
def test_a_name_that_stands_for_nothing_is_found(name: str) -> None:
    assert not stands_for_something(name)
