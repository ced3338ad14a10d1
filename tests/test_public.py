"""The names in `atoll`: the same for Python, for type checkers and for `dir`."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import atoll
from tests.cli.pages import ROOT
from tests.hooks import hook_of


def names_for_type_checkers() -> dict[str, tuple[str, str]]:
    """Return (module, name in it) by the name that `atoll` gives it, as the stub has them."""
    tree = ast.parse(Path(str(atoll.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    told = {alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}
    again = [node for node in tree.body if isinstance(node, ast.Assign)]
    renamed = {ast.unparse(node.targets[0]): told.pop(ast.unparse(node.value)) for node in again}
    return told | renamed


def test_type_checkers_see_what_python_does() -> None:
    told = names_for_type_checkers()
    assert sorted([*told, "__version__"]) == sorted(atoll.__all__)
    for name, (module, inner) in told.items():
        parent = importlib.import_module(module)
        assert getattr(atoll, name) is getattr(parent, inner)


def test_all_is_sorted_unique_and_in_dir() -> None:
    assert len(set(atoll.__all__)) == len(atoll.__all__)
    assert set(atoll.__all__) <= set(dir(atoll))


def test_no_name_hides_a_room() -> None:
    rooms = {module.name for module in pkgutil.iter_modules(atoll.__path__)}
    assert rooms & set(atoll.__all__) == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'fedsomething'"):
        atoll.fedsomething  # type: ignore[attr-defined]  # noqa: B018


def test_every_public_function_and_class_says_what_it_is() -> None:
    assert [name for name in atoll.__all__ if name != "__version__" and not getattr(atoll, name).__doc__] == []


def test_what_the_issue_missed_is_there() -> None:
    wanted = {"hierarchical", "median", "trimmed_mean", "norm_clipping", "krum", "clusterings", "attacks", "Network"}
    wanted |= {"read_run", "rounds_to_target", "plot_curves", "write_report", "Experiment", "Settings", "Result", "run"}
    assert wanted <= set(atoll.__all__)


def test_every_public_name_is_in_one_table_of_the_reference_and_has_a_page() -> None:
    reference = hook_of("reference")
    tables = re.findall(r"<!-- objects: ([\w\s]+?) -->", (ROOT / "docs/api.md").read_text())
    told = [name for table in tables for name in table.split()]
    assert sorted([*told, "__version__"]) == sorted(atoll.__all__)
    assert {f"api/{name}.md" for name in told} <= set(reference.pages())


def test_every_module_has_a_page_and_every_definition_one_place() -> None:
    reference = hook_of("reference")
    package = Path(str(atoll.__file__)).parent
    parts = [path.relative_to(package.parent).with_suffix("").parts for path in package.rglob("*.py")]
    modules = {".".join(m) for m in parts if not m[-1].startswith("__") and m[1] != "cli"}
    inner = {page.removeprefix("internals/").removesuffix(".md").replace("/", ".") for page in reference.pages()}
    assert {f"atoll.{name}" for name in inner} >= modules
    shown = re.findall(r"^::: (\S+)", "\n".join(reference.pages().values()), re.MULTILINE)
    assert len(set(shown)) == len(shown)
    inside = reference.pages()["internals/engine/engine.md"]
    assert "'merge'" in inside
    assert "'Method'" not in inside


def test_links_to_what_the_code_defines_lead_to_its_page() -> None:
    page_of = hook_of("reference").page_of
    assert page_of("atoll.engine.method.Method") == "api/Method.md"
    assert (
        page_of("atoll.clustering.fedcluster_clusterings.random")
        == "api/clusterings.md#atoll.clustering.fedcluster_clusterings.random"
    )
    assert page_of("atoll.engine.engine.merge") == "internals/engine/engine.md#atoll.engine.engine.merge"
    assert page_of("atoll.engine") == "internals/engine/index.md"
    with pytest.raises(KeyError):
        page_of("atoll.nothing.there")
