"""The published results: the tables of docs/benchmark.md are those that the result files give."""

from pathlib import Path

import pytest

from atoll.benchmark.benchmark_page import in_words, suite_table, winners
from atoll.benchmark.carrying_out import Campaign
from atoll.benchmark.result_files import read_results
from atoll.benchmark.standings import average_ranks, stand
from atoll.benchmark.suites import Suite

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "evidence" / "benchmark"


@pytest.mark.more
def test_published_tables_are_of_the_result_files() -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    names = sorted(folder.name for folder in PLACE.iterdir())
    found = {name: stand(read_results([PLACE], name).values(), "updates") for name in names}
    assert winners(found).as_markdown() in page
    ranks = average_ranks(list(found.values()))
    assert in_words(ranks, len(names)) in " ".join(page.split())
    for name, rank in list(ranks.items())[:3]:
        assert f"{name} ({rank:.1f})" in page
    for name in names:
        assert suite_table(found[name]).as_markdown() in page


@pytest.mark.more
def test_published_entries_are_of_the_settings_that_suites_have_now() -> None:
    """Of one suite: others take as long."""
    held = read_results([PLACE], "regression")
    found = Campaign([], [], 0, 0, [PLACE]).results(Suite("regression"))
    assert [len(file.trials + file.runs) for file in found.values()] == [
        len(file.trials + file.runs) for file in held.values()
    ]


def test_published_entries_ran_at_a_commit_and_trials_are_as_many_for_all() -> None:
    for folder in PLACE.iterdir():
        files = read_results([PLACE], folder.name).values()
        assert all(each.commit for file in files for each in (*file.trials, *file.runs))
        assert {len(file.trials) for file in files if not file.left_out} <= {2, 3}
