"""Measure how fast Atoll's executors and other libraries train, in turn with the plain loop, and plot it.

Run:  python benchmarks/speed.py --envs DIR --out DIR [--only TEXT] [--without NAME] [--quick]
      python benchmarks/speed.py --device cuda --sites DIR --out DIR [--minutes 8] [--precision tf32] [--dropout]

Peers: Flower's simulation, pfl, FedLab, APPFL, BlazeFL and FedJAX, each in an environment that this command makes below
--envs and keeps; one that cannot be made, or does not run, is skipped with the reason. BlazeFL needs another Python
than Atoll, searched for on PATH. All do the same work: FedAvg on the same random data, each client 20 steps of SGD with
batches of 30 from its 600 samples. Start-up and the first round, in which libraries compile, are not counted. Writes
speed.md, speed.json and speed.png.

With --device, Atoll's stacked executor races them on a GPU (card_race.py): peers are imported from the
folders that `peers/pack.py` makes. Writes speed-DEVICE.json and speed-DEVICE.md, and goes on where it stopped.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import (
    CASES,
    QUICK_ROUNDS,
    ROUNDS,
    Case,
    Contender,
    RaceResult,
    as_markdown,
    as_rich,
    own_contenders,
    quick,
    race,
)
from bench.contenders import MATRIX_PRODUCT
from card_race import ENTRIES, Limits, card_cases, in_short, race_on
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console
from torch import cuda

from atoll.experiment.executor_choice import count_cores
from atoll.report.figures.style import BLUE, PALETTE, STYLE, WIDTH_INCHES
from atoll.report.report_files import save_figure
from atoll.support.environment import describe_environment
from atoll.support.files import write_atomically

PEERS = Path(__file__).parent / "peers"
COHORTS = [Case(model, clients) for clients in (10, 100) for model in ("mlp", "cnn", "alexnet")]
ONE_STEP = [case for case in CASES if case.steps == 1]  # Atoll alone: for the others a step is a round like any


@dataclass(frozen=True)
class Peer:
    """Another library: what pip installs for it, in turn, and how its runner is started.

    Attributes:
        name: its name in tables.
        installs: the words after `pip install`, one tuple a call.
        runner: its script below `peers`.
        launch: what comes between the interpreter and the script.
        environment: variables that are set for it.
        pythons: names of interpreters that it runs on, the best first, if not on Atoll's own.
    """

    name: str
    installs: tuple[tuple[str, ...], ...]
    runner: str
    launch: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    pythons: tuple[str, ...] = ()


TORCH = "torch==2.13.0"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", str(count_cores()))
ALL_PEERS = (
    Peer(
        "Flower", ((TORCH, "flwr[simulation]==1.41.0"),), "run_flower.py", environment={"FLWR_TELEMETRY_ENABLED": "0"}
    ),
    Peer("pfl", ((TORCH, "pfl==0.6.0"),), "run_pfl.py", launch=TORCHRUN),
    # FedLab asks for torchvision, which has no build for every PyTorch and which only its data sets use.
    Peer(
        "FedLab",
        ((TORCH, "numpy", "pandas", "pillow", "pynvml", "scikit-learn", "tqdm"), ("--no-deps", "fedlab==1.3.0")),
        "run_fedlab.py",
    ),
    Peer("APPFL", ((TORCH, "appfl==1.12.0"),), "run_appfl.py"),
    # Its threads run at the same time on a Python without the global lock only, for which this PyTorch is the last on
    # 3.13; its versions from 3 on need 3.14.
    Peer(
        "BlazeFL",
        (("torch==2.12.0", "blazefl[contrib,reproducibility]==2.0.3"),),
        "run_blazefl.py",
        pythons=("python3.13t", "python3.13", "python3.12"),
    ),
    # Newer versions of JAX have dropped functions that FedJAX calls.
    Peer("FedJAX", (("fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3"),), "run_fedjax.py"),
)


def make_environment(peer: Peer, envs: Path) -> str:
    """Make a peer's environment unless it exists and is up to date; return why it cannot be made, or an empty text."""
    folder = envs / peer.name.lower()
    stamp, wanted = folder / "installed.json", json.dumps(peer.installs)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return ""
    interpreter = find_interpreter(peer)
    if not interpreter:
        return f"needs one of {', '.join(peer.pythons)} on PATH"
    print(f"making the environment of {peer.name} in {folder}", file=sys.stderr, flush=True)
    subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
    for words in peer.installs:
        command = [str(python_of(peer, envs)), "-m", "pip", "install", "--quiet", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return f"pip install {' '.join(words)} failed ({errors[-1] if errors else done.returncode})"
    stamp.write_text(wanted, encoding="utf-8")
    return ""


def find_interpreter(peer: Peer) -> str:
    """Return a Python for a peer's environment: this one, or the first that it names; else an empty text."""
    if not peer.pythons:
        return sys.executable
    found = filter(None, map(shutil.which, peer.pythons))
    # A version manager's stand-in is on PATH for versions that it does not run.
    return next((each for each in found if not subprocess.run([each, "-c", ""], capture_output=True).returncode), "")


def python_of(peer: Peer, envs: Path) -> Path:
    folder = envs.resolve() / peer.name.lower()
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def peer_contender(peer: Peer, envs: Path) -> Contender:
    command = (str(python_of(peer, envs)), *peer.launch, str(PEERS.resolve() / peer.runner))
    return Contender(peer.name, command, peer.environment)


def measure(cases: Sequence[Case], peers: Sequence[Peer], envs: Path, rounds: int) -> list[RaceResult]:
    """Race all cases, printing each one's table when it is done."""
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)
    reasons = {peer.name: make_environment(peer, envs) for peer in peers}
    results = []
    for case in cases:
        fitting = [] if case.steps == 1 else peers
        able = [peer_contender(peer, envs) for peer in fitting if not reasons[peer.name]]
        raced = race(case, [*own_contenders(case), *able], rounds)
        raced += [
            RaceResult(case.name, peer.name, failure=reasons[peer.name]) for peer in fitting if reasons[peer.name]
        ]
        console.print(as_rich(f"{case.name}: {case.steps} steps, batch {case.batch_size}", raced))
        results += raced
    return results


def write(results: Sequence[RaceResult], out: Path) -> None:
    """Write the table, all seconds, and the figure."""
    out.mkdir(parents=True, exist_ok=True)
    failed = {f"{result.case}: {result.contender} skipped: {result.failure}" for result in results if result.failure}
    text = as_markdown(results) + "".join(f"\n{line}\n" for line in sorted(failed))
    write_atomically(out / "speed.md", text.encode())
    content = {"environment": describe_environment(seed=0), "results": [asdict(result) for result in results]}
    write_atomically(out / "speed.json", (json.dumps(content, indent=1) + "\n").encode())
    save_figure(plot(results), out / "speed")


def plot(results: Sequence[RaceResult]) -> Figure:
    """Plot each contender's speed relative to the plain loop, one panel per case."""
    shown = [result for result in results if not result.failure and result.contender != MATRIX_PRODUCT]
    cases = list(dict.fromkeys(result.case for result in shown))
    own = {contender.name for case in CASES for contender in own_contenders(case)}
    columns = min(3, len(cases))
    rows = -(-len(cases) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, 0.5 + 2.2 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for case, axes in zip(cases, panels, strict=False):
            bars = [result for result in shown if result.case == case][::-1]
            colours = [BLUE if bar.contender in own else PALETTE[1] for bar in bars]
            speeds = [bar.speed or 0.0 for bar in bars]
            drawn = axes.barh([bar.contender for bar in bars], speeds, color=colours)
            axes.bar_label(drawn, fmt="%.2f", padding=2, fontsize=7)
            axes.axvline(1, color="#888888", linewidth=0.7)
            axes.set(title=case, xlim=(0, 1.2 * max(speeds)))
        for axes in list(figure.axes)[len(cases) :]:
            axes.remove()
        figure.supxlabel("Times the plain loop's speed", fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=Path, help="folder of the peers' virtual environments")
    parser.add_argument("--out", type=Path, required=True, help="folder for speed.md, speed.json and speed.png")
    parser.add_argument("--only", default="", help="only cases with this in their name, such as 'mlp' or '10 clients'")
    parser.add_argument("--without", action="append", default=[], help="leave out a peer; repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer local steps and rounds")
    gpu = parser.add_argument_group("on a GPU")
    gpu.add_argument("--device", choices=["cuda", "cpu"], help="where to race; cpu tries the command out")
    gpu.add_argument("--sites", type=Path, default=Path("sites"), help="folder with a folder for each peer")
    gpu.add_argument("--minutes", type=float, default=8.0, help="start no further case after this many")
    gpu.add_argument("--precision", choices=["float32", "tf32"], default="float32", help="of everyone's products")
    gpu.add_argument("--dropout", action="store_true", help="with dropout, where other libraries' models have it")
    gpu.add_argument("--start-seconds", type=float, default=40.0, help="for starting and the first round")
    gpu.add_argument("--round-seconds", type=float, default=12.0, help="for a contender's round")
    given = parser.parse_args()
    if given.device:
        race_on_device(given, parser)
        return
    if not given.envs:
        parser.error("--envs: needed, unless --device says where to race")
    cases = [quick(case) if given.quick else case for case in [*COHORTS, *ONE_STEP] if given.only in case.name]
    if not cases:
        parser.error(f"--only {given.only}: no case has this in its name")
    unknown = {name.lower() for name in given.without} - {peer.name.lower() for peer in ALL_PEERS}
    if unknown:
        names = ", ".join(peer.name for peer in ALL_PEERS)
        parser.error(f"--without {', '.join(sorted(unknown))}: the peers are {names}")
    peers = [peer for peer in ALL_PEERS if peer.name.lower() not in {name.lower() for name in given.without}]
    results = measure(cases, peers, given.envs, QUICK_ROUNDS if given.quick else ROUNDS)
    write(results, given.out)


def race_on_device(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Race on a GPU what was asked for."""
    if given.device == "cuda" and not cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU here; --device cpu tries the command out")
    cases = [in_short(case) if given.quick else case for case in card_cases(given.dropout) if given.only in case.name]
    if not cases:
        parser.error(f"--only {given.only}: no case has this in its name")
    if odd := [word for word in given.without if not any(word.lower() in each.name.lower() for each in ENTRIES)]:
        parser.error(f"--without {odd[0]}: no contender has this in its name; {', '.join(e.name for e in ENTRIES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contenders are ended too
    rounds = QUICK_ROUNDS if given.quick else ROUNDS
    limits = Limits(rounds, given.start_seconds, given.round_seconds)
    race_on(given.device, cases, given.precision, given.sites, given.out, given.minutes, limits, given.without)


if __name__ == "__main__":
    main()
