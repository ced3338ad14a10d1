"""What the commands share: the application, the two consoles, and reading and checking experiments.

Commands import what they work with when they run, not before, so that ``--help``, completion and bad options answer at
once.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, cast

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from atoll.support.errors import AtollError, InputError, RunError, full_disk, is_full, refusing

if TYPE_CHECKING:
    from atoll.experiment.experiment import Experiment


class Enduring:
    """Standard error as it is now; output that cannot be written is dropped.

    A run must not fail because a full disk has no space for the line that says so.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(_standard_error(), name)

    def write(self, text: str) -> int:
        """Write what can be written; report all of it as written."""
        with _enduring():
            _standard_error().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with _enduring():
            _standard_error().flush()


@contextmanager
def _enduring() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe, which ends a command
        raise
    except OSError:
        pass


def _standard_error() -> IO[str]:
    # While rich shows progress, it replaces standard error by a file of its own.
    return cast(IO[str], getattr(sys.stderr, "rich_proxied_file", sys.stderr))


sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (it may be closed)
# In a file or a pipe, tables may be wider than rich's 80 columns.
_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
out = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=_width)
err = Console(file=cast(IO[str], Enduring()), markup=False, emoji=False, highlight=False, soft_wrap=True)

Function = TypeVar("Function", bound=Callable[..., Any])

# In the order of work: see what there is and what it would do, do it, look at the results, check the machine.
_ORDER = (
    *("new", "recipes", "settings", "data", "cluster", "schedule", "run", "watch", "report", "export"),
    *("plan", "sweep", "reproduce", "benchmark", "fleet", "verify"),
)
_WIDEST = 120  # columns of help, if the terminal has as many


class _Command(TyperCommand):
    """A command whose help is plain text: Typer escapes brackets for rich, which is off here."""

    def get_help(self, ctx: Any) -> str:
        """Return the help without backslashes before brackets."""
        return super().get_help(ctx).replace("\\[", "[")

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return its line in a list of commands: its first sentence, cut to as many clauses as fit."""
        line = " ".join((self.help or "").partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
        while len(line) >= limit and (cut := max(line.rfind(":"), line.rfind(";")) + 1 or line.rfind(",") + 1):
            line = line[: cut - 1]
        return f"{line}."


class _Group(TyperGroup):
    """Commands in the order of work."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, unordered ones last."""
        return sorted(self.commands, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


class _App(typer.Typer):
    """An application that makes such commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Return a decorator that registers a command."""
        return super().command(name, **{"cls": _Command, **options})


def make_app(**options: Any) -> typer.Typer:
    """Return an application, or a group of commands below it."""
    return _App(cls=_Group, rich_markup_mode=None, **options)


app = make_app(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        sys.stdout.write(f"atoll {version('atoll')}\n")
        raise typer.Exit


@app.callback()
def atoll(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Clustered and hierarchical federated learning.

    Example: atoll run quickstart
    """


def read_experiments(
    name: str,
    scale: str | None,
    changes: list[str] | None,
    only: str | None = None,
    overs: Sequence[Sequence[str]] = ((),),
) -> "list[Experiment]":
    """Return the runs of an experiment file or recipe, with the first of `overs` if a sweep changes them further.

    `only` takes the run with this title, or all that contain it.
    """
    from atoll.runs.titles import choose_runs
    from atoll.settings.experiment_file import make_grid, read_experiment
    from atoll.settings.plugins import import_from

    import_from(Path(name).parent)
    runs = make_grid(read_experiment(name), scale, changes or (), overs)[0]
    chosen = choose_runs(runs, only)
    from atoll.experiment.experiment import Experiment  # late: bad settings are reported without loading PyTorch

    return [Experiment(settings) for settings in chosen]


def only_one(where: str, runs: "Sequence[Experiment]") -> "Experiment":
    """Return the one run, for a command or option that takes no more."""
    from atoll.runs.titles import require_one_run

    require_one_run(where, [each.settings for each in runs], "choose one with --only")
    return runs[0]


def check_file(option: str, path: Path | None) -> None:
    """Reject an option's path that names no file."""
    if path is None:
        return
    if path.name in ("", "..", "-"):
        kind = {"--plot": "png", "--write": "npz", "--out": "safetensors"}.get(option, option[2:])
        raise InputError(f"{option} {str(path)!r}: names no file; give one, such as {option} results.{kind}")
    from atoll.runs.run_folder import require_own_file

    require_own_file(option, path)


def refuse_below_file(folder: Path) -> None:
    """Reject a folder that cannot exist, since it is a file or lies below one."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise InputError(f"{folder} is a file, or lies below one ({place}); give the path of a folder")


def claim_file(option: str, path: Path | None) -> None:
    """Make the folder for an option's file, before the work whose result it will hold."""
    check_file(option, path)
    if path is not None:
        with refusing(f"{option} {path}: its folder {path.parent} cannot be made"):
            path.parent.mkdir(parents=True, exist_ok=True)


def experiment_words(name: str, scale: str | None, changes: Iterable[str] | None, only: str | None) -> list[str]:
    """Return the command line that `read_experiments` reads into the same runs."""
    return [name, *option_words(("--set", changes), ("--scale", scale), ("--only", only))]


def option_words(*options: tuple[str, Any]) -> list[str]:
    """Return options as words of a command line: without those that are None or False, and a list word by word."""
    words = list[str]()
    for option, value in options:
        for each in value if isinstance(value, list | tuple) else [value]:
            if each is True:
                words.append(option)
            elif each is not None and each is not False:
                words += [option, f"{each:.15g}" if isinstance(each, float) else str(each)]
    return words


def refuse_both(resume: bool, overwrite: bool) -> None:
    """Reject `--resume` together with `--overwrite`."""
    if resume and overwrite:
        raise InputError("--resume and --overwrite: give one of them, not both")


@contextmanager
def resumable() -> Iterator[None]:
    """If the disk is full, say how to resume the run once there is space."""
    try:
        yield
    except (AtollError, OSError) as error:
        if not is_full(error):
            raise
        raise RunError(full_disk(error)) from error


def end_interrupted(command: str, code: int) -> NoReturn:
    """Print the command that resumes what was interrupted, and exit with this code."""
    err.print(f"interrupted; to resume: {command}")
    raise typer.Exit(code)


def heading_of(experiment: "Experiment") -> str:
    """Return the heading of a run's tables and figures."""
    s = experiment.settings
    return ", ".join(filter(None, (s.name, s.panel, s.label)))


def print_json(value: Any) -> None:
    """Print one JSON document, and nothing else, to standard output."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
