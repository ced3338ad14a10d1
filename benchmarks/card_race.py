"""The race of `speed.py --device`: Atoll and other libraries on a GPU, in few minutes, in as many calls.

Every case's results are written as it ends, and a case that is in the file already is not run again. All contenders of
a case start at once and warm up; then they train their rounds in turn. A contender that is not ready in time, or whose
round takes too long, is ended, and the others continue.
"""

import compileall
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Timer
from typing import Any

import torch
from bench import Case, Contender
from bench.contenders import PLAIN
from bench.peak_memory import descendants
from bench.racing import Racer
from gpu import device_name, products_rate
from torch.utils.flop_counter import FlopCounterMode

from atoll.support.environment import describe_environment
from atoll.support.files import write_atomically

PEERS = Path(__file__).parent / "peers"
ROOT = Path(__file__).parents[1]
GRACE_SECONDS = 0.5  # to hear what a contender has answered already
SIDE, QUICK_SIDE = 8192, 256  # of the matrix product

CASES = (
    *(Case(model, clients) for clients in (10, 100) for model in ("mlp", "cnn", "alexnet")),
    # pfl's CIFAR-10 benchmark: 50 of 1,000 users a round, one epoch over their 50 samples
    Case("pfl CIFAR-10 without dropout", 50, steps=5, batch_size=10, lr=0.1),
    # PFLlib's first example: 20 clients share MNIST's 52,500 training samples
    Case("PFLlib MNIST", 20, steps=262, batch_size=10, lr=0.005, shape=(1, 28, 28)),
    # FLUTE's FEMNIST experiment: 10 clients a round, of 200 samples on average
    Case("FLUTE FEMNIST without dropout", 10, steps=10, batch_size=20, lr=0.1, shape=(1, 28, 28), classes=62),
    # BlazeFL's benchmarks: 100 clients, five epochs over their 500 samples; of ResNet-18 one epoch over 250
    Case("BlazeFL CNN", 100, steps=50, batch_size=50, epochs=5),
    Case("BlazeFL ResNet-18 with group norm", 100, steps=5, batch_size=50),
    *(Case(model, 1000) for model in ("mlp", "cnn")),
)


QUICK_CLIENTS, QUICK_STEPS = 5, 2  # pfl's processes each need a client


def card_cases(dropout: bool = False) -> list[Case]:
    """Return the cases, the most telling first."""
    return [replace(each, model=each.model.removesuffix(" without dropout")) if dropout else each for each in CASES]


def in_short(case: Case) -> Case:
    """Return a case with few clients and steps, to try the race out."""
    return replace(case, clients=min(case.clients, QUICK_CLIENTS), steps=QUICK_STEPS * case.epochs)


@dataclass(frozen=True)
class Entry:
    """A contender on a device: a script of `peers`, and how it is started.

    Attributes:
        name: its name in tables.
        runner: the script.
        words: its arguments before the case.
        site: the folder of packages, below `--sites`, that it imports from before all others.
        launch: what comes between the interpreter and the script.
        environment: variables that are set for it.
        models: those that it has; all if empty.
        cards_only: whether it is only for GPUs.
    """

    name: str
    runner: str
    words: tuple[str, ...] = ()
    site: str = ""
    launch: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    cards_only: bool = False


# Standalone ones find ports of their own, so that several can be there at once.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ENTRIES = (
    Entry(PLAIN, "run_plain.py"),
    Entry("torch.func", "run_torch_func.py"),
    Entry("Atoll, stacked", "run_atoll.py", ("stacked",)),
    Entry("Atoll, stacked, CUDA graphs", "run_atoll.py", ("stacked, CUDA graphs",), cards_only=True),
    Entry("Atoll, stacked, CUDA graphs, four streams", "run_atoll.py", ("stacked, four streams",), cards_only=True),
    Entry("Atoll, serial", "run_atoll.py", ("serial",)),
    Entry("pfl, 1 process", "run_pfl.py", site="pfl"),
    *(Entry(f"pfl, {n} processes", "run_pfl.py", (), "pfl", (*TORCHRUN, str(n))) for n in (2, 3, 4, 5)),
    Entry(
        "Flower, 5 processes",
        "run_flower.py",
        site="flower",
        environment={
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_worker_niceness": "0",  # Ray's workers would give way to all others while these start
        },
    ),
    Entry("BlazeFL, threads", "run_blazefl.py", site="blazefl"),
    Entry("PFLlib", "run_pfllib.py", site="pfllib"),
    Entry(
        "FedJAX",
        "run_fedjax.py",
        site="fedjax",
        environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_TRACEBACK_FILTERING": "off"},
        models=("mlp", "cnn", "alexnet"),
    ),
)


@dataclass(frozen=True)
class Limits:
    """What a case may take.

    Attributes:
        rounds: timed rounds, at most.
        start_seconds: until all contenders have started and trained the first round.
        round_seconds: for one contender's round.
        case_seconds: of rounds in turn, after which no further turn begins.
    """

    rounds: int = 5
    start_seconds: float = 40.0
    round_seconds: float = 12.0
    case_seconds: float = 40.0


def contenders_of(case: Case, sites: Path, without: Sequence[str] = ()) -> list[Contender]:
    """Return those that can train a case, without those whose names contain one of these words."""
    fitting = (entry for entry in ENTRIES if not entry.models or case.model in entry.models)
    on_it = (entry for entry in fitting if not entry.cards_only or case.device == "cuda")
    left = (e for e in on_it if e.name == PLAIN or not any(word.lower() in e.name.lower() for word in without))
    return [contender_of(entry, sites) for entry in left]


def contender_of(entry: Entry, sites: Path) -> Contender:
    folder = sites.resolve() / entry.site if entry.site else None
    paths = [str(folder or PEERS.parent), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PFLLIB": str(folder)} | entry.environment
    return Contender(entry.name, (sys.executable, *entry.launch, str(PEERS / entry.runner), *entry.words), environment)


def race_case(case: Case, contenders: Sequence[Contender], limits: Limits) -> list[dict[str, Any]]:
    """Return each contender's result, in order; failures and cut-offs are results too."""
    there, started, over = set(_below(os.getpid())), set[int](), dict[Racer, str]()
    with ExitStack() as stack:
        racers = [stack.enter_context(Racer(each, case)) for each in contenders]
        try:
            for _ in _raced(racers, limits, over):
                started |= set(_below(os.getpid()))
        finally:  # all is measured, or interrupted, and some take long to part
            _kill((started | set(_below(os.getpid()))) - there)
    plain = _plain_of(racers)
    return [_result(racer, plain, over.get(racer, "")) for racer in racers]


def _raced(racers: Sequence[Racer], limits: Limits, over: dict[Racer, str]) -> Iterator[None]:
    """Start, warm up and train in turn, with a pause before every step; note which racers went over a limit."""
    began = time.monotonic()
    for racer in racers:
        racer.start()
    for racer in racers:
        yield
        left = max(GRACE_SECONDS, began + limits.start_seconds - time.monotonic())
        with _ending(racer, left, f"start and first round over {limits.start_seconds:g} s", over):
            racer.warm_up()
    for racer in racers:
        if not _plain_of(racers).failure:
            racer.check_work(_plain_of(racers))
    began = time.monotonic()  # else one that is not ready in time would leave a single round to the others
    for turn in range(limits.rounds):
        if turn and time.monotonic() > began + limits.case_seconds:
            break
        shift = turn % len(racers)
        for racer in [*racers[shift:], *racers[:shift]]:
            yield
            with _ending(racer, limits.round_seconds, f"over {limits.round_seconds:g} s", over):
                racer.run_round()
    for racer in racers:
        racer.measure_memory()


@contextmanager
def _ending(racer: Racer, seconds: float, what: str, over: dict[Racer, str]) -> Iterator[None]:
    """End a racer with all its processes if it takes longer than this, and note what it went over."""
    process = racer._process
    if not isinstance(process, subprocess.Popen) or racer.failure:
        yield
        return

    def end() -> None:
        if process.poll() is None:
            over[racer] = what
        _kill({*_below(process.pid), process.pid})

    timer = Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _plain_of(racers: Sequence[Racer]) -> Racer:
    return next(racer for racer in racers if racer.contender.name == PLAIN)


def _result(racer: Racer, plain: Racer, over: str) -> dict[str, Any]:
    seconds = racer.seconds
    pairs = list(zip(plain.seconds, seconds, strict=False))  # one of them may have been ended in the middle
    speed = statistics.median(theirs / own for theirs, own in pairs) if pairs else None
    gflops = _flops(racer.case) / statistics.median(seconds) / 1e9 if seconds else None
    return {
        "contender": racer.contender.name,
        "seconds": seconds,
        "speed": speed,
        "gflops": gflops,
        "memory_bytes": racer.memory_bytes,
        "work": racer._ready,
        "over": over,
        "failure": "" if over else explained(racer.failure),
    }


def explained(failure: str) -> str:
    """Return why a contender did not train, with what to do where its library is not there."""
    return f"{failure}; peers/pack.py fetches it into --sites" if "No module named" in failure else failure


def _flops(case: Case) -> int:
    """Return the operations of a round, as `count_flops` does for Atoll's own models."""
    sys.path.insert(0, str(PEERS))
    try:
        from torch_models import MODELS
    finally:
        sys.path.remove(str(PEERS))
    with torch.device("meta"):
        module, inputs = MODELS[case.model](), torch.empty(case.batch_size, *case.shape)
    with FlopCounterMode(display=False) as counter:
        module(inputs).sum().backward()
    return int(counter.get_total_flops()) * case.steps * case.clients


def _below(pid: int) -> list[int]:
    return descendants(pid)[1:] if Path("/proc/self/stat").is_file() else []


def _kill(pids: set[int]) -> None:
    """End processes that may have ended: contenders', and those in sessions of their own, such as a cluster's."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


class Record:
    """The file of results, written anew after every case; the same beside it as a table."""

    def __init__(self, file: Path, start: dict[str, Any]) -> None:
        """Go on with a file, or begin one with this content."""
        self.file = file
        self.content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else start | {"cases": []}

    def has(self, case: Case) -> bool:
        """Return whether the case is there, with a time of the plain loop's; a case of other steps is another one."""
        return any(
            each["settings"] == settings_of(case)
            and any(result["contender"] == PLAIN and result["seconds"] for result in each["results"])
            for each in self.content["cases"]
        )

    def add(self, case: Case, results: list[dict[str, Any]], seconds: float) -> None:
        """Add a case's results, in place of those that came to nothing, and write the files."""
        one = {"case": case.name, "settings": settings_of(case), "wall_seconds": seconds, "results": results}
        others = [each for each in self.content["cases"] if each["settings"] != one["settings"]]
        self.content["cases"] = [*others, one]
        write_atomically(self.file, (json.dumps(self.content, indent=1) + "\n").encode())
        write_atomically(self.file.with_suffix(".md"), as_table(self.content).encode())


def settings_of(case: Case) -> dict[str, Any]:
    """Return a case's fields as a file gives them back, with lists."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(case)))
    return found


def as_table(content: dict[str, Any]) -> str:
    """Return all results as one Markdown table."""
    lines = [
        "| case | | seconds | times the plain loop's speed | GFLOP/s | peak memory | |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for each in content["cases"]:
        settings = each["settings"]
        title = f"{each['case']}, {settings['steps']} steps of {settings['batch_size']}, {settings['precision']}"
        lines += [f"| {title} | {' | '.join(cells(result))} |" for result in each["results"]]
    return "\n".join(lines) + "\n"


def cells(result: dict[str, Any]) -> list[str]:
    """Return one row: the contender, its figures, and why there are not more."""
    memory = result["memory_bytes"]
    return [
        result["contender"],
        f"{statistics.median(result['seconds']):.3g}" if result["seconds"] else "",
        "" if result["speed"] is None else f"{result['speed']:.2f}",
        "" if result["gflops"] is None else f"{result['gflops']:,.0f}",
        "" if memory is None else f"{memory / 1e6:.0f} MB",
        result["over"] or (f"skipped: {result['failure'].replace('|', '/')}" if result["failure"] else ""),
    ]


def race_on(
    device: str,
    cases: Sequence[Case],
    precision: str,
    sites: Path,
    out: Path,
    minutes: float,
    limits: Limits,
    without: Sequence[str] = (),
) -> None:
    """Race the cases that are not in the file yet, as long as minutes are left, and print each one's results."""
    until = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    compileall.compile_dir(sites, quiet=2, workers=0)  # once, and not by each process when it starts
    record = Record(out / f"speed-{device}.json", describe(device, precision))
    if record.content["device"] != (name := device_name(device)):
        raise SystemExit(f"--out {out}: has figures of {record.content['device']}, not of {name}; name another folder")
    for case in (replace(case, device=device, precision=precision) for case in cases):
        if record.has(case):
            print(f"{case.name}: there already; another --out races it again", flush=True)
        elif time.monotonic() > until:
            print(f"{case.name}: no time was left", flush=True)
        else:
            began = time.monotonic()
            results = race_case(case, contenders_of(case, sites, without), limits)
            record.add(case, results, time.monotonic() - began)
            print(f"{case.name}, {time.monotonic() - began:.0f} s:", flush=True)
            for result in results:
                print("  " + ", ".join(filter(None, cells(result))), flush=True)


def describe(device: str, precision: str) -> dict[str, Any]:
    """Return what a reader must know about the machine."""
    rate = products_rate(device, "tf32" if precision == "tf32" else "float32", SIDE if device == "cuda" else QUICK_SIDE)
    environment, name = describe_environment(seed=0), device_name(device)
    return {"environment": environment, "device": name, "precision": precision, "matrix_product_gflops": rate}
