"""A plan's folder: the request, the runs of the race, the table, and the chosen experiment file.

Functions that write raise RunError if they cannot; the others InputError, which says what the folder holds.
"""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.planner.measured_runs import FILES
from atoll.runs.run_files import entries_of, is_taken
from atoll.settings.experiment_file import as_toml
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, refusing
from atoll.support.files import to_json, write_atomically
from atoll.support.untrusted import read_json

NOTE, CHOSEN, RACE, PAGE = "plan.json", "experiment.toml", "race", "index.html"


def require_folder(out: Path, note: Mapping[str, Any], resume: bool) -> None:
    """Refuse a folder in which a plan can neither begin nor continue. Nothing is written."""
    if NOTE not in entries_of(out):
        if is_taken(out, (NOTE, *FILES)):
            raise InputError(f"--out {out}: is not empty and holds no plan; give the path of a new folder")
        return  # empty, or of a plan killed at its start
    if not resume:
        raise InputError(f"--out {out}: holds a plan already; add --resume to continue it, or give another folder")
    fault, hint = f"--out {out}: its {NOTE} cannot be read", "; give another folder"
    with refusing(fault, ValueError, KeyError, TypeError, hint=hint):
        before = read_json(out / NOTE, out)["asked"]
    asked = json.loads(json.dumps(dict(note)))
    if changed := [key for key in asked if before.get(key) != asked[key] and key != "seeds"]:
        raise InputError(
            f"--resume: {out} holds another plan, which differs in {', '.join(changed)}; give the same options again "
            "(more --seeds are fine), or another folder"
        )


def write_note(out: Path, note: Mapping[str, Any], **found: Any) -> None:
    """Write ``plan.json``: the request and its results."""
    write_atomically(out / NOTE, to_json({"asked": dict(note), **found}))


def write_chosen(out: Path, settings: Settings, name: str, reason: str) -> None:
    """Write the chosen experiment file, with all its settings."""
    told = f"Chosen by atoll plan: {name}. {reason} Paths in it are relative to the folder where Atoll runs."
    comment = textwrap.fill(told, 118, initial_indent="# ", subsequent_indent="# ") + "\n\n"
    write_atomically(out / CHOSEN, (comment + as_toml(settings)).encode())
