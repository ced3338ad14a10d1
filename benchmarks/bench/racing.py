"""Races: contenders train the same rounds in turn, each in its own process."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any, Self

from atoll.support.errors import RunError
from bench.contenders import MATRIX_PRODUCT, PLAIN, ROUNDED, contenders_for
from bench.flops import MATRIX_PRODUCT_FLOPS, count_flops
from bench.forking import CAN_FORK, Fork
from bench.peak_memory import can_measure, peak_bytes
from bench.work import Case

_BENCHMARKS = Path(__file__).parents[1]
PATIENCE_SECONDS = 900.0  # for one round, or for start and warm-up
_PARTING_SECONDS = 15.0  # for a process to end when there is nothing more to do
_TOLERANCE = 2.0  # ratio between how far contenders' models move, which start from different weights


@dataclass(frozen=True)
class Contender:
    """A process to race: the command that starts it, to which the case is appended as JSON; empty for our own forks."""

    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RaceResult:
    """A contender's result in a case.

    Attributes:
        case: name of the case.
        contender: name of the contender.
        seconds: of each timed round.
        speed: how many times as fast as the plain loop: the median over pairs of adjacent rounds.
        gflops: operations per second of the median round, in 1e9.
        share: the same, relative to the matrix product in this race.
        memory_bytes: peak memory of its processes; None if it cannot be measured.
        failure: why it has no figures; empty if it has.
    """

    case: str
    contender: str
    seconds: tuple[float, ...] = ()
    speed: float | None = None
    gflops: float | None = None
    share: float | None = None
    memory_bytes: int | None = None
    failure: str = ""


def own_contenders(case: Case, bfloat16: bool = False) -> list[Contender]:
    """Return the plain loop, the executors that fit the case, the matrix product and, if asked, bfloat16 workers."""
    names = [*contenders_for(case), *([ROUNDED] if bfloat16 else []), MATRIX_PRODUCT]
    return [Contender(name) if CAN_FORK else Contender(name, command_of(name)) for name in names]


def command_of(name: str, benchmarks: Path = _BENCHMARKS) -> tuple[str, ...]:
    """Return the command that starts one of Atoll's own contenders as a separate process."""
    return sys.executable, str(benchmarks / "contend.py"), name


def race(case: Case, contenders: Sequence[Contender], rounds: int) -> list[RaceResult]:
    """Return each contender's result; the matrix product's comes last.

    All processes start at once and warm up with one untimed round. Then they train one round each, in turn, `rounds`
    times; the order shifts by one each time. If a contender fails, its result gives the reason, and the others
    continue.
    """
    with ExitStack() as stack:
        racers = [stack.enter_context(Racer(each, case)) for each in contenders]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.warm_up()
        plain, product = (_needed(racers, name) for name in (PLAIN, MATRIX_PRODUCT))
        for racer in racers:
            racer.check_work(plain)
        for i in range(rounds):
            shift = i % len(racers)
            for racer in [*racers[shift:], *racers[:shift]]:
                racer.run_round()
        for racer in racers:
            racer.measure_memory()
    plain, product = (_needed(racers, name) for name in (PLAIN, MATRIX_PRODUCT))
    return [_result(case, racer, plain, product) for racer in sorted(racers, key=lambda racer: racer is product)]


def _needed(racers: Sequence["Racer"], name: str) -> "Racer":
    racer = next(racer for racer in racers if racer.contender.name == name)
    if racer.failure:
        raise RunError(f"the benchmark's {name} failed ({racer.failure})")
    return racer


def _result(case: Case, racer: "Racer", plain: "Racer", product: "Racer") -> RaceResult:
    name = racer.contender.name
    if racer.failure:
        return RaceResult(case.name, name, failure=racer.failure)
    flops = MATRIX_PRODUCT_FLOPS if racer is product else count_flops(case)
    gflops = flops / statistics.median(racer.seconds) / 1e9
    best = MATRIX_PRODUCT_FLOPS / statistics.median(product.seconds) / 1e9
    ratios = [theirs / ours for theirs, ours in zip(plain.seconds, racer.seconds, strict=True)]
    speed = None if racer is product else statistics.median(ratios)
    return RaceResult(case.name, name, tuple(racer.seconds), speed, gflops, gflops / best, racer.memory_bytes)


class Racer:
    """A contender's process. After a failure, which is kept in `failure`, it does nothing more."""

    def __init__(self, contender: Contender, case: Case) -> None:
        self.contender = contender
        self.case = case
        self.seconds: list[float] = []
        self.memory_bytes: int | None = None
        self.failure = ""
        self._ready: dict[str, float] = {}
        self._lines: Queue[str] = Queue()
        self._process: subprocess.Popen[str] | Fork | None = None
        self._listener: Thread | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def start(self) -> None:
        """Start the process, which begins its first round as soon as it has loaded everything."""
        try:
            self._process = self._begin()
        except OSError as error:
            self.failure = f"{self.contender.command[0]}: {error.strerror}"
            return
        self._listener = Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._listener.start()

    def _begin(self) -> "subprocess.Popen[str] | Fork":
        if not self.contender.command:
            return Fork(self.contender.name, self.case, self._errors)
        return subprocess.Popen(
            [*self.contender.command, json.dumps(self.case.told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **self.contender.environment},
            text=True,
            start_new_session=True,  # so that all its processes can be killed, and Ctrl-C reaches only us
        )

    def warm_up(self) -> None:
        """Wait for the end of the first round."""
        self._ready = self._hear("ready")

    def check_work(self, plain: "Racer") -> None:
        """Fail a contender whose model differs from the plain loop's, or has not moved about as far."""
        if self.failure or not self._ready["parameters"]:
            return
        ours, theirs = self._ready, plain._ready
        if ours["parameters"] != theirs["parameters"]:
            self.failure = f"its model has {ours['parameters']} parameters, not {theirs['parameters']}"
        elif not 1 / _TOLERANCE < ours["moved"] / theirs["moved"] < _TOLERANCE:
            moved = f"its model moved by {ours['moved']:.3g} in a round"
            self.failure = f"{moved}, the plain loop's by {theirs['moved']:.3g}"
        if self.failure:
            self._end()

    def run_round(self) -> None:
        """Train one timed round."""
        self._ask()
        seconds = self._hear("seconds")
        if not self.failure:
            self.seconds.append(seconds)

    def measure_memory(self) -> None:
        """Measure how much memory the rounds took."""
        if self._process and can_measure():
            self.memory_bytes = peak_bytes(self._process.pid)

    def _ask(self) -> None:
        if self.failure or not self._process or not self._process.stdin:
            return
        try:
            self._process.stdin.write("round\n")
            self._process.stdin.flush()
        except OSError:
            self._fail("it ended before the last round")

    def _hear(self, key: str) -> Any:
        """Wait for a message and return its value."""
        if self.failure:
            return {}
        try:
            line = self._lines.get(timeout=PATIENCE_SECONDS)
        except Empty:
            self._fail(f"no answer for {PATIENCE_SECONDS:g} s")
            return {}
        if not line:
            self._fail("it ended without an answer")
            return {}
        return json.loads(line)[key]

    def _listen(self, answers: IO[str] | None) -> None:
        """Collect the messages of the process; an empty one means that it has closed its output."""
        for line in answers or ():
            if line.startswith(('{"ready"', '{"seconds"')):  # libraries print other things
                self._lines.put(line)
        self._lines.put("")

    def _fail(self, what: str) -> None:
        """End the process and note why, with its last error or line on standard error."""
        self.failure = what
        self._end()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        if lines:
            self.failure = f"{what}: {next((each for each in reversed(lines) if 'Error: ' in each), lines[-1])}"

    def _end(self) -> None:
        """Close its input, which ends it; kill what has not ended after a while."""
        if not self._process:
            return
        process, self._process = self._process, None
        with suppress(OSError):
            if process.stdin:
                process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1 if self.failure else _PARTING_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._listener and process.stdout:
            self._listener.join(_PARTING_SECONDS)
            process.stdout.close()
