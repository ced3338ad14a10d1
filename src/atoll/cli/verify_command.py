"""`atoll verify`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from atoll.cli.common import app, out, print_json
from atoll.cli.options import JsonOption

if TYPE_CHECKING:
    from atoll.runs.verify import Check


@app.command("verify")
def verify_command(as_json: JsonOption = False) -> None:
    """Check that runs repeat on this machine: with other executors or numbers of workers, and after resuming.

    The exit code is 1 if one of them does not. Example: atoll verify
    """
    from atoll.runs.verify import verify

    with tempfile.TemporaryDirectory(prefix="atoll-verify-") as folder:
        checks = list(verify(Path(folder)))
    if as_json:
        print_json([_as_dict(check) for check in checks])
    else:
        out.print(_as_table(checks))
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def _as_dict(check: "Check") -> dict[str, object]:
    return {
        "what": check.what,
        "must_be_equal_to": check.must,
        "difference": check.difference,
        "rows_equal": check.rows_equal,
        "holds": check.holds,
    }


def _as_table(checks: "list[Check]") -> Table:
    table = Table("Compared with serial, uninterrupted", "Must be equal to", "Models differ by", "Rows", "Holds")
    for check in checks:
        differs = "nothing" if check.difference == 0 else f"{check.difference:.1e}"
        rows = "equal" if check.rows_equal else "differ"
        table.add_row(check.what, check.must, differs, rows, "yes" if check.holds else "NO")
    return table
