"""The report as one page for a browser: interactive curves, tables and settings in a single file."""

from atoll.report.page.content import Content, make_content
from atoll.report.page.render import policy, render, write_page
from atoll.report.page.scenes import Scenes

__all__ = ["Content", "Scenes", "make_content", "policy", "render", "write_page"]
