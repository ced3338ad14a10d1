"""A plugin of pytest that prints where the time goes, by file: `make durations`, or `pytest -p tests.durations`."""

import os
from collections import defaultdict
from collections.abc import Iterator

import pytest

LONGEST = 40  # files and tests that are shown
BEGAN = pytest.StashKey[float]()


def spent() -> float:
    """Return the processor's seconds that this process and its children that have ended have taken."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when a test begins."""
    item.stash[BEGAN] = spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Let a test's last report say how long the processor was busy, which others on the machine do not change."""
    if call.when == "teardown":
        item.user_properties.append(("cpu", spent() - item.stash.get(BEGAN, spent())))
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files that took longest, and the tests."""
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for report in (each for kind in terminalreporter.stats.values() for each in kind):
        if isinstance(report, pytest.TestReport):
            cpu = sum(value for name, value in report.user_properties if name == "cpu" and isinstance(value, float))
            ended = report.when == "teardown"
            for row in (files[report.nodeid.partition("::")[0]], tests[report.nodeid]):
                row[0] += report.duration
                row[1] += cpu * ended
            files[report.nodeid.partition("::")[0]][2] += ended
    terminalreporter.section("where the time goes")
    total = [sum(row[i] for row in files.values()) for i in range(3)]
    terminalreporter.write_line(f"{total[0]:7.1f} s, {total[1]:7.1f} s of the processor, {total[2]:.0f} tests in all")
    for kind in (files, tests):
        terminalreporter.write_line("      s  s cpu")
        for name, row in sorted(kind.items(), key=lambda item: -item[1][0])[:LONGEST]:
            count = f" ({row[2]:.0f} tests)" if len(row) > 2 else ""
            terminalreporter.write_line(f"{row[0]:7.1f} {row[1]:6.1f}  {name}{count}")
