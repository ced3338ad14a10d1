"""How fast this machine trains: a race between executors, a plain loop and a matrix product."""

from dataclasses import replace

from bench.bench_tables import as_markdown, as_rich
from bench.flops import count_flops
from bench.racing import Contender, RaceResult, own_contenders, race
from bench.work import Case

__all__ = [
    "CASES",
    "QUICK_ROUNDS",
    "ROUNDS",
    "Case",
    "Contender",
    "RaceResult",
    "as_markdown",
    "as_rich",
    "count_flops",
    "own_contenders",
    "quick",
    "race",
]

CASES = (
    Case("mlp", 10),
    Case("mlp", 100),
    Case("cnn", 10),
    Case("alexnet", 10),
    # CenAsy with T'' = 1, T' = 10, and the average number of concurrent clusters in `feduc-mnist`.
    Case("lr", 6, steps=1, batch_size=64, cohorts=10, clusters=6),
)
"""The cases that `benchmarks/executors.py` measures."""

ROUNDS, QUICK_ROUNDS = 5, 3
"""Timed rounds of each contender."""

_QUICK_STEPS = 4  # also the number of consecutive cohorts
_QUICK_STEPS_OF_THE_LARGEST = 2  # a step of AlexNet takes as long as ten of the CNN


def quick(case: Case) -> Case:
    """Return a case with fewer local steps and fewer consecutive cohorts."""
    steps = _QUICK_STEPS_OF_THE_LARGEST if case.model == "alexnet" else _QUICK_STEPS
    return replace(case, steps=min(case.steps, steps), cohorts=min(case.cohorts, _QUICK_STEPS))
