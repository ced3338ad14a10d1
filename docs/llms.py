"""MkDocs hook: puts the Markdown of every page beside its HTML, as the other hooks leave it, for llms.txt."""

from pathlib import Path
from typing import Any

_pages: dict[str, str] = {}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Remember a page's text; this hook is the last of the list."""
    if page.parent or page.is_homepage:  # those of the navigation: the reference's pages are hundreds
        _pages[page.file.src_uri] = markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Write the texts; MkDocs calls this at the end of each build."""
    for name, text in _pages.items():
        place = Path(config.site_dir) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
