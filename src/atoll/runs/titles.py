"""The runs of an experiment, told apart by their titles."""

from collections.abc import Sequence

from atoll.settings.sections import Settings
from atoll.support.errors import InputError
from atoll.support.requiring import require


def title_of(settings: Settings) -> str:
    """Return what tells an experiment's runs apart: panel and label."""
    return ", ".join(filter(None, (settings.panel, settings.label)))


def choose_runs(runs: Sequence[Settings], only: str | None) -> list[Settings]:
    """Return the run of this title or, if there is none, those that have it in theirs; without `only`, all.

    Where none has it as it is written, capitals count as small letters.

    Raises:
        InputError: no run has it in its title; names the titles.
    """
    require("only", only, str | None)
    if only == "":
        raise InputError("--only '': must be a text that panels or labels have; leave it out for all runs")
    titles = [title_of(settings) for settings in runs]
    matching = [only] if only in titles else [title for title in titles if only is None or only in title]
    matching = matching or [title for title in titles if only is None or only.casefold() in title.casefold()]
    chosen = [settings for settings, title in zip(runs, titles, strict=True) if title in matching]
    if not chosen:
        raise InputError(f"--only {only}: no run has this in its panel or label; they are {'; '.join(titles)}")
    return chosen
