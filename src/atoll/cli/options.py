"""The options that several commands share, with what shells complete for them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.support.errors import InputError


def refuse_about_runs(*options: tuple[str, Any]) -> None:
    """Reject options about what is run, for a command that runs nothing."""
    for option, given in options:
        if given is not None:
            raise InputError(f"{option} {given}: is about what is run; leave out --no-run")


def _complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes that start with this; if there are none, shells complete files."""
    from atoll.settings.experiment_file import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def setting_paths() -> list[str]:
    """Return the settings as `--set` takes them, section by section."""
    from atoll.settings.setting_list import sections, settings_in

    return [each.name for section in sections() for each in settings_in(section)]


def _complete_setting(incomplete: str) -> list[str]:
    """Return the settings that start with this or, after the equals sign, the names that a setting accepts."""
    from atoll.settings.choices import CHOICES

    path, equals, _ = incomplete.partition("=")
    if equals:
        named = [name for choice in CHOICES if choice.setting == path for name in choice.functions]
        return [word for word in (f"{path}={name}" for name in named) if word.startswith(incomplete)]
    return [f"{path}=" for path in setting_paths() if path.startswith(incomplete)]


ExperimentArg = Annotated[
    str,
    typer.Argument(metavar="EXPERIMENT", help="A .toml file or the name of a recipe.", autocompletion=_complete_recipe),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a setting; an empty value unsets an optional one. Repeatable.",
        autocompletion=_complete_setting,
    ),
]
ScaleOption = Annotated[
    str | None, typer.Option(help="Apply one of the file's named overrides, such as small or paper.")
]
OnlyOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only the runs with TEXT in their panel or label.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PlotOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Draw it to FILE, a .pdf, .svg or .png; without such an ending, to a PNG and an SVG."
    ),
]
WidthOption = Annotated[
    str | None,
    typer.Option(metavar="WIDTH", help="Width of figures: column (3.5 inches), text (7.16) or a number of inches."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress, but not warnings and results.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Also say which executor trains, and why.")]
RunsOption = Annotated[Path | None, typer.Option("--out", help="Folder for the results; by default runs/NAME.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint, if there is one.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")]
