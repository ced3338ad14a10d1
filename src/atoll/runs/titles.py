"""Titles of an experiment's runs, and choosing runs by title."""

from collections.abc import Sequence

from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.requiring import require


def title_of(settings: Settings) -> str:
    """Return the title of a run: panel and label."""
    return ", ".join(filter(None, (settings.panel, settings.label)))


def choose_runs(runs: Sequence[Settings], only: str | None) -> list[Settings]:
    """Return the run with this title or else those whose title contains it; without `only`, all.

    Case is ignored if nothing matches otherwise.
    """
    require("only", only, str | None)
    if only == "":
        raise InputError("--only '': must be part of a panel or label; leave it out for all runs")
    titles = [title_of(settings) for settings in runs]
    matching = [only] if only in titles else [title for title in titles if only is None or only in title]
    matching = matching or [title for title in titles if only is None or only.casefold() in title.casefold()]
    chosen = [settings for settings, title in zip(runs, titles, strict=True) if title in matching]
    if not chosen:
        raise InputError(f"--only {only}: no run has this in its panel or label; they are {'; '.join(titles)}")
    return chosen
