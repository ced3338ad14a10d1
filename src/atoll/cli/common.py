"""What the commands share: the application, the two consoles, common options, and reading an experiment.

Commands import what they work with when they run, not before: ``--help``, completion and a bad option answer at once.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from atoll.cli.consoles import err as err
from atoll.cli.consoles import out as out
from atoll.support.errors import AtollError, InputError, RunError, is_full, reason_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atoll.experiment.experiment import Experiment

Function = TypeVar("Function", bound=Callable[..., Any])

# In the order of work: what is there, what it would do, doing it, looking at it, and checking the machine.
_ORDER = (
    *("new", "recipes", "schema", "data", "cluster", "schedule", "run", "watch", "report", "export"),
    *("plan", "sweep", "reproduce", "fleet", "verify", "bench"),
)
_WIDEST = 120  # columns of help, in a terminal that has them


class _Command(TyperCommand):
    """A command whose help is plain text: Typer escapes brackets for rich, which then does not print it."""

    def get_help(self, ctx: Any) -> str:
        """Return the help without backslashes before brackets."""
        return super().get_help(ctx).replace("\\[", "[")

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return its line in a list of commands: its first sentence, or as many clauses of it as have room."""
        told = " ".join((self.help or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
        while len(told) >= limit and (cut := max(told.rfind(":"), told.rfind(";")) + 1 or told.rfind(",") + 1):
            told = told[: cut - 1]
        return f"{told}."


class _Group(TyperGroup):
    """Commands in the order of work."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names, those that stand in no order last."""
        return sorted(self.commands, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


class _App(typer.Typer):
    """An application whose commands are such."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Return what registers a command."""
        return super().command(name, **{"cls": _Command, **options})


def make_app(**options: Any) -> typer.Typer:
    """Return an application, or a group of commands below it."""
    return _App(cls=_Group, rich_markup_mode=None, **options)


app = make_app(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST},
)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        sys.stdout.write(f"atoll {version('atoll')}\n")
        raise typer.Exit


@app.callback()
def atoll(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Clustered and hierarchical federated learning.

    Example: atoll run quickstart
    """


def _complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes of this beginning; where there is none, shells complete files."""
    from atoll.settings.experiment_file import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def setting_paths() -> list[str]:
    """Return the settings as `--set` takes them, section by section."""
    from atoll.settings.validation import full_model

    sections = {
        name: getattr(field.annotation, "model_fields", {}) for name, field in full_model().model_fields.items()
    }
    return [path for name, keys in sections.items() for path in ([f"{name}.{key}" for key in keys] or [name])]


def _complete_setting(incomplete: str) -> list[str]:
    """Return the settings of this beginning, with what a setting that names a function may be."""
    from atoll.settings.choices import CHOICES

    path, equals, _ = incomplete.partition("=")
    if equals:
        named = [name for choice in CHOICES if choice.setting == path for name in choice.functions]
        return [word for word in (f"{path}={name}" for name in named) if word.startswith(incomplete)]
    return [f"{path}=" for path in setting_paths() if path.startswith(incomplete)]


ExperimentArg = Annotated[
    str,
    typer.Argument(metavar="EXPERIMENT", help="A .toml file, or a recipe's name.", autocompletion=_complete_recipe),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a setting (an empty value unsets it); may be repeated.",
        autocompletion=_complete_setting,
    ),
]
ScaleOption = Annotated[str | None, typer.Option(help="One of the experiment's scales, such as small or paper.")]
OnlyOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Of several runs, only those with TEXT in their panel or label.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PlotOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw it into FILE, a .pdf, .svg or .png; without such an ending, two of these."),
]
_NOT_WRITTEN = {".bmp", ".eps", ".gif", ".htm", ".html", ".jpeg", ".jpg", ".ps", ".tif", ".tiff", ".webp"}
WidthOption = Annotated[
    str | None,
    typer.Option(metavar="WIDTH", help="Of figures: column (3.5 inches), text (7.16), or a number of inches."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; warnings and results remain.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Also say which executor trains, and why.")]


def read_experiments(
    name: str, scale: str | None, changes: list[str] | None, only: str | None = None
) -> "list[Experiment]":
    """Return the runs of an experiment file or recipe; with `only`, that of this title, or those that have it in it."""
    from atoll.runs.titles import choose_runs
    from atoll.settings.experiment_file import make_runs, read_experiment
    from atoll.settings.plugins import import_from

    import_from(Path(name).parent)
    runs = make_runs(read_experiment(name), scale, changes or ())
    chosen = choose_runs(runs, only)
    from atoll.experiment.experiment import Experiment  # only now: bad settings are told without PyTorch

    return [Experiment(settings) for settings in chosen]


def check_runs(runs: "Iterable[Experiment]", schedules: bool = True) -> None:
    """Meet whatever is wrong with runs before anything is made or written; without `schedules` but for these.

    Raises:
        InputError: one of them cannot be carried out.
    """
    from atoll.runs.probes import check_probes
    from atoll.trackers import require_trackers

    for each in runs:
        each.check() if schedules else each.check_parts()
        check_probes(each)
        require_trackers(each.settings)


def check_file(option: str, path: Path | None) -> None:
    """Refuse an option's path that names no file.

    Raises:
        InputError: it is empty, or a folder.
    """
    if path is None:
        return
    if path.name in ("", ".."):
        raise InputError(f"{option} {str(path)!r}: names no file; give one, such as {option} figures/{option[2:]}")
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; give the path of a file")


def refuse_below_file(folder: Path) -> None:
    """Refuse a folder that can never be, since it is a file or lies below one.

    Raises:
        InputError: it is.
    """
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"{folder} is a file, or lies below one ({place}); give the path of a folder")


def claim_file(option: str, path: Path | None) -> None:
    """Make the folder that an option's file goes to, before the work whose result it will hold.

    Raises:
        InputError: it names no file, or one where none can be.
    """
    check_file(option, path)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{option} {path}: its folder {path.parent} cannot be made ({reason})") from error


def claim_plot(path: Path | None) -> None:
    """Make the folder of `--plot`, as `claim_file` does.

    Raises:
        InputError: as there; or it ends as an image of a kind that is not written.
    """
    if path is not None and path.suffix.lower() in _NOT_WRITTEN:
        raise InputError(f"--plot {path}: must end in .pdf, .svg or .png, or have no such ending, for a PNG and an SVG")
    claim_file("--plot", path)


def experiment_words(name: str, scale: str | None, changes: Iterable[str] | None, only: str | None) -> list[str]:
    """Return the words of a command line that `read_experiments` reads into the same runs."""
    words = [name, *(word for change in changes or () for word in ("--set", change))]
    given = [(option, value) for option, value in (("--scale", scale), ("--only", only)) if value is not None]
    return words + [word for pair in given for word in pair]


def refuse_both(resume: bool, overwrite: bool) -> None:
    """Refuse to go on with a run and to replace it.

    Raises:
        InputError: both were asked for.
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite: give one of them, not both")


@contextmanager
def resumable() -> Iterator[None]:
    """Say of a disk that is full how the run goes on once there is room.

    Raises:
        RunError: it is.
    """
    try:
        yield
    except (AtollError, OSError) as error:
        if not is_full(error):
            raise
        told = f"{error.filename or 'its folder'}: {reason_of(error)}" if isinstance(error, OSError) else str(error)
        raise RunError(f"{told}; make room, and the same command with --resume goes on from there") from error


def title_of(experiment: "Experiment") -> str:
    """Return what a run's tables and figures are headed by."""
    s = experiment.settings
    return ", ".join(filter(None, (s.name, s.panel, s.label)))


def print_json(value: Any) -> None:
    """Print one JSON document, and nothing else, to standard output."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def read_width(text: str | None) -> float | None:
    """Return the width of figures in inches; None: each figure's own.

    Raises:
        InputError: a width that is neither known by name nor a number of inches that a page may have.
    """
    if text is None:
        return None
    from atoll.report.figures.style import WIDTHS

    try:
        inches = WIDTHS.get(text) or float(text)
    except ValueError:
        inches = 0.0
    if not 1 <= inches <= 50:
        raise InputError(f"--width {text}: must be {', '.join(WIDTHS)} or a number of inches from 1 to 50")
    return inches


def save_plot(figure: "Figure", path: Path, ending: str = "") -> None:
    """Write a figure as its path says, with `ending` after the name."""
    from atoll.report.report_files import SUFFIXES, save_figure

    is_named = path.suffix.lower() in SUFFIXES
    file = path.with_stem(path.stem + ending) if is_named else path.with_name(path.name + ending)
    for written in save_figure(figure, file):
        err.print(f"wrote {written}", markup=False)
