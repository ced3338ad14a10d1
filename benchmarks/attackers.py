"""Print how combine rules withstand attacks, the table of docs/faults.md, from a sweep over seeds.

Run:  atoll sweep attackers --scale small --over seed=0..4 --out sweeps/attackers
      python benchmarks/attackers.py sweeps/attackers

A row for each rule, a column for each attack: test accuracy after the last round in per cent, mean over the seeds and
half the 95 % interval by Student's t; bold is 3 points or more below the first rule without attackers. Below the table:
each rule's worst difference from that, paired by seed, over all attacks but the last. Unfinished runs are left out.
"""

import argparse
import json
from pathlib import Path

from pandas import DataFrame, Series

import atoll
from atoll.support.estimates import estimate

POINTS = 3.0


def main() -> None:
    """Read the runs and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sweep", type=Path, help="the folder that atoll sweep wrote")
    print(table_of(read(parser.parse_args().sweep)))


def read(folder: Path) -> DataFrame:
    """Return the last accuracy of each run that is finished, in per cent: rows seeds, columns attacks and rules."""
    names = json.loads((folder / "experiment.json").read_text())["runs"]  # in the recipe's order
    rows = atoll.read_runs(*(folder / name for name in names if (folder / name / "summary.json").exists()))
    rows = rows.assign(seed=rows.get("seed", 0), rule=rows["run"].str.partition(",")[0])
    last = rows.groupby("folder").tail(1)
    return 100 * last.pivot_table(index="seed", columns=["panel", "rule"], values="test_accuracy", sort=False)


def table_of(found: DataFrame) -> str:
    """Return the table, and the differences, as Markdown."""
    attacks, rules = (list(dict.fromkeys(found.columns.get_level_values(level))) for level in (0, 1))
    best = found[attacks[0], rules[0]]
    lines = [f"| Combine | {' | '.join(attacks)} |", "|---" * (len(attacks) + 1) + "|"]
    lines += [f"| {rule} | {' | '.join(cell(found[attack, rule], best) for attack in attacks)} |" for rule in rules]
    worst = {rule: min((found[attack, rule] - best).mean() for attack in attacks[:-1]) for rule in rules}
    told = "; ".join(f"{rule} {points:+.1f}" for rule, points in worst.items())
    return "\n".join([*lines, "", f"At worst, but for {attacks[-1].lower()}, in points: {told}"])


def cell(values: Series, best: Series) -> str:
    """Return a mean and half its interval, bold if it is far below the best."""
    found = estimate(values.dropna().tolist())
    text = f"{found.mean:.1f}" + ("" if found.high is None else f" ± {found.high - found.mean:.1f}")
    return f"**{text}**" if found.mean <= best.mean() - POINTS else text


if __name__ == "__main__":
    main()
