"""How far runs are: in a terminal of 80 columns, in a log, and not at all."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from atoll.cli import common, options, sweep_progress
from atoll.cli import run_progress as progress
from atoll.settings.validation import Settings
from atoll.sweep.sweep_worker import Job, News
from tests.cli.conftest import Command

LATEST = "loss 0.1234  accuracy 0.912  virtual 12.3 min"


def console(monkeypatch: pytest.MonkeyPatch, width: int | None) -> Console:
    """Stand in for standard error: a terminal so wide, or none."""
    made = Console(file=io.StringIO(), force_terminal=width is not None, width=width, soft_wrap=True, highlight=False)
    monkeypatch.setattr(progress, "err", made)
    return made


def lines_of(view: progress.Runs, width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(view.bars.get_renderable())
    printed = screen.file
    assert isinstance(printed, io.StringIO)
    return printed.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_counter_and_remaining_time_stay_in_sight(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    console(monkeypatch, width)
    view = progress.Runs(12, quiet=False)
    for number in range(5):
        view.begin(f"panel {number} and a label that is much longer than what there is room for")
        for done in (0, 100, 300):
            view.show(done, 300, LATEST)
    whole, unit = lines_of(view, width)
    assert "all runs" in whole
    assert "5/12" in whole
    assert "300/300" in unit
    assert "0:00:00" in unit
    assert "panel 4" in unit
    assert (LATEST in unit) == (width == 120)


def test_one_run_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    console(monkeypatch, 80)
    view = progress.Runs(1, quiet=False)
    view.begin("tiny")
    view.show(1, 4)
    (line,) = lines_of(view, 80)
    assert "1/4" in line


def test_without_a_terminal_a_line_is_logged_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 10))
    monkeypatch.setattr("atoll.cli.run_progress.time.monotonic", lambda: float(next(seconds)))
    written = console(monkeypatch, None).file
    assert isinstance(written, io.StringIO)
    with progress.Runs(12, quiet=False) as view:
        view.begin("FedAvg")
        for done in range(1, 11):
            view.show(done, 100, LATEST)
    logged = written.getvalue().splitlines()
    assert [line.partition(":")[2].split()[0] for line in logged] == ["1", "4", "7", "10"]  # each takes 10 seconds
    assert logged[0].startswith("run 1 of 12, FedAvg: 1 of 100 events, about ")
    assert logged[0].endswith(LATEST)


def test_quiet_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, None):
        written = console(monkeypatch, width).file
        with progress.Runs(2, quiet=True, log_seconds=0) as view:
            view.begin("FedAvg")
            view.show(1, 2, LATEST)
        assert isinstance(written, io.StringIO)
        assert written.getvalue() == ""


def sweep_of(view: sweep_progress._View, *steps: tuple[str, News]) -> None:
    for name, news in steps:
        view.show(Job(name, Settings(), Path(name)), news)


def running(done: int, accuracy: float = 0.5) -> News:
    return News("running", done, 300, {"test_accuracy": accuracy})


def test_a_sweep_has_two_lines_one_of_which_stays_with_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    console(monkeypatch, 80)
    view = sweep_progress._View("test_accuracy", quiet=False, verbose=False, total=12, done=3)
    sweep_of(view, ("lr=0.1", running(30)), ("lr=0.2", running(150)), ("lr=0.1", running(60)))
    whole, unit = lines_of(view.runs, 80)
    assert "3/12" in whole
    assert ("lr=0.1" in unit, "60/300" in unit) == (True, True)
    assert view.runs.title == "run 4 of 12, lr=0.1"
    sweep_of(view, ("lr=0.1", News("finished")), ("lr=0.2", running(180)))
    whole, unit = lines_of(view.runs, 80)
    assert "4/12" in whole
    assert ("lr=0.2" in unit, "180/300" in unit) == (True, True)
    assert view.runs.title == "run 5 of 12, lr=0.2"
    assert all(len(line) <= 80 for line in (whole, unit))


def test_a_sweep_logs_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 10))
    monkeypatch.setattr("atoll.cli.run_progress.time.monotonic", lambda: float(next(seconds)))
    logged = console(monkeypatch, None)
    written = logged.file
    monkeypatch.setattr(sweep_progress, "err", logged)
    assert isinstance(written, io.StringIO)
    view = sweep_progress._View("test_accuracy", quiet=False, verbose=False, total=2, done=0)
    sweep_of(view, *(("lr=0.1", running(done)) for done in range(1, 6)), ("lr=0.1", News("finished")))
    first, *_, last = written.getvalue().splitlines()
    assert first.startswith("run 1 of 2, lr=0.1: ")
    assert first.endswith("test_accuracy 0.5")
    assert last == "lr=0.1: finished  test_accuracy 0.5"


def test_the_executor_is_told_on_demand(atoll: Command) -> None:
    assert atoll("run", "tiny.toml", "--out", "a").err == ""
    assert "run.executor = 'auto': " in atoll("run", "tiny.toml", "--out", "b", "-v").err
    done = atoll("run", "tiny.toml", "--out", "c", "--quiet")
    assert done.err == ""
    assert "Results: c" in done.out


def test_what_is_said_in_a_terminal_breaks_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    written = console(monkeypatch, 40).file
    progress.Runs(1, quiet=True).say(
        "run.executor = 'auto': cores (client by client; a client takes 24.2 ms, all 0.5 s)"
    )
    assert isinstance(written, io.StringIO)
    broken = written.getvalue().splitlines()
    assert len(broken) > 2
    assert all(len(line) <= 40 for line in broken)
    assert "".join(broken).count("client") == 3


@pytest.mark.parametrize("words", [["--version"], ["-h"], ["run", "-h"], ["data", "list", "-h"]])
def test_short_words(atoll: Command, words: list[str]) -> None:
    assert atoll(*words).succeeded()


def test_help_is_in_the_order_of_work_and_as_wide_as_the_terminal(
    atoll: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = atoll("--help").succeeded().partition("Commands:")[2].splitlines()
    names = [line.split()[0] for line in listed if line.strip()]
    assert names == list(common._ORDER)
    assert atoll("recipes").succeeded().splitlines()[1].split()[0] == "quickstart"
    for width in (60, 80, 110):
        monkeypatch.setenv("COLUMNS", str(width))
        for words in (["run"], ["sweep"], ["fleet", "node"], ["reproduce"]):
            printed = atoll(*words, "--help").succeeded()
            assert "\\" not in printed
            assert "[required]" in printed or words == ["fleet", "node"]
            longest = max(map(len, printed.splitlines()))
            assert width - 30 < longest <= width


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_commands_breaks_no_sentence_off(
    atoll: Command, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in ([], ["data"], ["fleet"], ["recipes"]):
        listed = atoll(*words, "--help").succeeded().partition("Commands:")[2].strip().splitlines()
        assert all(line.startswith("  ") for line in listed[1:])
        assert not [line for line in listed if "..." in line or len(line) > width]
        assert sum(line.endswith(".") for line in listed) >= len(listed) - 1  # one has two lines at 80
    assert "  report     Compare runs" in atoll("--help").succeeded()


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("local.l", "local.lr="),
        ("rou", "rounds="),
        ("method.name=fedb", "method.name=fedbuff"),
        ("data.partition=d", "data.partition=dirichlet"),
        ("clustering.time", "clustering.time_limit="),
    ],
)
def test_settings_are_completed(begun: str, offered: str) -> None:
    found = options._complete_setting(begun)
    assert offered in found
    assert all(word.startswith(begun) for word in found)
