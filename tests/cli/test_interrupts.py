"""Ctrl-C and SIGTERM: the first waits for the event's end where there is one, the second does not."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pydantic_core import SchemaError

from atoll.benchmark import contestants
from atoll.cli import main
from atoll.cli.interrupts import Interrupts
from tests.killing import fork, wait_for

SITE = """
rounds = 100_000

[data]
clients = 10

[model]
name = "linear"

[local]
steps = 1

[clustering]
method = "comaw"
clusters = 4

[network]
seconds_per_sample = [0.01, 0.03]

[method]
name = "hierarchical"

[run]
executor = "serial"
evaluate_every = 1000
"""
"""Longer than any test waits."""
START = """
import signal, sys
from atoll.__main__ import main

class Loading:
    def find_spec(self, name, *_):
        if name == "atoll.cli":
            print(flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start this in the background
sys.meta_path.insert(0, Loading())
sys.exit(main())
"""
"""The command, which prints a line as soon as it is loaded: before, an interrupt is Python's own."""


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_asks_and_the_second_stops(number: int, code: int) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        interrupts.is_patient = True
        send(number)
        assert interrupts.number == number
        with pytest.raises(KeyboardInterrupt):
            send(number)
    assert interrupts.exit_code == code
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_anything_to_wait_for_the_first_stops(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        send(number)
    assert interrupts.exit_code == 128 + number


def test_a_forked_worker_goes_on() -> None:
    def work() -> None:
        for _ in range(3):
            send(signal.SIGTERM)

    with Interrupts():
        child = fork(work)
        assert wait_for(child) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_with_nothing_to_resume_says_that_it_was_interrupted(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contestants, "find_contestants", lambda _: send(number))
    assert main(["benchmark", "chem97"]) == code
    assert capfd.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_a_library_makes_of_an_interrupt_is_an_interrupt(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        try:
            send(number)
        except KeyboardInterrupt as error:
            raise SchemaError("Error building a validator: KeyboardInterrupt") from error

    monkeypatch.setattr(contestants, "find_contestants", interrupted)
    assert main(["benchmark", "chem97"]) == code
    assert capfd.readouterr().err == "error: interrupted\n"


def test_an_error_that_no_interrupt_caused_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise SchemaError("wrong")

    monkeypatch.setattr(contestants, "find_contestants", fail)
    with pytest.raises(SchemaError, match="wrong"):
        main(["benchmark", "chem97"])


def test_in_another_thread_signals_are_left_alone() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


NAMING = """
class Name:
    def __set_name__(self, *_):
        os.kill(os.getpid(), signal.SIGINT)

class Named:
    name = Name()
"""
"""What Python 3.11 makes a RuntimeError of."""


@pytest.mark.parametrize("interrupt", ["os.kill(os.getpid(), signal.SIGINT)\n", NAMING])
def test_a_command_that_is_still_loaded_ends_quietly(interrupt: str, tmp_path: Path) -> None:
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell may start this in the background
    (tmp_path / "typer.py").write_text(f"import os, signal\n{heard}\n{interrupt}")
    command, surroundings = [sys.executable, "-m", "atoll", "recipes"], os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("run",), ("plan", "--seconds", "60", "--target", "0.9")])
@pytest.mark.parametrize("moment", range(20))
def test_ctrl_c_in_the_first_seconds_is_no_traceback(words: tuple[str, ...], moment: int, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    command = [sys.executable, "-c", START, words[0], "site.toml", *words[1:], "--out", "out"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.15 * moment)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=120)
    assert child.returncode == 130, told
    assert "Traceback" not in told
