"""Partition pools with Atoll and with Flower Datasets, draw by draw, and test whether the distributions agree.

Run:  python benchmarks/partitions.py --envs DIR [--out FILE] [--draws 500]

Flower Datasets is in a virtual environment that this command makes below --envs and keeps. Each draw deals a shuffled
pool of 2,000 samples of 10 classes out to 10 clients, with the same alpha and sizes in both. Of each draw four numbers
are kept: one client's size, how many classes it has, and the entropy of its classes (the client changes from draw to
draw), and the deviation of all sizes. So the numbers of different draws are independent, and two-sample
Kolmogorov-Smirnov tests are valid. Power is how often such a test, on samples of as many draws, tells Atoll's partition
from one that differs as the table says. Prints a Markdown table, and writes it to --out. The exit code is 1 if a test
rejects at 1 % after Holm's correction.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import entropy, ks_2samp
from speed import PEERS, Peer, python_of

from atoll import partitions
from atoll.data.dealing.skewed import some_labels
from atoll.support.files import write_atomically

CLIENTS, CLASSES, SAMPLES = 10, 10, 2000
LEVEL = 0.01
RESAMPLED = 200  # tests that power is estimated by
VERSION = "0.6.1"
ENVIRONMENT = Peer("partitions", ((f"flwr-datasets=={VERSION}",),), "partition_flower.py")
NUMBERS = ("size of a client", "classes of a client", "entropy of its classes", "deviation of sizes")

Counts = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One partition in both libraries.

    Attributes:
        name: as tables have it.
        ours: Atoll's.
        partitioner: Flower's class.
        settings: what it is made with.
        other: Atoll's with a difference that a test should find.
        differs: the difference in words.
        seeded: whether Flower's class takes a seed.
    """

    name: str
    ours: Callable[..., Any]
    partitioner: str
    settings: dict[str, Any]
    other: Callable[..., Any]
    differs: str
    seeded: bool = True


def cases() -> list[Case]:
    known: dict[str, Any] = {"clients": CLIENTS}
    classed = known | {"classes": CLASSES}
    told = {"num_partitions": CLIENTS, "partition_by": "label"}
    found = [
        Case(
            "iid", partial(partitions.iid, **known), "IidPartitioner", {"num_partitions": CLIENTS},
            partial(partitions.dirichlet, **classed, alpha=100.0), "dirichlet, alpha 100", seeded=False,
        )
    ]  # fmt: skip
    for alpha in (0.1, 0.5, 5.0):
        given = told | {"alpha": alpha, "min_partition_size": 1, "self_balancing": False}
        found.append(
            Case(
                f"dirichlet, alpha {alpha:g}", partial(partitions.dirichlet, **classed, alpha=alpha),
                "DirichletPartitioner", given,
                partial(partitions.dirichlet, **classed, alpha=1.3 * alpha), "alpha 1.3 times as large",
            )
        )  # fmt: skip
    paths = told | {"num_classes_per_partition": 3, "class_assignment_mode": "first-deterministic"}
    some = partial(some_labels, **classed)
    found.append(
        Case(
            "some-labels, 3", partial(some, labels_per_client=3), "PathologicalPartitioner", paths,
            partial(some, labels_per_client=4), "4 labels",
        )
    )  # fmt: skip
    cut = partial(partitions.shards, **known)
    found.append(
        Case(
            "shards, 2", partial(cut, shards_per_client=2), "ShardPartitioner", told | {"num_shards_per_partition": 2},
            partial(cut, shards_per_client=3), "3 shards",
        )
    )  # fmt: skip
    return found


def pools(draws: int) -> npt.NDArray[np.int64]:
    """Return the labels of the pools, [draws, SAMPLES]: classes as large as each other, in random order."""
    labels = np.repeat(np.arange(CLASSES), SAMPLES // CLASSES)
    return np.array([np.random.default_rng([1, draw]).permutation(labels) for draw in range(draws)])


def deal_out(rule: Callable[..., Any], labels: npt.NDArray[np.int64], salt: int) -> Counts:
    """Return the samples of each class that each client gets, [draws, clients, classes]."""
    dealt = [
        [np.bincount(own[part], minlength=CLASSES) for part in rule(own, rng=np.random.default_rng([salt, draw]))]
        for draw, own in enumerate(labels)
    ]
    return np.array(dealt)


def numbers_of(counts: Counts) -> npt.NDArray[np.float64]:
    """Return the four numbers of each draw, [draws, numbers]."""
    draws = np.arange(len(counts))
    sizes, own = counts.sum(axis=2), counts[draws, draws % CLIENTS]
    spread = entropy(own, axis=1)
    return np.column_stack([own.sum(axis=1), (own > 0).sum(axis=1), spread, sizes.std(axis=1)])


def pvalues(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return each number's p-value; 1 if all values are the same."""
    rounded = np.round(one, 9), np.round(other, 9)  # entropies of the same counts may differ in their last bit
    return np.array(
        [ks_2samp(mine, theirs, method="asymp").pvalue for mine, theirs in zip(rounded[0].T, rounded[1].T, strict=True)]
    )


def power(case: Case, labels: npt.NDArray[np.int64], ours: npt.NDArray[np.float64], level: float) -> float:
    """Return how often one of the tests, at this level, finds the difference, in draws with replacement."""
    other = numbers_of(deal_out(case.other, labels, salt=3))
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(RESAMPLED):
        one, two = (each[rng.integers(len(each), size=len(each))] for each in (ours, other))
        found += bool((pvalues(one, two) < level).any())
    return found / RESAMPLED


def flowers(chosen: list[Case], labels: npt.NDArray[np.int64], envs: Path) -> list[Counts]:
    """Partition the pools with Flower Datasets, in its environment, which is made if need be."""
    python, folder = python_of(ENVIRONMENT, envs), envs / ENVIRONMENT.name
    if not python.is_file():
        venv.create(folder, with_pip=True)
        for words in ENVIRONMENT.installs:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)
    with tempfile.TemporaryDirectory() as made:
        for number, case in enumerate(chosen):
            told = {"partitioner": case.partitioner, "settings": case.settings, "seeded": case.seeded}
            np.savez(Path(made) / f"{number}.case.npz", labels=labels, told=json.dumps(told))
        subprocess.run([str(python), str(PEERS.resolve() / ENVIRONMENT.runner), made], check=True)
        return [np.load(Path(made) / f"{number}.answer.npz")["counts"] for number in range(len(chosen))]


def holm(found: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return p-values with Holm's correction for as many tests."""
    order = np.argsort(found)
    stepped = np.maximum.accumulate(found[order] * np.arange(len(found), 0, -1))
    corrected = np.empty_like(found)
    corrected[order] = np.minimum(stepped, 1)
    return corrected


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=Path, required=True, help="folder of the virtual environment")
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--draws", type=int, default=500)
    given = parser.parse_args()
    chosen, labels = cases(), pools(given.draws)
    theirs = flowers(chosen, labels, given.envs)
    ours = [numbers_of(deal_out(case.ours, labels, salt=2)) for case in chosen]
    found = np.array([pvalues(mine, numbers_of(counts)) for mine, counts in zip(ours, theirs, strict=True)])
    corrected = holm(found.ravel()).reshape(found.shape)
    lines = [
        f"| Partition | Flower Datasets {VERSION} | Least p of four tests | With Holm's correction | Power | Against |",
        "|---|---|---|---|---|---|",
    ]
    for case, mine, p, held in zip(chosen, ours, found, corrected, strict=True):
        strength = power(case, labels, mine, LEVEL / found.size)
        least = f"{p.min():.3f} ({NUMBERS[int(p.argmin())]})"
        told = f"{case.name} | `{case.partitioner}` | {least} | {held.min():.2f} | {strength:.0%} | {case.differs}"
        lines.append(f"| {told} |")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if given.out:
        write_atomically(given.out, text.encode())
    return int((corrected < LEVEL).any())


if __name__ == "__main__":
    sys.exit(main())
