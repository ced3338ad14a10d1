"""Ctrl-C and SIGTERM: the first waits for the event's end where there is one, the second does not."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from atoll.benchmark import contestants
from atoll.cli import main
from atoll.cli.interrupts import Interrupts
from tests.killing import fork, wait_for


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


def test_in_another_thread_signals_are_left_alone() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_command_that_is_still_loaded_ends_quietly(tmp_path: Path) -> None:
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell may start this in the background
    (tmp_path / "typer.py").write_text(f"import os, signal\n{heard}\nos.kill(os.getpid(), signal.SIGINT)\n")
    command, surroundings = [sys.executable, "-m", "atoll", "recipes"], os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
