"""Titles of an experiment's runs, and choosing runs by title."""

import re
from collections.abc import Sequence

from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.requiring import require


def title_of(settings: Settings) -> str:
    """Return the title of a run: panel and label."""
    return ", ".join(filter(None, (settings.panel, settings.label)))


def without_seed(label: str) -> str:
    """Return a run's label without its seed."""
    return re.sub(r"[\s,(]*\bseed \d+\)?$", "", label)


def require_one_run(where: str, runs: Sequence[Settings], choice: str) -> None:
    """Refuse several runs, by their titles, for what takes one."""
    if len(runs) > 1:
        told = "; ".join(map(title_of, runs))
        raise InputError(f"{where}: the experiment has {len(runs)} runs ({told}); {choice}")


def choose_runs(runs: Sequence[Settings], only: str | None) -> list[Settings]:
    """Return the runs with this title, of any seed, or else that contain it, or else but for case; by default all."""
    require("only", only, str | None)
    if only == "":
        raise InputError("--only '': must be part of a panel or label; leave it out for all runs")
    titles = [title_of(settings) for settings in runs]
    matching = [title for title in titles if only in (title, without_seed(title))]
    matching = matching or [title for title in titles if only is None or only in title]
    matching = matching or [title for title in titles if only is None or only.casefold() in title.casefold()]
    chosen = [settings for settings, title in zip(runs, titles, strict=True) if title in matching]
    if not chosen:
        told = "; ".join(dict.fromkeys(map(without_seed, titles))) or "empty"
        raise InputError(f"--only {only}: no run has this in its panel or label; they are {told}")
    return chosen
