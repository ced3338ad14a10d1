"""The page as one self-contained HTML file: tables, figures, style and script."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from atoll.report.page.content import Content, make_content
from atoll.report.reading.runs import Run
from atoll.support.environment import package_versions
from atoll.support.files import make_folder, write_atomically

SCRIPTS = ("core.js", "chart.js", "curves.js", "details.js", "baseline.js", "live.js")


def write_page(
    runs: Sequence[Run],
    file: Path,
    targets: Sequence[float] | None = None,
    command: str = "",
    stable: bool = False,
    notices: Sequence[str] = (),
    baseline: str | None = None,
) -> None:
    """Write the page of some runs into one self-contained file, which loads nothing from the network.

    `targets`, `stable`, `notices` and `baseline` are as in `make_content`; `command` is shown as the command that made
    the page. The file's folder is created if necessary.
    """
    page = render(make_content(runs, targets, stable=stable, notices=notices, baseline=baseline), command)
    make_folder(file.parent)
    write_atomically(file, page.encode())


def assemble(template: str, script: str, data: Any, **parts: str) -> str:
    """Return another kind of page, with the same style and charts.

    Args:
        template: HTML with `$policy`, `$css`, `$data` and `$app`, and a placeholder for each of `parts`.
        script: appended to ``core.js`` and ``chart.js``; defines `drawAll`.
        data: what the script draws, plain values.
        parts: HTML by placeholder.
    """
    app = _enclosed([*map(_asset, SCRIPTS[:2]), script])
    return Template(template).substitute(parts, policy=_policy(app), css=_asset("page.css"), data=_json(data), app=app)


def render(content: Content, command: str = "") -> str:
    """Return the page with this content."""
    sections = {name.removesuffix("-body"): html for name, html in content.sections.items()}
    return Template(_asset("page.html")).substitute(
        sections,
        policy=policy(live=content.data["live"]),
        version=escape(str(package_versions()["atoll"] or "")),
        title=escape(content.title),
        summary=escape(content.summary),
        no_notices="" if sections["notices"] else " hidden",
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        command=f" with <code>{escape(command)}</code>" if command else "",
        css=_asset("page.css"),
        data=_json(content.data),
        app=_script(),
    )


def policy(*, live: bool) -> str:
    """Return the page's content security policy: only its own script, identified by digest, and no requests.

    A watched page may send requests to its own server only.
    """
    return _policy(_script(), *(["connect-src 'self'"] if live else []))


def _policy(script: str, *more: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = [
        *("default-src 'none'", f"script-src 'sha256-{digest}'", "style-src 'unsafe-inline'", "img-src data: blob:"),
        *("base-uri 'none'", "form-action 'none'", *more),
    ]
    return "; ".join(rules)


@cache
def _script() -> str:
    return _enclosed(map(_asset, SCRIPTS))


def _enclosed(scripts: Iterable[str]) -> str:
    """Return the scripts joined in one function."""
    own = "\n".join(scripts)
    return f'(() => {{\n"use strict";\n{own}\n}})();'


def _json(data: Any) -> str:
    """Return JSON that cannot close its element or open a comment."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")
