"""Runs are chosen by their title, with or without a seed, or by a part of it."""

import pytest

from atoll.runs.titles import choose_runs, title_of
from atoll.settings.validation import Settings, validate

RUNS: list[Settings] = [
    validate({"panel": panel, "label": f"{label}, seed {seed}", "seed": seed})
    for seed in range(2)
    for panel in ("CenSyn", "CenAsy")
    for label in ("FedUC", "FedUC, as printed", "ComAw")
]


@pytest.mark.parametrize(
    ("only", "titles"),
    [
        ("CenSyn, FedUC", ["CenSyn, FedUC, seed 0", "CenSyn, FedUC, seed 1"]),
        ("CenSyn, FedUC, seed 1", ["CenSyn, FedUC, seed 1"]),
        ("Syn, Com", ["CenSyn, ComAw, seed 0", "CenSyn, ComAw, seed 1"]),
        ("syn, fedUC, AS", ["CenSyn, FedUC, as printed, seed 0", "CenSyn, FedUC, as printed, seed 1"]),
        (None, [title_of(each) for each in RUNS]),
    ],
)
def test_a_title_with_any_seed_comes_before_a_part_of_one(only: str | None, titles: list[str]) -> None:
    assert [title_of(each) for each in choose_runs(RUNS, only)] == titles
