"""A child process that ends with its standard input."""

import subprocess
import sys

_FAILS = """
import threading
from atoll.support.process import end_with_input
threading.Thread(target=end_with_input, daemon=True).start()
threading.Event().wait(0.5)  # until the thread reads
raise SystemExit("why it failed")
"""


def test_a_child_that_fails_by_itself_says_only_why() -> None:
    with subprocess.Popen([sys.executable, "-c", _FAILS], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        told = child.stderr.read()
    assert (child.returncode, told) == (1, b"why it failed\n")


def test_a_child_ends_with_its_input() -> None:
    words = "from atoll.support.process import end_with_input; end_with_input(); print('goes on')"
    child = subprocess.run([sys.executable, "-c", words], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert (child.returncode, child.stdout) == (0, b"")
