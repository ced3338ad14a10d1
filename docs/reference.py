"""MkDocs hook: makes the Python reference, a page for each public name and one for each internal module.

Pages may link to a name's place in the code, as in ``api.md#atoll.engine.method.Method``: such links lead to the
page that shows it. In api.md, a table follows ``<!-- objects: run run_all -->``, written by docs/lists.py.
"""

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import atoll

PACKAGE = Path(str(atoll.__file__)).parent
API = Path(__file__).with_name("api.md")
HIDDEN = ("atoll.cli", "atoll.recipes", "atoll.claims")  # the commands have a page of their own, the others no code
_LINK = re.compile(r"\]\((?:(?:\.\./)*api\.md)?#(atoll\.[\w.]+)\)")
_OBJECTS = re.compile(r"<!-- objects: ([\w\s]+?) -->")
_ROOMS = "<!-- rooms -->"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages; MkDocs calls this once per build."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to the page that shows what they name, and list the rooms; MkDocs calls this for every page."""
    markdown = markdown.replace(_ROOMS, _table_of("atoll"))
    up = "../" * page.file.src_uri.count("/")
    return _LINK.sub(lambda match: f"]({up}{page_of(match[1])})", markdown)


def objects_table(names: str) -> str:
    """Return the table of public names, which spaces separate."""
    return _table([(f"atoll.{name}", f"#{_place(name)}", _first(name)) for name in names.split()])


@cache
def pages() -> dict[str, str]:
    """Return all pages, by the path of their Markdown."""
    made = {f"api/{name}.md": _public_page(name) for name in public()}
    return made | {_inner(name): _inner_page(name) for name in modules()}


@cache
def public() -> dict[str, Any]:
    """Return the public objects of `atoll`, by name."""
    return {name: getattr(atoll, name) for name in atoll.__all__ if name != "__version__"}


@cache
def modules() -> dict[str, Path]:
    """Return the files of the package's modules by name, except the commands'; a package's is its ``__init__.py``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if name != "atoll" and not name.startswith(HIDDEN) and not name.endswith("__main__"):
            found[name] = path
    return found


@cache
def shown() -> dict[str, str]:
    """Return the path of the page that shows each public object, by its name in the code."""
    found: dict[str, str] = {}
    for name, value in public().items():
        if inspect.ismodule(value):
            found |= {_code(each): f"api/{name}.md#{_code(each)}" for each in _functions(value).values()}
            found[value.__name__] = f"api/{name}.md"
    return found | {_place(name): f"api/{name}.md" for name in public()}


def page_of(code: str) -> str:
    """Return the path of the page that shows the object with this name in the code, with its anchor.

    Raises:
        KeyError: there is no such name.
    """
    if code in shown():
        return shown()[code]
    module = code if code in modules() else code.rpartition(".")[0]
    if module not in modules():
        raise KeyError(code)
    return _inner(module) if module == code else f"{_inner(module)}#{code}"


def _place(name: str) -> str:
    """Return a public object's name in the code."""
    value = public()[name]
    return value.__name__ if inspect.ismodule(value) else _code(value)


def _code(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _functions(module: Any) -> dict[str, Any]:
    """Return the functions of a public module: its own or, if it only collects others', all."""
    found = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__.startswith("atoll.") and not name.startswith("_")
    }
    own = {name: value for name, value in found.items() if value.__module__ == module.__name__}
    given = {id(value) for name, value in public().items() if inspect.isfunction(value)}
    return {name: value for name, value in (own or found).items() if id(value) not in given}


@cache
def topics() -> dict[str, list[str]]:
    """Return the headings of api.md with the public names below each."""
    found = re.findall(r"^## (.+)\n\n" + _OBJECTS.pattern, API.read_text(encoding="utf-8"), re.MULTILINE)
    return {heading: names.split() for heading, names in found}


def _public_page(name: str) -> str:
    value = public()[name]
    topic, names = next(found for found in topics().items() if name in found[1])
    above = f"[Python](../api.md) / [{topic}](../api.md#{topic.lower().replace(' ', '-')})"
    parts = [above, _block(_place(name), 1, f"atoll.{name}", members=not inspect.ismodule(value))]
    if inspect.ismodule(value):
        parts += [_block(_code(each), 2, f"atoll.{name}.{own}") for own, each in _functions(value).items()]
    others = ", ".join(f"[`{other}`]({other}.md)" for other in names if other != name)
    return _page(name, [*parts, f"Beside it: {others}."])


def _inner_page(name: str) -> str:
    """Return the page of a module: what it defines, with links to the public objects."""
    elsewhere = [each for each in shown() if each.rpartition(".")[0] == name]
    members = [each for each in _defined(modules()[name]) if f"{name}.{each}" not in elsewhere]
    *above, _ = name.split(".")[1:]
    path = [f"[{part}](#{'.'.join(['atoll', *above[: i + 1]])}) /" for i, part in enumerate(above)]
    parts = [" ".join(["[Inside](../" + "../" * len(above) + "internals.md) /", *path])]
    if name in shown():  # which shows what the module says of itself
        parts.append(f"# {name}")
        elsewhere.append(name)
        parts += [_block(f"{name}.{member}", 2, member) for member in members]
    else:
        parts.append(_block(name, 1, name, members=members or False))
    if elsewhere:
        parts.append("Public: " + ", ".join(f"[`{each.rpartition('.')[2]}`](#{each})" for each in sorted(elsewhere)))
    return _page(name, [*parts, _table_of(name)])


def _inner(module: str) -> str:
    """Return the path of a module's page."""
    path = "/".join(module.split(".")[1:])
    return f"internals/{path}/index.md" if modules()[module].name == "__init__.py" else f"internals/{path}.md"


def _defined(file: Path) -> list[str]:
    """Return the names that a module defines at its top, in order, without private ones."""
    names = []
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _table_of(package: str) -> str:
    """Return a table of the modules in a package; empty for a module."""
    inside = {name: file for name, file in modules().items() if name.rpartition(".")[0] == package}
    docs = {name: ast.get_docstring(ast.parse(file.read_bytes())) for name, file in inside.items()}
    return _table([(name.rpartition(".")[2], f"#{name}", _summary(doc)) for name, doc in docs.items()])


def _first(name: str) -> str:
    return _summary(public()[name].__doc__)


def _summary(doc: str | None) -> str:
    """Return a docstring's first sentence, or line."""
    line = " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
    return line.replace("|", r"\|")


def _table(rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    return "\n".join(
        ["| Name | What it is |", "|---|---|", *(f"| [`{name}`]({link}) | {told} |" for name, link, told in rows)]
    )


def _block(code: str, level: int, heading: str, members: Any = True) -> str:
    options = {"heading_level": level, "heading": heading, "toc_label": heading.rpartition(".")[2]}
    if members is not True:
        options["members"] = members
    return "\n".join(
        [f"::: {code}", "    options:", *(f"      {key}: {_yaml(value)}" for key, value in options.items())]
    )


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _page(title: str, parts: list[str]) -> str:
    return "\n\n".join([f"---\ntitle: {title}\n---", *filter(None, parts)]) + "\n"
