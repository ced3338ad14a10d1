"""The clusterings of recipes that are not trained, in one file of a folder."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atoll.experiment.experiment import Experiment
from atoll.reproduce.kept_runs import PLANS
from atoll.runs.titles import title_of
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, refusing
from atoll.support.files import make_folder, to_json, write_atomically
from atoll.support.untrusted import read_json


def read_plans(folder: Path) -> dict[str, Any]:
    """Return the clusterings in a folder, with the settings that made them."""
    file = folder / PLANS
    hint = "; remove it to make the clusterings again"
    with refusing(f"{file} cannot be read", ValueError, LookupError, TypeError, hint=hint):
        held: dict[str, Any] = read_json(file, folder) if file.exists() else {"settings": [], "plans": []}
        if len(held["settings"]) != len(held["plans"]) or not all(isinstance(plan, dict) for plan in held["plans"]):
            raise ValueError("it must hold a plan for each of its settings")
    return held


def make_plans(folder: Path, wanted: Sequence[Settings]) -> tuple[bool, str]:
    """Make the missing clusterings, each saved before the next; return whether there were none, and why some failed."""
    file = folder / PLANS
    held = read_plans(folder)
    asked = [settings.model_dump(mode="json") for settings in wanted]
    made = [(before, plan) for before, plan in zip(held["settings"], held["plans"], strict=True) if before in asked]
    missing = [pair for pair in zip(asked, wanted, strict=True) if pair[0] not in held["settings"]]
    make_folder(folder)
    failed: list[str] = []
    for now, settings in missing:
        plan = {"label": settings.label, "panel": settings.panel, "seed": settings.seed}
        try:
            made.append((now, plan | asdict(Experiment(settings).plan.summary)))
        except InputError as error:  # in one seed's network, say; the others are made
            failed.append(f"{title_of(settings)}: {error}")
            continue
        write_atomically(file, to_json({"settings": [each for each, _ in made], "plans": [each for _, each in made]}))
    others = f" ({len(failed) - 1:,} more cannot be made)" if len(failed) > 1 else ""
    return not missing, f"{failed[0]}{others}" if failed else ""
