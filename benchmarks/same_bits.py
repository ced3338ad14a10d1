"""Compare this checkout's results with another commit's, bit by bit: every recipe, and every method on every executor.

Run:  python benchmarks/same_bits.py [--base REV] [--only TEXT] [--keep FILE]

Both trees carry out the same commands. Of each run, its rows (but for wall times) and its last checkpoint are compared;
a line a command says `equal` or what differs. `--keep` saves the base's results in a file, and takes them from there.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from compare import ROOT, checkout
from safetensors.torch import load_file
from torch import Tensor, uint8

METHODS = [
    *("fedcluster", "fedavg", "centralized", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "scaffold", "fednova"),
    *("feddyn", "fedasync", "fedbuff", "fedat", "ifca", "cfl-mgd", "cfl", "flhc", "fedgroup", "fesem", "pacfl", "bcd"),
    *("ditto", "local", "fedbn", "fedper", "fedrep"),
]
SMALL = ("--set", "rounds=3", "--set", "data.clients=20", "--set", "clustering.clusters=4")
OWN_SETTINGS = {
    "ifca": ("--set", "method.clusters=3"),
    "cfl-mgd": ("--set", "method.clusters=3"),
    "pacfl": ("--set", "method.clusters=3"),
    "fesem": ("--set", "method.clusters=3"),
    "flhc": ("--set", "method.clusters=3"),
    "fedgroup": ("--set", "method.clusters=3"),
    "fedbn": ("--set", "model.name=cnn"),
}
FEATURES = {
    "int8": ("travel.codec=int8",),
    "topk, feedback": ("travel.codec=topk", "travel.feedback=true"),
    "int8, stochastic": ("travel.codec=int8", "travel.rounding=stochastic"),
    "attack": ("faults.attackers=0.2",),
    "label flip": ("faults.attackers=0.2", "faults.attack=label-flip"),
    "attack, median": ("faults.attackers=0.2", "method.combine=median"),
    "attack, int8": ("faults.attackers=0.2", "travel.codec=int8"),
    "collusion": ("faults.attackers=0.2", "faults.attack=little-is-enough", "faults.tolerate=true"),
    "dropout": ("faults.dropout=0.3",),
    "trusted server": ("privacy.trust=server", "privacy.clip=1.0", "privacy.noise=0.5", "privacy.delta=1e-3"),
    "trusted server, int8": (
        "privacy.trust=server", "privacy.clip=1.0", "privacy.noise=0.5", "privacy.delta=1e-3", "travel.codec=int8",
        "travel.feedback=false",
    ),
    "no trust": ("privacy.trust=client", "privacy.clip=1.0", "privacy.noise=0.1", "privacy.delta=1e-3"),
    "no trust, topk": (
        "privacy.trust=client", "privacy.clip=1.0", "privacy.noise=0.1", "privacy.delta=1e-3", "travel.codec=topk",
        "travel.feedback=false",
    ),
    "secure sums": ("secure.sums=true", "secure.least_nodes=2", "method.fraction=1.0"),
    "layers stay": ('model.travels=["1*"]',),
    "layers stay, topk": ('model.travels=["1*"]', "travel.codec=topk"),
    "drawn by losses": ("method.select=greatest-loss",),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the commands with TEXT in their name")
    parser.add_argument("--keep", type=Path, help="the file that holds the base's results")
    given = parser.parse_args()
    wanted = {name: words for name, words in commands() if given.only in name}
    kept = json.loads(given.keep.read_text()) if given.keep and given.keep.exists() else {}
    if missing := {name: words for name, words in wanted.items() if name not in kept}:
        with checkout(given.base) as before:
            for name, words in missing.items():
                kept[name] = carry_out(before, words)
                if given.keep:
                    given.keep.write_text(json.dumps(kept, indent=1))
    different = 0
    for name, words in wanted.items():
        now, then = carry_out(ROOT, words), kept[name]
        different += now != then
        told = "equal" if now == then else f"differs: {difference(then, now)}"
        print(f"{name}: {told} ({len(now)} files)", flush=True)
    sys.exit(bool(different))


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each command's name and words."""
    for recipe in sorted(path.stem for path in (ROOT / "src/atoll/recipes").glob("*.toml")):
        scale = (
            () if "[scales.tiny" not in (ROOT / f"src/atoll/recipes/{recipe}.toml").read_text() else ("--scale", "tiny")
        )
        yield f"recipe {recipe}", (recipe, *scale)
    for executor in ("serial", "cores", "ray"):
        set_executor = ("--set", f"run.executor={executor}", "--set", "run.workers=2")
        for method in METHODS if executor != "ray" else METHODS[:10:3]:
            named = ("--only", "FedAvg", "--set", f"method.name={method}", *OWN_SETTINGS.get(method, ()))
            yield f"{method}, {executor}", ("quickstart", *named, *SMALL, *set_executor)
        for feature, settings in FEATURES.items():
            changes = [word for change in settings for word in ("--set", change)]
            yield f"{feature}, {executor}", ("quickstart", *SMALL, *changes, *set_executor)


def carry_out(tree: Path, words: Sequence[str]) -> dict[str, str]:
    """Return a digest of every file that counts, or what the command said when it failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "atoll", "run", *words, "--quiet", "--out", "out"]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            return {"failed": " ".join(done.stderr.split())[-300:]}
        return {str(path.relative_to(folder)): digest(path) for path in files_in(Path(folder) / "out")}


def files_in(folder: Path) -> list[Path]:
    """Return the files of runs that must be equal."""
    return sorted(path for kind in ("metrics.jsonl", "*.safetensors") for path in folder.rglob(kind))


def digest(path: Path) -> str:
    """Return a checksum of a file: of tensors, whatever their names; of rows without what a clock measured."""
    if path.suffix != ".jsonl":
        tensors = (hashlib.sha256(raw(each)).hexdigest() for each in load_file(path).values())
        return hashlib.sha256("".join(sorted(tensors)).encode()).hexdigest()[:16]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    timed = [{key: value for key, value in row.items() if key != "wall_time"} for row in rows]
    return hashlib.sha256(json.dumps(timed, sort_keys=True).encode()).hexdigest()[:16]


def raw(tensor: Tensor) -> bytes:
    """Return a tensor's type, shape and bytes."""
    return (
        f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.contiguous().reshape(-1).view(uint8).numpy().tobytes()
    )


def difference(before: dict[str, str], now: dict[str, str]) -> str:
    """Return the names of the files that differ, or why a command failed."""
    if "failed" in before or "failed" in now:
        return f"{before.get('failed', 'ran')} / {now.get('failed', 'ran')}"
    return ", ".join(name for name in sorted(before | now) if before.get(name) != now.get(name))


if __name__ == "__main__":
    main()
