"""One run on real processes, disturbed until it ends: what is done to it, and how long it takes to go on."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import IO, Any

import numpy as np

from atoll.fleet.flower.superlink import free_port
from atoll.fleet.folder.init import FleetPlan, init_fleet
from atoll.fleet.node.shards import write_shards
from tests.chaos.forked import ForkedNode
from tests.chaos.proxy import Proxy
from tests.chaos.runs import WIRE, Kind, judge, write
from tests.cli.fleets import Machines
from tests.cli.test_fleet_survival import superlink_of

# Besides the deadline: Flower may take so long to see that a node is gone; processes start slowly on a busy machine.
MOST_STILL = 90 + 120
# The share of a run's time in which it is disturbed; where it starts slowly, so many seconds at least.
DISTURBED, LEAST_SECONDS = 0.7, 20.0
PROGRAM = (sys.executable, "-m", "tests.chaos.victim")
# A server that is to die where it writes gets this far at most, in steps on files.
_SERVER_STEPS, _NODE_STEPS = 120, 24


@dataclass
class Fault:
    """What was done, when (seconds since the run's start), and after how many seconds the next event was over."""

    kind: str
    at: float
    seconds: float | None = None


@dataclass
class Disturbed(Machines):
    """A fleet whose processes die where they are told to, and whose network and disk are not to be relied on.

    With `forks` a node's first process is forked from this one, and only those that follow import all anew.
    """

    draw: random.Random = field(default_factory=random.Random)
    forks: bool = False
    faults: list[Fault] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _fate: dict[str, list[str]] = field(default_factory=dict)
    _seen: int = 0
    _moved: float = field(default_factory=time.monotonic)

    def note(self, kind: str) -> None:
        """Count a fault."""
        self.faults.append(Fault(kind, round(time.monotonic() - self.began, 2)))

    def doom(self, name: str) -> None:
        """Let a process die at a step on a file when it is started next."""
        folder = self.folder / "run" if name == "server" else self.configuration.folder / "nodes" / name / "state"
        steps = _SERVER_STEPS if name == "server" else _NODE_STEPS
        self._fate[name] = ["--die-in", str(folder), "--die-at", str(self.draw.randrange(steps))]
        self._fate[name] += ["--kept", f"{self.draw.random():.2f}"]

    def revive(self) -> None:
        """Start again what has ended, as systemd would; an end that nobody asked for is noted with its last words."""
        for name, child in list(self.children.items()):
            code = child.poll()
            if code is None or (name == "server" and code == 0):
                continue
            if code == -signal.SIGKILL and "--die-at" in child.args:  # type: ignore[operator]
                self.note("server at a file step" if name == "server" else "node at a file step")
            elif code != -signal.SIGKILL:
                self.ended.append(f"{name}: {' '.join(self.said(name).split()[-30:])}")
            self.start(name)

    def start(self, name: str) -> None:
        """Start a server or node."""
        if name == "server":
            self.start_server("--resume")
        else:
            self.start_node(int(name.removeprefix("node-")))

    def events(self) -> int:
        """Return how many events are over."""
        return _lines(self.folder / "run" / "happened.jsonl") - 1

    def watch(self) -> float:
        """Return for how long no event was over; whatever was done before the last one is healed."""
        before, self._seen = self._seen, self.events()
        if self._seen > before:  # a server that goes on from a checkpoint carries out some once more
            if before and all(fault.seconds is not None for fault in self.faults):
                self.calm.append(round(time.monotonic() - self._moved, 2))
            self._moved = time.monotonic()
            for fault in self.faults:
                if fault.seconds is None:
                    fault.seconds = round(self._moved - self.began - fault.at, 2)
        return time.monotonic() - self._moved

    def _program(self, name: str) -> list[str]:
        options = self._fate.pop(name, [])
        if name != "server" and not self.forks:
            options += ["--apart", f"{self.draw.uniform(-140, 140):.0f}"]
            self.note("clock apart")
        return [*PROGRAM, *options]

    def _spawn(self, name: str, words: list[str], log: IO[bytes]) -> Any:
        if name == "server" or not self.forks or name in self.children:
            return super()._spawn(name, words, log)
        return ForkedNode(words[len(PROGRAM) :], self.folder, log.fileno())


@contextlib.contextmanager
def disk() -> Iterator[tuple[Path, bool]]:
    """Yield a small file system of its own, and True; where none can be mounted a folder, and False."""
    place = Path(tempfile.mkdtemp(prefix="atoll-chaos-"))
    words = ["mount", "-t", "tmpfs", "-o", "size=256m", "atoll-chaos", str(place)]
    is_own = not subprocess.run(words, capture_output=True).returncode
    try:
        yield place, is_own
    finally:
        if is_own:
            subprocess.run(["umount", "-l", str(place)], check=True)
            place.rmdir()


def disturb(kind: Kind, draw: random.Random, seconds: float, keep: Path | None, most: float = inf) -> dict[str, Any]:
    """Carry a run out that takes about so many seconds, its start included; return what came of it until it ended or
    was interrupted.

    It is disturbed from its second event on, until `DISTURBED` of its time is over, or so many faults are borne where
    they come one by one; then it may end.
    """
    with disk() as (folder, has_disk), contextlib.ExitStack() as held:
        experiment, file, words = write(kind, folder)
        plan = FleetPlan(kind.nodes, "127.0.0.1", listen="127.0.0.1", port=free_port())
        configuration = init_fleet(folder / "fleet", plan)
        fleet = Disturbed(folder, file, tuple(words), configuration, draw=draw, forks=kind.one_by_one)
        proxy = None if kind.one_by_one else held.enter_context(Proxy(plan.port))
        if proxy:
            for path in (folder / "fleet" / "nodes").glob("*/node.toml"):
                path.write_text(path.read_text().replace(f":{plan.port}", f":{proxy.port}"))
        write_shards(experiment, folder / "data")
        held.callback(_end, fleet)
        schedule = experiment.method.schedule
        cohorts = [event.cohort.tolist() for event in schedule.events] if schedule else []
        try:
            still, stopped = _carry_out(fleet, proxy, _Plan(kind, draw, seconds, has_disk, cohorts, most)), False
        except (KeyboardInterrupt, SystemExit):
            still, stopped = 0.0, True
        found: dict[str, Any] = {"run": kind.name, "seconds": round(time.monotonic() - fleet.began, 1)}
        found |= {"hung": still > kind.deadline + MOST_STILL, "stopped": stopped}
        found["events"] = fleet.events()
        if not found["hung"] and not stopped:
            found |= judge(kind, experiment, folder)
        found |= {"ended by themselves": fleet.ended, "tracebacks": _tracebacks(folder)}
        if keep is not None:
            _keep(folder, keep)
        return found | {"calm": fleet.calm, "faults": [asdict(fault) for fault in fleet.faults]}


@dataclass
class _Plan:
    """What is done next, and when."""

    kind: Kind
    draw: random.Random
    seconds: float
    has_disk: bool
    cohorts: list[list[int]]
    most: float
    began: float = field(default_factory=time.monotonic)
    until: float | None = None
    next_wire: float = 0.0
    next_process: float = 0.0
    healing: list[tuple[float, Any]] = field(default_factory=list)

    def step(self, fleet: Disturbed, proxy: Proxy | None) -> None:
        """Do what is due, and undo it."""
        now = time.monotonic()
        for due in [each for each in self.healing if each[0] < now]:
            self.healing.remove(due)
            due[1]()
        if fleet.events() < 2:
            return
        self.until = self.until or max(self.began + DISTURBED * self.seconds, now + LEAST_SECONDS)
        if now > self.until:
            return
        if proxy is None:
            self._one(fleet, now)
            return
        if now > self.next_wire:
            self.next_wire = now + self.draw.uniform(0.2, 1.6)
            self._wire(fleet, proxy)
        if now > self.next_process and not self.healing:
            self.next_process = now + self.draw.uniform(6, 12)
            self._process(self.draw.choice(self.kind.faults), fleet, proxy)

    def _one(self, fleet: Disturbed, now: float) -> None:
        """Kill a process at any moment after the first event since the last death."""
        if len(fleet.faults) >= self.most or any(fault.seconds is None for fault in fleet.faults):
            self.next_process = 0.0
        elif not self.next_process:
            self.next_process = now + self.draw.uniform(0, 2 * (np.median(fleet.calm) if fleet.calm else 2.0))
        elif now > self.next_process:
            self._process(self.draw.choice(self.kind.faults), fleet, None)

    def _wire(self, fleet: Disturbed, proxy: Proxy) -> None:
        fault = self.draw.choice(WIRE)
        if fault == "cut" and proxy.cut():
            fleet.note("cut")
        elif fault == "corrupted":
            proxy.corrupt(self.draw, lambda: fleet.note("corrupted"))
        elif fault == "delayed":
            proxy.delay(self.draw.uniform(0.1, 3.0), lambda: fleet.note("delayed"))

    def _process(self, fault: str, fleet: Disturbed, proxy: Proxy | None) -> None:
        node = self._draw_node(fault, fleet)
        victim = "server" if fault.startswith("server") else node
        if victim not in fleet.children or fleet.children[victim].poll() is not None:
            return
        if fault.endswith("file step"):  # it is started to die; the kill that this takes counts too
            fleet.doom(victim)
        if fault == "superlink killed":
            link = superlink_of(fleet.children["server"].pid)
            if link is not None:
                fleet.note(fault)
                os.kill(link, signal.SIGKILL)
        elif fault.endswith(("file step", "killed")):
            fleet.note(fault.replace("at a file step", "killed"))
            fleet.kill(victim)
        elif fault == "network away" and proxy:
            fleet.note(fault)
            proxy.away(True)
            self._heal(lambda: proxy.away(False))
        elif fault == "disk full" and self.has_disk:
            fleet.note(fault)
            self._heal(_fill(fleet.folder / "ballast").unlink)

    def _draw_node(self, fault: str, fleet: Disturbed) -> str:
        """Draw a node; where faults come one by one, whether it is at work matters."""
        here = self.cohorts[fleet.events()] if fleet.events() < len(self.cohorts) else []
        those = [node for node in range(self.kind.nodes) if (node in here) != fault.startswith("idle")]
        return f"node-{self.draw.choice(those if self.kind.one_by_one and those else range(self.kind.nodes))}"

    def _heal(self, heal: Any) -> None:
        self.healing.append((time.monotonic() + self.draw.uniform(2, 8), heal))


def _carry_out(fleet: Disturbed, proxy: Proxy | None, plan: _Plan) -> float:
    """Disturb the run until it is over; return for how long nothing had moved then."""
    fleet.start_server()
    nodes = plan.kind.nodes
    for number in range(nodes - plan.kind.has_late_node):
        fleet.start_node(number)
    while (still := fleet.watch()) < plan.kind.deadline + MOST_STILL:
        if fleet.children["server"].poll() == 0:
            return still
        fleet.revive()
        if plan.kind.has_late_node and len(fleet.children) == nodes and fleet.rows() > 4:
            fleet.note("joins late")
            fleet.start_node(nodes - 1)
        plan.step(fleet, proxy)
        time.sleep(0.1)
    return still


def _fill(path: Path) -> Path:
    """Write a file until the disk is full."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(2**12)):
            pass
    return path


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 1


def _end(fleet: Disturbed) -> None:
    for child in fleet.children.values():
        child.kill()  # the superlink ends with the server
        child.wait()


def _tracebacks(folder: Path) -> list[str]:
    """Return the last lines of what should have been one sentence."""
    found = []
    for path in folder.glob("*.log"):
        for part in path.read_text(errors="replace").split("Traceback (most recent call last)")[1:]:
            lines = [line for line in part.splitlines() if line and not line.startswith((" ", ":"))]
            found.append(f"{path.stem}: {lines[0] if lines else ''}")
    return found


def _keep(folder: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("*.log"), *folder.glob("fleet/state/*.log"), *folder.glob("run/*.jsonl")]:
        (into / path.name).write_bytes(path.read_bytes())
