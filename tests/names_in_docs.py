"""What the names in the pages of documentation stand for: the files, classes and settings of the project.

A name is what stands between single backticks, without spaces, with a point or with a file's `.py`:

- `engine/engine.py:train`: a file of the package or project, and what it defines;
- `atoll.x.y`: what an import finds;
- `run.executor`, with a section of the settings first: a setting, of any function that settings can name;
- `schedules.clock.Clock`, with a room first: a module, and what it defines;
- `Method.stages`, with a capital first: a class of the package, and what it has, or inherits from the package;
- `summary.json`: a file's name that also stands somewhere in the project's code, or in a command on the pages;
  one with a path or with capitals (`NAME.csv`) is an example;
- any other dotted name: one of a library in LIBRARIES, or of a variable in VARIABLES.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

from atoll.settings.validation import full_model
from tests.cli.pages import ROOT
from tests.hooks import hook_of

house = hook_of("house")

OTHER_PROJECTS = {"flwr", "doc", "fluke_quick_api.ipynb"}  # their files, by the first part of the path
READERS_FILES = {"test.parquet", "train-0.parquet"}  # examples of names that a reader may give
LIBRARIES = {"peft", "torch", "nn", "networkx", "numpy", "datasets", "DatasetDict", "partition", "fed_avg"}
VARIABLES = {"task": "ClientTask", "state": "State"}
_FILES = r"\.(json|jsonl|csv|toml|npz|npy|parquet|html|md|png|svg|pdf|pem|key|lock|cff|ipynb)$"


def named_in(text: str) -> list[str]:
    """Return the names on a page, outside its blocks of code."""
    prose = re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)
    return list(dict.fromkeys(span for span in spans if re.fullmatch(r"[\w./:-]+(\(\))?", span)))


def stands_for_something(name: str) -> bool:
    """Return whether a name on a page can be resolved; True for what is no name by the rules above."""
    name = name.removesuffix("()")
    file, _, inside = name.partition(":")
    if file.endswith(".py") and "/" in file:
        return file.partition("/")[0] in OTHER_PROJECTS or is_there(file, inside)
    if re.search(_FILES, name):
        is_free = "/" in name or re.search(r"[A-Z]{3}|^\.", name) is not None
        return is_free or name in OTHER_PROJECTS | READERS_FILES or name in everything_in_code()
    if not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", name) or name.endswith(".py"):
        return True
    first, *rest = name.split(".")
    if first == "atoll":
        return can_import(name)
    if first in full_model().model_fields or first in rooms():
        return is_setting(first, rest) or can_import(f"atoll.{name}")
    if first in VARIABLES or (first[0].isupper() and first not in LIBRARIES):
        return len(rest) == 1 and rest[0] in members(VARIABLES.get(first, first))
    return first in LIBRARIES or re.fullmatch(r"python3\.\d+t?", name) is not None


@cache
def rooms() -> set[str]:
    """Return the folders and files at the top of the package."""
    return {house.room_of(module) for module in house.modules()}


def is_setting(section: str, keys: list[str]) -> bool:
    """Return whether a section has this setting, for any function that settings can name."""
    field = full_model().model_fields.get(section)
    return len(keys) == 1 and keys[0] in getattr(field and field.annotation, "model_fields", {})


def can_import(name: str) -> bool:
    """Return whether an import finds a dotted name; a class has also what it only declares."""
    above, _, last = name.rpartition(".")
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return above.rpartition(".")[2][:1].isupper() and last in members(above.rpartition(".")[2])
    return True


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Return the package's classes by name."""
    trees = [house.syntax_of(path) for path in house.modules().values()]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def members(name: str) -> set[str]:
    """Return what a class of the package has, also by inheritance within the package."""
    if name not in classes():
        return set()
    node = classes()[name]
    own = {each for statement in node.body for each in names_of(statement)}
    bases = re.findall(r"\w+", " ".join(map(ast.unparse, node.bases)))
    return own.union(attributes_of(node), *map(members, bases))


def attributes_of(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class sets on `self`."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            yield each.attr


def is_there(file: str, name: str) -> bool:
    """Return whether a file of the package, or of the project, defines a name such as ``Class.method``."""
    path = next((place for place in (house.PACKAGE / file, ROOT / file) if place.is_file()), None)
    body: list[ast.stmt] = house.syntax_of(path).body if path else []
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


@cache
def everything_in_code() -> str:
    """Return all of the project's code and settings, the names of its files, and the code shown on the pages."""
    folders = ("src", "tests", "docs", "examples", "benchmarks")
    code = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.name != "test_house.py"]
    texts = [path.read_text() for path in code if path.suffix in (".py", ".toml", ".js") or path.name == "Makefile"]
    blocks = [
        "".join(re.findall(r"^( *```.*?^ *```)", path.read_text(), flags=re.MULTILINE | re.DOTALL))
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    ]
    here = [path.name for path in [*code, *ROOT.iterdir()]]
    return "\n".join([*texts, *blocks, *here])


def pages() -> list[Path]:
    """Return the pages of documentation."""
    return sorted((ROOT / "docs").rglob("*.md"))
