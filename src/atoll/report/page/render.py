"""One HTML file with everything in it: tables, figures, style, and the script that draws."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # its stubs are not shipped

from atoll.report.page.content import Content, make_content
from atoll.report.runs import Run
from atoll.support.environment import package_versions
from atoll.support.errors import RunError
from atoll.support.files import write_atomically

SCRIPTS = ("core.js", "curves.js", "details.js", "live.js")


def write_page(
    runs: Sequence[Run],
    file: Path,
    targets: Sequence[float] | None = None,
    command: str = "",
    stable: bool = False,
    notices: Sequence[str] = (),
) -> None:
    """Write the runs' page into one file, which needs nothing else and asks for nothing from the network.

    `targets`, `stable` and `notices` are as for `make_content`; `command` is what the page says it was made with. The
    file's folder is made if need be.

    Raises:
        RunError: the file cannot be written.
    """
    page = render(make_content(runs, targets, stable=stable, notices=notices), command)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {file.parent}: {error.strerror or error}") from error
    write_atomically(file, page.encode())


def render(content: Content, command: str = "") -> str:
    """Return the page, with the content of this moment in it."""
    plotly, app = _scripts()
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
        data=_in_script(json.dumps(content.data, allow_nan=False, separators=(",", ":"))),
        plotly=plotly,
        app=app,
    )


def policy(*, live: bool) -> str:
    """Return the page's content security policy: its own two scripts, known by their digests, and no requests.

    A watched page may ask where it came from, and nobody else.
    """
    digests = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in _scripts())
    rules = [
        "default-src 'none'",
        f"script-src {digests}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if live else []),
    ]
    return "; ".join(rules)


@cache
def _scripts() -> tuple[str, str]:
    """Return plotly.js and the page's own script."""
    own = "\n".join(map(_asset, SCRIPTS))
    return eager(get_plotlyjs().replace("</script", "<\\/script")), f'(() => {{\n"use strict";\n{own}\n}})();'


def eager(plotly: str) -> str:
    """Return plotly.js with its one outer function in parentheses, and no other change.

    A browser that meets a function in parentheses takes it to be called at once and compiles it on the spot; plotly's,
    handed over as an argument, it would first read whole only to skip it: a fifth of the time that the page takes to
    open. A script of another shape is returned as it is.
    """
    opening, closing = "this, () => {", "return Plotly;\n}));"
    if plotly.count(opening) != 1 or plotly.count(closing) != 1:
        return plotly
    return plotly.replace(opening, "this, (() => {").replace(closing, "return Plotly;\n})));")


def _asset(name: str) -> str:
    return (resources.files("atoll.report.page") / "assets" / name).read_text(encoding="utf-8")


def _in_script(text: str) -> str:
    """Return JSON that cannot end the element around it, or begin a comment.

    >>> print(_in_script('{"label": "</script>"}'))
    {"label": "\\u003c/script>"}
    """
    return text.replace("<", "\\u003c")
