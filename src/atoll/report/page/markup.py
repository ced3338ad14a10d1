"""HTML from values; all escaping is done here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from atoll.report.tables.formats import DASH


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, a smaller note below it, a class of the style sheet, and what the script compares."""

    text: str
    note: str = ""
    style: str = ""
    value: float | None = None
    clock: str = ""


NOTHING = Cell(DASH)  # where there is no value: most cells of many runs with metrics of their own


@dataclass(frozen=True)
class Body:
    """Lines of a table, under an optional heading."""

    title: str
    lines: Sequence[Sequence[Cell]]


def table(caption: str, header: Sequence[str], bodies: Iterable[Body], note: str = "", style: str = "") -> str:
    """Return a table whose first column names its lines, in a region that can be scrolled sideways by keyboard too."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    rows = "".join(_body(body, len(header)) for body in bodies)
    below = paragraph(note, "note") if note else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="{escape(style)}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{columns}</tr></thead>{rows}</table></div>{below}"
    )


def items(texts: Iterable[str]) -> str:
    """Return a list of sentences."""
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def paragraph(text: str, style: str = "") -> str:
    """Return one paragraph, optionally of a class of the style sheet."""
    return f'<p class="{escape(style)}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"


def _body(body: Body, columns: int) -> str:
    head = f'<tr><th class="group" scope="rowgroup" colspan="{columns}">{escape(body.title)}</th></tr>'
    lines = "".join(f"<tr>{_cell(line[0], 'th')}{''.join(map(_cell, line[1:]))}</tr>" for line in body.lines)
    return f"<tbody>{head if body.title else ''}{lines}</tbody>"


def _cell(cell: Cell, tag: str = "td") -> str:
    if cell is NOTHING and tag == "td":
        return f"<td>{DASH}</td>"
    style = f' class="{escape(cell.style)}"' if cell.style else ""
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    scope = ' scope="row"' if tag == "th" else ""
    value = "" if cell.value is None else f' data-value="{cell.value:.9g}"'
    value += f' data-clock="{escape(cell.clock)}"' if cell.clock else ""
    return f"<{tag}{scope}{style}{value}>{escape(cell.text)}{note}</{tag}>"
