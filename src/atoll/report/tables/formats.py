"""Tables of text as Markdown, LaTeX and comma-separated values, and for the terminal."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from atoll.support.files import csv_text

DASH = "\u2013"

Cells = Sequence[Sequence[str]]
"""A table as lines of cells, the header first."""

_GREEK_NAMES = (
    "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon varphi chi "
    "psi omega mu Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_GREEK = dict(zip("αβγδεζηθικλμνξπρστυφχψω\N{MICRO SIGN}ΓΔΘΛΞΠΣΦΨΩ", _GREEK_NAMES.split(), strict=True))
_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    DASH: "--",
    "\N{MINUS SIGN}": "$-$",
    "\n": " ",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "→": r"$\to$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    **{letter: rf"$\{name}$" for letter, name in _GREEK.items()},
}

MOST_COLUMNS_SHOWN, MOST_CELLS_SHOWN = 60, 5_000  # on a terminal, where laying out more takes long


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Attributes:
        cells: its lines, the header first.
        texts: how many columns, from the left, hold text; these are left-aligned, the others right-aligned.
        note: what stands below it.
    """

    cells: Cells
    texts: int
    note: str = ""

    def as_markdown(self) -> str:
        """Return it in Markdown, with aligned columns."""
        header, *body = [[cell.replace("|", "\\|") for cell in line] for line in self.cells]
        widths = [max(2, *map(len, column)) for column in zip(header, *body, strict=True)]  # "-:" at least
        rule = ["-" * width if index < self.texts else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
        pads = [str.ljust if index < self.texts else str.rjust for index in range(len(header))]
        lines = [
            [pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=True)]
            for line in (header, rule, *body)
        ]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return f"{table}\n{self.note}\n" if self.note else table

    def as_latex(self) -> str:
        """Return it as a LaTeX ``tabular`` with the rules of booktabs, and the note as a comment above it."""
        header, *body = [" & ".join(map(_latex, line)) + r" \\" for line in self.cells]
        columns = "".join("l" if index < self.texts else "r" for index in range(len(self.cells[0])))
        notes = (f"% {line}" for line in self.note.splitlines())
        lines = [*notes, rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header]
        return "\n".join([*lines, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])

    def as_rich(self, title: str = "") -> Table:
        """Return it for the terminal: as many of its first columns and lines as anybody reads."""
        header, *body = [line[:MOST_COLUMNS_SHOWN] for line in self.cells]
        body = body[: MOST_CELLS_SHOWN // len(header)]
        is_cut = len(self.cells[0]) > len(header) or len(self.cells) > len(body) + 1
        note = "There is more: --out and --json have all of it." if is_cut else ""
        table = Table(title=title or None, caption="\n".join(filter(None, (self.note, note))) or None)
        for index, name in enumerate(header):
            # In a narrow terminal cells wrap: labels may differ at the end only, and a number cut short misleads.
            table.add_column(Text(name), justify="left" if index < self.texts else "right", overflow="fold")
        for line in body:
            table.add_row(*map(Text, line))  # Text, so that brackets in a label are not markup
        return table


def csv_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as comma-separated values, with a column for each name in any of them; None is empty."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return csv_text([names, *([record.get(name) for name in names] for record in records)])


def upright(cells: Cells) -> Cells:
    """Return the table, transposed if it has more columns than lines."""
    return [list(line) for line in zip(*cells, strict=True)] if len(cells) < len(cells[0]) else cells


def _latex(text: str) -> str:
    """Return text for a cell: special characters escaped, Greek letters as formulas, no start that a rule reads."""
    escaped = re.sub("[" + re.escape("".join(_LATEX)) + "]", lambda found: _LATEX[found[0]], text)
    return re.sub(r"^\s*([\[*])", r"{\1}", escaped)  # after \\\\ or \midrule these would be an argument


def show_p(p: float | None, name: str = "") -> str:
    """Return a p value as text, after a name if one is given."""
    if p is None:
        return f"{name} {DASH}".lstrip()
    if p < 0.001:
        return f"{name} < 0.001".lstrip()
    return f"{name} = {p:.3f}" if name else f"{p:.3f}"
