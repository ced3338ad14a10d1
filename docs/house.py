"""MkDocs hook: draws the rooms of `src/atoll` from their imports, and lists them, in the page architecture.md.

A room is a folder of `src/atoll`, or a file at its top. An arrow is an import, anywhere in the file.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx

PACKAGE = Path(__file__).parents[1] / "src/atoll"
DATA = ("claims", "recipes")  # folders of TOML files
WIDTH, BOX, HEIGHT, GAP, FLOOR = 520, 118, 34, 24, 72  # a floor's height includes the arrows below it


class Import(NamedTuple):
    """An import between two modules of the package; `at_once` if it happens when the importing module is imported."""

    by: str
    of: str
    at_once: bool


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks by the drawing, the figures and the table; MkDocs calls this for every page."""
    if "<!-- the house" not in markdown:
        return markdown
    house = house_of(imports())
    parts = {"drawing": drawing, "figures": figures, "rooms": rooms_table}
    for name, make in parts.items():
        markdown = markdown.replace(f"<!-- the house: {name} -->", make(house))
    return markdown


@cache
def modules() -> dict[str, Path]:
    """Return the package's files by module name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """Return the room of a module: ``atoll.engine.engine`` stands in ``engine``, the package itself in ``atoll``."""
    return module.split(".")[1] if "." in module else module


@cache
def syntax_of(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_bytes())


@cache
def imports() -> tuple[Import, ...]:
    """Return every import of the package within the package, also by name (`importlib`, tables of lazy imports)."""
    return tuple(
        each
        for module, path in modules().items()
        for file in (path, path.with_suffix(".pyi"))
        if file.is_file()
        for each in _imports_of(module, syntax_of(file))
    )


def _imports_of(module: str, tree: ast.Module) -> Iterator[Import]:
    later = {id(node) for part in ast.walk(tree) if _runs_later(part) for node in ast.walk(part)}
    for node in ast.walk(tree):
        for name in _named(node):
            if name != module:
                yield Import(module, name, at_once=id(node) not in later and not isinstance(node, ast.Constant))


def _runs_later(node: ast.AST) -> bool:
    """Return whether a node's content does not run on import: a function's body, or a block for type checkers."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _named(node: ast.AST) -> list[str]:
    """Return the package's modules that a node names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        inside = [f"{node.module}.{alias.name}" for alias in node.names]
        names = [name if name in modules() else node.module for name in inside]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
        names = [node.value]
    else:
        names = []
    return list(dict.fromkeys(name for name in names if name in modules()))


def house_of(found: Iterable[Import]) -> "nx.DiGraph[str]":
    """Return the graph of rooms, an arrow from each room to each that it imports."""
    house: nx.DiGraph[str] = nx.DiGraph()
    house.add_nodes_from(sorted({room_of(module) for module in modules()} - set(DATA)))
    house.add_edges_from(sorted({(room_of(i.by), room_of(i.of)) for i in found} - {(n, n) for n in house}))
    house.remove_nodes_from(DATA)
    return house


def floors_of(house: "nx.DiGraph[str]") -> list[list[str]]:
    """Return the rooms by floor, ground floor first: a room stands one floor above the highest that it imports.

    Raises:
        networkx.NetworkXUnfeasible: rooms import each other in a circle.
    """
    floor: dict[str, int] = {}
    for room in reversed(list(nx.topological_sort(house))):
        floor[room] = 1 + max((floor[below] for below in house[room]), default=-1)
    return [[room for room in sorted(floor) if floor[room] == level] for level in range(max(floor.values()) + 1)]


def sentence_of(room: str) -> str:
    """Return the first line of a room's docstring."""
    path = modules().get(f"atoll.{room}", modules()["atoll"])
    return (ast.get_docstring(syntax_of(path)) or "").partition("\n")[0]


def figures(house: "nx.DiGraph[str]") -> str:
    """Return the sentence with the counts."""
    floors, arrows = len(floors_of(house)), house.number_of_edges()
    shown = nx.transitive_reduction(house).number_of_edges()
    upward = 0  # else there were no floors
    return (
        f"{len(house)} rooms on {floors} floors, {arrows} arrows, {upward} of them upward. "
        f"The drawing shows the {shown} that no longer path implies."
    )


def rooms_table(house: "nx.DiGraph[str]") -> str:
    """Return a table of the rooms, ground floor first, each with its sentence."""
    lines = ["| Floor | Room | What is in it | Lines |", "|---:|---|---|---:|"]
    for level, rooms in enumerate(floors_of(house)):
        for room in rooms:
            lines.append(f"| {level} | `{_shown(room)}` | {sentence_of(room)} | {_lines_in(room):,} |")
    return "\n".join(lines)


def _shown(room: str) -> str:
    path = modules().get(f"atoll.{room}", modules()["atoll"])
    return f"{room}/" if path.parent != PACKAGE else path.name


def _lines_in(room: str) -> int:
    return sum(len(path.read_bytes().splitlines()) for module, path in modules().items() if room_of(module) == room)


def drawing(house: "nx.DiGraph[str]") -> str:
    """Return the drawing as SVG inside the page, so that it uses the page's colours."""
    direct = nx.transitive_reduction(house)
    layers, edges = _layered(direct, floors_of(house))
    _untangle(layers, edges)
    place = {node: (x, y) for y, layer in enumerate(reversed(layers)) for node, x in _columns(layer)}
    height = len(layers) * FLOOR - FLOOR + HEIGHT + 8
    parts = [_curve([place[node] for node in way]) for way in _ways(direct, edges)]
    parts += [_box(node, *place[node]) for node in place if isinstance(node, str)]
    return (
        f'<figure class="house"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="The rooms and what they '
        'import"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>{"".join(parts)}</svg></figure>'
    )


Node = str | tuple[str, str, int]  # a room, or the bend of an arrow where it passes a floor
Layers = list[list[Node]]
Edges = list[tuple[Node, Node]]


def _layered(direct: "nx.DiGraph[str]", floors: list[list[str]]) -> tuple[Layers, Edges]:
    """Return the floors with a bend on each that an arrow passes, and the arrows' parts, from top to bottom."""
    layers: Layers = [list(rooms) for rooms in floors]
    level = {room: i for i, rooms in enumerate(floors) for room in rooms}
    edges: Edges = []
    for above, below in sorted(direct.edges):
        bends: list[Node] = [(above, below, i) for i in range(level[above] - 1, level[below], -1)]
        for bend in bends:
            layers[bend[2]].append(bend)  # type: ignore[index]
        edges += pairwise([above, *bends, below])
    return layers, edges


def _untangle(layers: Layers, edges: Edges) -> None:
    """Order each floor by the mean position of its neighbours, in a few sweeps down and up."""
    joined = nx.Graph(edges)
    for sweep in range(12):
        ordered = layers if sweep % 2 else layers[::-1]
        for before, layer in pairwise(ordered):
            at = dict(_columns(before))
            means = {node: [at[other] for other in joined[node] if other in at] for node in layer}
            layer.sort(key=lambda node: sum(means[node]) / len(means[node]) if means[node] else WIDTH / 2)


def _columns(layer: list[Node]) -> Iterator[tuple[Node, float]]:
    """Yield each node of a floor with its centre, the floor being centred in the drawing."""
    widths = [BOX if isinstance(node, str) else 0 for node in layer]
    x = (WIDTH - sum(widths) - GAP * (len(layer) - 1)) / 2
    for node, width in zip(layer, widths, strict=True):
        yield node, x + width / 2
        x += width + GAP


def _ways(direct: "nx.DiGraph[str]", edges: Edges) -> Iterator[list[Node]]:
    """Yield each arrow's nodes from top to bottom."""
    bends: dict[tuple[str, str], list[Node]] = {}
    for _, node in edges:
        if not isinstance(node, str):
            bends.setdefault(node[:2], []).append(node)
    for above, below in sorted(direct.edges):
        yield [above, *bends.get((above, below), []), below]


def _curve(way: list[tuple[float, int]]) -> str:
    """Return an arrow that leaves a room at its foot and passes floors straight down."""
    points = [(x, y * FLOOR + 4.0) for x, y in way]
    x, y = points[0][0], points[0][1] + HEIGHT
    path = f"M{x:.0f} {y:.0f}"
    for number, (to_x, to_y) in enumerate(points[1:], 2):
        middle = (y + to_y) / 2
        path += f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
        x, y = to_x, to_y
        if number < len(points):
            y += HEIGHT
            path += f"V{y:.0f}"
    return f'<path class="arrow" marker-end="url(#tip)" d="{path}"/>'


def _box(room: str, x: float, y: int) -> str:
    left, top = x - BOX / 2, y * FLOOR + 4
    return (
        f"<g><title>{escape(sentence_of(room))}</title>"
        f'<rect x="{left:.0f}" y="{top}" width="{BOX}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:.0f}" y="{top + HEIGHT / 2 + 5:.0f}">{escape(_shown(room))}</text></g>'
    )
