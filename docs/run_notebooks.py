"""MkDocs hook: runs the notebooks of docs/notebooks while the site is built, and shows each as a page.

They are kept without outputs, so a page shows what the notebook gives with this version of Atoll.
"""

import os
import re
import tempfile
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient

FOLDER = Path(__file__).with_name("notebooks")
SECONDS = 300  # a cell, or a kernel to start, may take on a busy machine; in all, a notebook takes some ten
_PICTURES = {"image/svg+xml": "svg", "image/png": "png"}
_STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)

Page = tuple[str, dict[str, bytes]]
"""A page's Markdown, and its pictures by name."""


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add a page for each notebook, with its pictures; the notebook itself can be downloaded."""
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        text, pictures = carried_out(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


@cache  # `mkdocs serve` builds again and again
def carried_out(path: Path) -> Page:
    """Run a notebook from its first cell to its last in an empty folder, and return its page.

    Raises:
        CellExecutionError: a cell fails.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the kernel's: with small models, threads only wait for each other
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        quiet = ["--log-level=ERROR"]
        where = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=SECONDS, startup_timeout=SECONDS, resources=where, extra_arguments=quiet
        ).execute()
    return page_of(notebook, path.name)


def page_of(notebook: Any, name: str) -> Page:
    """Return an executed notebook as a page."""
    parts, pictures = list[str](), dict[str, bytes]()
    numbers = count(1)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            kind = next((kind for kind in _PICTURES if kind in output.get("data", {})), None)
            if kind is None:
                parts.append(_shown(output))
            else:
                file = f"{Path(name).stem}-{next(numbers)}.{_PICTURES[kind]}"
                pictures[file] = output.data[kind].encode()
                parts.append(f"![{cell.metadata.get('alt', 'A figure')}]({file}){{ .drawn }}")
    title, *rest = parts
    told = f"*A notebook: [download it]({name}), or read on. It was carried out when this page was built.*"
    return "\n\n".join([title, told, *rest]) + "\n", pictures


def _shown(output: Any) -> str:
    """Return a cell's output, a text or a table."""
    data = output.get("data", {})
    if "text/html" in data:
        table = _STYLE.sub("", data["text/html"]).replace(' border="1" class="dataframe"', "")
        return f'<div class="result" markdown="0">{" ".join(table.split())}</div>'
    text = output.get("text") or data.get("text/plain", "")
    return f"``` {{ .text .result .no-copy }}\n{text.rstrip()}\n```"
