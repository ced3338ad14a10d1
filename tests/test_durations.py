"""`make durations` says where the time goes."""

import re
import subprocess
import sys

import pytest

from tests.cli.pages import ROOT


@pytest.mark.more
def test_each_file_is_shown_with_its_seconds_and_tests() -> None:
    """Also where workers run the tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "tests.durations", "tests/support/test_lock.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    (total,) = re.findall(
        r"^ +([\d.]+) s, +([\d.]+) s of the processor, (\d+) tests in all$", done.stdout, re.MULTILINE
    )
    (file,) = re.findall(
        r"^ +([\d.]+) +([\d.]+)  tests/support/test_lock.py \((\d+) tests\)$", done.stdout, re.MULTILINE
    )
    assert file == total
    assert min(map(float, file)) > 0
    assert "tests/support/test_lock.py::test_two_runs_in_one_folder" in done.stdout
