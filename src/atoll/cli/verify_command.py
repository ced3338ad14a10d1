"""`atoll verify`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from atoll.cli.common import app, out, print_json
from atoll.cli.options import JsonOption

if TYPE_CHECKING:
    from atoll.runs.verify import Check


@app.command("verify")
def verify_command(
    run: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A run's folder: carry out its events once more.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that runs repeat on this machine: with other executors or numbers of workers, and after resuming.

    With a run's folder, carry out what happened in that run once more, one on a fleet in simulation; the last line is
    "equal" or the first difference. The exit code is 1 if something does not repeat. Example: atoll verify
    """
    from atoll.runs.verify import verify, verify_run
    from atoll.settings.plugins import import_from

    import_from(run or Path())
    with tempfile.TemporaryDirectory(prefix="atoll-verify-") as folder:
        checks = list(verify(Path(folder))) if run is None else [verify_run(run, Path(folder) / "run")]
    if as_json:
        print_json([_as_dict(check) for check in checks])
    elif run is None:
        out.print(_as_table(checks))
    else:
        (check,) = checks
        out.print(f"{check.what}\n{check.first_difference or 'equal'}", highlight=False)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def _as_dict(check: "Check") -> dict[str, object]:
    return {
        "what": check.what,
        "must_be_equal_to": check.must,
        "difference": check.difference,
        "rows_equal": check.rows_equal,
        "first_difference": check.first_difference,
        "holds": check.holds,
    }


def _as_table(checks: "list[Check]") -> Table:
    table = Table("Compared with serial, uninterrupted", "Must be equal to", "Models differ by", "Rows", "Holds")
    for check in checks:
        differs = "nothing" if check.difference == 0 else f"{check.difference:.1e}"
        rows = "equal" if check.rows_equal else "differ"
        table.add_row(check.what, check.must, differs, rows, "yes" if check.holds else "NO")
    return table
