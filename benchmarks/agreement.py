"""Run methods in Atoll and in other libraries from equal starts, data and batches, and show how far the models differ.

Run:  python benchmarks/agreement.py --envs DIR [--out FILE] [--only TEXT]

Libraries: FedLab, CFLA, Flower and APPFL, in one virtual environment that this command makes below --envs and keeps;
NumPy and PyTorch are those of the interpreter that runs it. One that cannot be installed is skipped with the reason.
All runs are in double precision. Where a library departs from the paper, the comparison is made twice:
with the library as it is, and as corrected by its script in `peers`. Prints a Markdown table, and writes it to --out.
"""

import argparse
import subprocess
import tempfile
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from agreement_cases import BLOCK, CLOCK, EPOCHS, EVEN, MANY, RULE, UNEVEN, UNEVEN_BLOCKS, run_atoll, write_case
from speed import PEERS, Peer, python_of

from atoll import (
    Method,
    Population,
    bulyan,
    fedadagrad,
    fedadam,
    fedasync,
    fedavg,
    fedavgm,
    fedbuff,
    feddyn,
    fedgroup,
    fednova,
    fedyogi,
    fesem,
    flhc,
    ifca,
    krum,
    median,
    multi_krum,
    scaffold,
    trimmed_mean,
)
from atoll.support.files import write_atomically

ROUNDS = 10
PAPERS_FEDDYN = "h takes W from the sum of all models once, and the regulariser has no gradient"
PAPERS_FEDADAM = "Adam's correction of the bias, and v from 0"


@dataclass(frozen=True)
class Comparison:
    """One method in Atoll and in a library.

    Attributes:
        name: the method, as the library's script knows it.
        library: whose.
        method: Atoll's.
        settings: what the script is told.
        why: what the library does otherwise; empty where it should agree.
        outcome: whether the models agree, differ, or the library fails.
        population: the clients.
        copies: how often each client takes part in the library, which counts all alike; None: once.
    """

    name: str
    library: str
    method: Method
    settings: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    outcome: Literal["agrees", "differs", "fails"] = "agrees"
    population: Population = EVEN
    copies: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Found:
    """The largest difference of any parameter after any event, or the library's error, or why it was skipped."""

    comparison: Comparison
    difference: float | None = None
    error: str = ""
    skipped: str = ""


@dataclass(frozen=True)
class Library:
    """What pip installs in turn, and the script that replays cases."""

    name: str
    version: str
    installs: tuple[tuple[str, ...], ...]
    script: str


# Without what they ask for and these parts do not use: torchvision, Globus, Ray and other versions of PyTorch.
LIBRARIES = {
    library.name: library
    for library in (
        Library(
            "FedLab",
            "1.3.0",
            (("tqdm", "pandas", "pynvml", "scikit-learn"), ("--no-deps", "fedlab==1.3.0")),
            "agree_fedlab.py",
        ),
        Library("CFLA", "1.0.4", (("tqdm", "scikit-learn"), ("--no-deps", "cfla==1.0.4")), "agree_cfla.py"),
        Library("Flower", "1.41.0", (("flwr==1.41.0",),), "agree_flower.py"),
        Library("APPFL", "1.12.0", (("omegaconf",), ("--no-deps", "appfl==1.12.0")), "agree_appfl.py"),
    )
}
ENVIRONMENT = Peer("agreement", (), "")


def comparisons() -> list[Comparison]:
    """Return all comparisons."""
    return [*with_fedlab(), *with_cfla(), *with_flower(), *with_appfl()]


def with_fedlab() -> Iterator[Comparison]:
    yield Comparison("fedavg", "FedLab", fedavg(EVEN, RULE, ROUNDS, 0.5))
    yield Comparison("fedprox", "FedLab", fedavg(EVEN, replace(RULE, proximal=0.3), ROUNDS, 0.5), {"mu": 0.3})
    yield Comparison("scaffold", "FedLab", scaffold(EVEN, RULE, ROUNDS, 0.8, 0.5), {"lr_g": 0.8})
    nova = fednova(UNEVEN, replace(RULE, batch_size=BLOCK, epochs=EPOCHS), ROUNDS, 1.0)
    yield Comparison("fednova", "FedLab", nova, population=UNEVEN, copies=UNEVEN_BLOCKS)
    dyn = feddyn(EVEN, RULE, ROUNDS, 0.1, 0.5)
    yield Comparison("feddyn", "FedLab", dyn, {"alpha": 0.1, "put_right": False}, PAPERS_FEDDYN, "differs")
    yield Comparison("feddyn", "FedLab", dyn, {"alpha": 0.1, "put_right": True}, PAPERS_FEDDYN)
    never = "it drops all clusters' models (`payload[1:0]`), so none is ever picked"
    yield Comparison("ifca", "FedLab", full_ifca(), {"put_right": True}, never, "fails")


def with_cfla() -> Iterator[Comparison]:
    yield Comparison("ifca", "CFLA", full_ifca())
    whole = replace(RULE, batch_size="full")
    ward: dict[str, Any] = {"n_clusters": 3, "distance_threshold": None, "clustering_metric": None}
    number = flhc(UNEVEN, whole, ROUNDS, 3, 3, "ward", fraction=1.0)
    yield Comparison("flhc", "CFLA", number, {"warmup": 3, "told": ward}, population=UNEVEN)
    near = {"distance_threshold": 0.4, "clustering_metric": "cosine"}
    threshold = flhc(UNEVEN, whole, ROUNDS, 10, 3, "average", "cosine", 0.4, fraction=1.0)
    yield Comparison("flhc", "CFLA", threshold, {"warmup": 3, "told": near}, population=UNEVEN)
    centres, told = fesem(UNEVEN, whole, ROUNDS, 4), {"clusters": 4}
    why = "all centres begin as one model, so every client stays with the first"
    yield Comparison("fesem", "CFLA", centres, told | {"put_right": False}, why, "differs", UNEVEN)
    yield Comparison("fesem", "CFLA", centres, told | {"put_right": True}, why, population=UNEVEN)
    groups, told = fedgroup(EVEN, whole, ROUNDS, 2, 5, 1.0), {"groups": 2}
    why = "groups are found by the cosines of whole models, not by the directions of updates"
    yield Comparison("fedgroup", "CFLA", groups, told | {"put_right": False}, why, "differs")
    yield Comparison("fedgroup", "CFLA", groups, told | {"put_right": True}, why)


def full_ifca() -> Method:
    return ifca(EVEN, replace(RULE, batch_size="full"), ROUNDS, 2, fraction=1.0)


def with_flower() -> Iterator[Comparison]:
    plain = fedavg(UNEVEN, RULE, ROUNDS, 0.5)
    yield Comparison("fedavg", "Flower", plain, population=UNEVEN)
    heavy = {"server_lr": 0.9, "momentum": 0.8}
    moved = fedavgm(UNEVEN, RULE, ROUNDS, 0.9, 0.8, 0.5)
    yield Comparison("fedavgm", "Flower", moved, heavy, population=UNEVEN)
    adaptive: dict[str, Any] = {"eta": 0.05, "beta_1": 0.9, "beta_2": 0.99, "tau": 0.01}
    adagrad = fedadagrad(UNEVEN, RULE, ROUNDS, 0.05, 0.0, 0.01, 0.5)
    adam = fedadam(UNEVEN, RULE, ROUNDS, 0.05, 0.9, 0.99, 0.01, 0.5)
    yogi = fedyogi(UNEVEN, RULE, ROUNDS, 0.05, 0.9, 0.99, 0.01, 0.5)
    v = "v from 0, where the paper asks for tau^2 at least"
    for name, method, why in (("fedadagrad", adagrad, v), ("fedadam", adam, PAPERS_FEDADAM), ("fedyogi", yogi, v)):
        yield Comparison(name, "Flower", method, adaptive | {"put_right": False}, why, "differs", UNEVEN)
        yield Comparison(name, "Flower", method, adaptive | {"put_right": True}, why, population=UNEVEN)
    alike = fedavg(EVEN, RULE, ROUNDS, 0.5)  # Flower's robust rules know no weights
    yield Comparison("krum", "Flower", replace(alike, combine=krum(1)), {"byzantine": 1})
    yield Comparison("multi-krum", "Flower", replace(alike, combine=multi_krum(1, 3)), {"byzantine": 1, "keep": 3})
    # Of two models that have each other as only neighbour Flower takes the first; with f = 3 Krum counts two and more.
    all_of_many = fedavg(MANY, RULE, ROUNDS, 1.0)
    bulyans, why = replace(all_of_many, combine=bulyan(3)), "it does not tell Krum how many models to keep"
    yield Comparison("bulyan", "Flower", bulyans, {"byzantine": 3, "put_right": False}, why, "fails", MANY)
    yield Comparison("bulyan", "Flower", bulyans, {"byzantine": 3, "put_right": True}, why, population=MANY)
    yield Comparison("median", "Flower", replace(alike, combine=median()))
    yield Comparison("trimmed-mean", "Flower", replace(alike, combine=trimmed_mean(0.2)), {"trim": 0.2})


def with_appfl() -> Iterator[Comparison]:
    events = 3 * ROUNDS
    told: dict[str, Any] = {"alpha": 0.8, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}
    hinge = {"staleness_fn": "hinge", "staleness_fn_kwargs": {"a": 0.3, "b": 2}}
    mixed = fedasync(EVEN, RULE, CLOCK, events, 6, 0.8)
    yield Comparison("fedasync", "APPFL", mixed, {"told": told})
    late = fedasync(EVEN, RULE, CLOCK, events, 6, 0.8, "hinge", hinge_after=2, hinge_slope=0.3)
    yield Comparison("fedasync", "APPFL", late, {"told": told | hinge})
    told = told | {"num_clients": 3, "K": 3}
    buffered = fedbuff(EVEN, RULE, CLOCK, events, 6, 3, 0.8)
    why = "an update is counted from the server's model of now, not from the one that its client was sent"
    yield Comparison("fedbuff", "APPFL", buffered, {"told": told, "put_right": False}, why, "differs")
    yield Comparison("fedbuff", "APPFL", buffered, {"told": told, "put_right": True}, why)


def install(envs: Path) -> dict[str, str]:
    """Make the environment unless it exists; return why each library cannot be installed, or an empty text."""
    python, folder = python_of(ENVIRONMENT, envs), envs / ENVIRONMENT.name
    if not python.is_file():
        venv.create(folder, with_pip=True)
        shown = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        purelib = Path(subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip())
        (purelib / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n", encoding="utf-8")
    return {library.name: _install(library, folder, python) for library in LIBRARIES.values()}


def _install(library: Library, folder: Path, python: Path) -> str:
    stamp = folder / f"{library.name}-{library.version}"
    for words in () if stamp.exists() else library.installs:
        command = [str(python), "-m", "pip", "install", "--quiet", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return f"pip install {' '.join(words)} failed ({errors[-1] if errors else done.returncode})"
    stamp.touch()
    return ""


def compare(library: Library, chosen: Sequence[Comparison], envs: Path, reason: str = "") -> list[Found]:
    """Run a library's comparisons, all in one process of its own."""
    if reason:
        return [Found(one, skipped=reason) for one in chosen]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for number, one in enumerate(chosen):
            settings = {"method": one.name, **one.settings}
            write_case(folder / f"{number}.case.npz", one.method, one.population, settings, one.copies)
        command = [str(python_of(ENVIRONMENT, envs)), str(PEERS.resolve() / library.script), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or str(done.returncode)).splitlines()[-1]
            return [Found(one, skipped=f"{library.script} failed ({last})") for one in chosen]
        return [_read_answer(one, folder / f"{number}.answer.npz") for number, one in enumerate(chosen)]


def _read_answer(comparison: Comparison, path: Path) -> Found:
    answer = np.load(path)
    if "error" in answer:
        return Found(comparison, error=str(answer["error"]))
    ours = run_atoll(comparison.method, comparison.population)
    return Found(comparison, float(np.abs(ours - answer["models"]).max()))


def as_markdown(found: Sequence[Found]) -> str:
    """Return the table."""
    lines = [
        "| Method | Library | Largest difference | Events | What the library does otherwise |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        told = one.comparison
        result = one.skipped or one.error or f"{one.difference:.1e}"
        note = told.why and f"{told.why}{' (put right)' if told.outcome == 'agrees' else ''}"
        version = LIBRARIES[told.library].version
        events = len(told.method.schedule.events)
        lines.append(f"| {told.name} | {told.library} {version} | {result} | {events} | {note} |")
    return "\n".join(lines) + "\n"


def measure(envs: Path, only: str = "") -> list[Found]:
    """Make the environment, and run all comparisons with this in the name of their method or library."""
    reasons, chosen = (
        install(envs),
        [one for one in comparisons() if only.lower() in f"{one.name} {one.library}".lower()],
    )
    found = []
    for name, library in LIBRARIES.items():
        own = [one for one in chosen if one.library == name]
        found += compare(library, own, envs, reasons[name]) if own else []
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=Path, required=True, help="folder of the libraries' virtual environment")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--only", default="", help="only methods or libraries with this in their name")
    given = parser.parse_args()
    text = as_markdown(measure(given.envs, given.only))
    print(text, end="")
    if given.out:
        write_atomically(given.out, text.encode())


if __name__ == "__main__":
    main()
