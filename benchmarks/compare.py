"""Race this checkout against another commit: how a change affected training speed.

Run:  python benchmarks/compare.py [--base REV] [--only TEXT] [--rounds 9] [--quick]

The other commit is checked out into a temporary folder, and both trees' executors train the same rounds in turn, beside
one plain loop. For each the median over rounds of "before over now" is printed with a 95 % interval (bootstrap over
rounds); above 1, the change made it faster.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from bench import CASES, Case, Contender, own_contenders, quick, race
from bench.contenders import MATRIX_PRODUCT, PLAIN
from bench.racing import RaceResult, command_of

from atoll.support.errors import AtollError

ROOT = Path(__file__).parents[1]
DRAWS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cases with TEXT in their name")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of each")
    parser.add_argument("--quick", action="store_true", help="fewer local steps")
    given = parser.parse_args()
    cases = [quick(case) if given.quick else case for case in CASES if given.only in case.name]
    if not cases or given.rounds < 2:
        parser.error(f"--only {given.only} --rounds {given.rounds}: needs a case of {names(CASES)} and 2 rounds")
    with checkout(given.base) as before:
        for case in cases:
            print(f"{case.name}: times as fast as {given.base}", flush=True)
            for line in compare(case, before, given.rounds):
                print(line, flush=True)


def names(cases: Sequence[Case]) -> str:
    """Return the names of cases in one line."""
    return "; ".join(case.name for case in cases)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Give a folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "before"
        try:
            git("worktree", "add", "--quiet", "--detach", str(place), revision)
        except subprocess.CalledProcessError as error:
            sys.exit(f"--base {revision}: {error.stderr.strip()}")
        try:
            yield place
        finally:
            git("worktree", "remove", "--force", str(place))


def git(*words: str) -> None:
    """Run git in this repository."""
    subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True)


def compare(case: Case, before: Path, rounds: int) -> Iterator[str]:
    """Yield a line for each executor."""
    ours = [each.name for each in own_contenders(case) if each.name not in (PLAIN, MATRIX_PRODUCT)]
    trees = {"now": ROOT, "before": before}
    contenders = [
        *(each for each in own_contenders(case) if each.name in (PLAIN, MATRIX_PRODUCT)),
        *(
            Contender(f"{name}, {when}", command_in(tree, name), {"PYTHONPATH": str(tree / "src")})
            for name in ours
            for when, tree in trees.items()
        ),
    ]
    results = {result.contender: result for result in race(case, contenders, rounds)}
    for name in ours:
        now, then = (results[f"{name}, {when}"] for when in trees)
        yield f"  {name}: {now.failure or then.failure or ratio(now, then)}"


def command_in(tree: Path, name: str) -> tuple[str, ...]:
    """Return the command that starts a tree's contender; before 2026-11-25 the race was part of the package."""
    own = tree / "src/atoll/bench"
    return (sys.executable, "-m", "atoll.bench", name) if own.exists() else command_of(name, tree / "benchmarks")


def ratio(now: RaceResult, then: RaceResult) -> str:
    """Return the median of the rounds' ratios with its interval, in words."""
    ratios = np.array(then.seconds) / np.array(now.seconds)
    drawn = np.random.default_rng(0).choice(ratios, (DRAWS, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    verdict = "no difference seen" if low <= 1 <= high else "faster" if low > 1 else "slower"
    return f"{np.median(ratios):.2f} ({low:.2f} to {high:.2f}), {verdict}"


if __name__ == "__main__":
    try:
        main()
    except AtollError as error:
        sys.exit(f"error: {error}")
