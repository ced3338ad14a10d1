"""Places, ranks and their tests against values worked out by hand and Demsar's (2006) own, and broken result files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from atoll.benchmark.benchmark_page import as_dicts, as_markdown, render, suite_table, winners
from atoll.benchmark.result_files import COSTS, MEASURED, SCORE, Entry, ResultFile, read_results
from atoll.benchmark.standings import average_ranks, friedman_p, stand
from atoll.report.figures.ranks import cliques, pareto
from atoll.support.errors import InputError


def entry(
    seed: int, scores: list[float | None], step: float = 100.0, changes: tuple[str, ...] = ("local.lr=0.1",)
) -> Entry:
    costs: dict[str, list[float | None]] = {
        name: [step * scale * row for row in range(len(scores))]
        for name, scale in zip(COSTS, (1, 10, 1000), strict=True)
    }
    others = {name: scores for name in MEASURED if name != "ari"}
    return Entry(f"{seed} {changes}", "abc1234", seed, list(changes), {**costs, **others})


def made(method: str, ends: list[float], step: float = 100.0, title: str = "") -> ResultFile:
    trials = [entry(0, [0.0, 0.9]), entry(0, [0.0, 0.2], changes=("local.lr=0.2",))]
    return ResultFile(
        "s", method, title or method, "", trials, [entry(s, [0.0, end], step) for s, end in enumerate(ends)]
    )


def test_a_score_is_read_where_the_budget_ends() -> None:
    """FedAvg spends 100 updates, 1,000 seconds and 100,000 bytes; the other is half or twice as fast, and is cut."""
    files = [made("fedavg", [0.4, 0.6]), made("slow", [0.8, 0.8], 200.0), made("fast", [0.5, 0.3], 50.0)]
    placings = {each.method: each for each in stand(files, "updates")}
    assert placings["fedavg"].values[SCORE].mean == pytest.approx(0.5)
    assert placings["slow"].values[SCORE].mean == pytest.approx(0.4)  # half way to 0.8
    assert placings["fast"].values[SCORE].mean == pytest.approx(0.4)  # its last row, before the budget ends
    assert placings["slow"].spent == {"client_updates": 100, "virtual_time": 1000, "bytes": 100_000}
    assert placings["fedavg"].costs["client_updates"] == 100  # where it has its own score
    assert placings["slow"].costs["client_updates"] == 200  # the first row with FedAvg's 0.4, or 0.6
    assert placings["fast"].costs == {}  # seed 1 never has
    assert next(each.method for each in stand(files, "bytes")) == "fedavg"


def test_only_runs_with_what_the_best_trial_had_count() -> None:
    file = made("fedavg", [0.5])
    file.runs.append(entry(0, [0.0, 0.9], changes=("local.lr=0.2",)))
    (placing,) = stand([file], "updates")
    assert placing.scores == {0: 0.5}


def test_a_run_made_with_other_settings_does_not_count_beside_its_successor(tmp_path: Path) -> None:
    old, new = made("fedavg", [0.9, 0.4]), made("fedavg", [0.5])
    for runs, digest in ((old.runs, "before"), (new.runs, "now")):
        runs[0] = replace(runs[0], digest=digest)
    new.write(tmp_path / "own")
    old.write(tmp_path / "others")
    held = read_results([tmp_path / "own", tmp_path / "others"], "s")["fedavg"]
    assert len(held.trials) == 2
    (placing,) = stand([held], "updates")
    assert placing.scores == {0: 0.5, 1: 0.4}
    assert placing.values[SCORE].n == 2


def test_scores_are_in_the_order_of_seeds_whatever_folders_they_come_from(tmp_path: Path) -> None:
    """So that those of two methods can be paired."""
    both = made("fedavg", [0.4, 0.5, 0.6])
    replace(both, runs=both.runs[2:]).write(tmp_path / "own")
    replace(both, runs=both.runs[:2]).write(tmp_path / "others")
    held = read_results([tmp_path / "own", tmp_path / "others"], "s")
    (told,) = as_dicts(stand(held.values(), "updates"))
    assert told["scores"] == [0.4, 0.5, 0.6]


def test_methods_that_failed_are_in_no_table_and_say_so() -> None:
    broken = made("broken", [0.5, 0.4])
    broken.runs[1].columns[SCORE][-1] = None
    assert broken.why_missing == "its run failed with seed 1"
    assert [each.method for each in stand([made("fedavg", [0.4, 0.5]), broken], "updates")] == ["fedavg"]


def test_worse_than_alone_needs_the_whole_interval() -> None:
    files = [made("fedavg", [0.4, 0.5, 0.6]), made("local", [0.5, 0.6, 0.71]), made("noisy", [0.2, 0.6, 0.69])]
    placings = stand(files, "updates")
    (alone,) = (each for each in placings if each.method == "local")
    assert {each.method: each.is_below(alone) for each in placings} == {"local": False, "fedavg": True, "noisy": False}
    assert [line[0] for line in suite_table(placings).cells[1:]] == ["local", "fedavg (worse than alone)", "noisy"]
    assert winners({"s": placings}).cells[1] == ["s", "local", "1", "local", "local", "1 of 2"]


def test_without_training_alone_nobody_knows_who_is_worse() -> None:
    files = [made("fedavg", [0.4, 0.5, 0.6]), made("noisy", [0.2, 0.6, 0.69])]
    assert winners({"s": stand(files, "updates")}).cells[1][-1] == "–"


def test_a_method_of_fewer_seeds_than_others_says_so() -> None:
    files = [made("fedavg", [0.5, 0.5]), made("local", [0.4])]
    found = [line[0] for line in suite_table(stand(files, "updates")).cells[1:]]
    assert found == ["fedavg", "local (1 of 2 seeds)"]


def test_fedavg_that_is_in_no_table_says_why() -> None:
    """One seed of it failed, and to add what is there already would be of no use."""
    broken = made("fedavg", [0.5, 0.4])
    broken.runs[1].columns[SCORE][-1] = None
    told = "^--methods: fedavg, whose costs are the budgets, is in no table: its run failed with seed 1$"
    with pytest.raises(InputError, match=told):
        stand([made("local", [0.5]), broken], "updates")


def test_without_fedavg_there_is_no_budget() -> None:
    with pytest.raises(InputError, match="no runs of fedavg"):
        stand([made("local", [0.5])], "updates")


def test_ranks_are_shared_by_ties_and_of_methods_with_all_suites() -> None:
    one = stand([made("fedavg", [0.4]), made("a", [0.6]), made("b", [0.4]), made("c", [0.9])], "updates")
    two = stand([made("fedavg", [0.4]), made("a", [0.6]), made("b", [0.7])], "updates")
    assert average_ranks([one, two]) == {"a": 1.5, "b": 1.75, "fedavg": 2.75}


def test_friedman_is_scipys() -> None:
    """In Iman and Davenport's form; scipy has Friedman's chi-square."""
    table = [[0.9, 0.8, 0.7, 0.85, 0.6], [0.7, 0.9, 0.6, 0.8, 0.5], [0.5, 0.4, 0.65, 0.3, 0.45]]
    ranks = [sum(stats.rankdata([-own[i] for own in table])[k] for i in range(5)) / 5 for k in range(3)]
    chi = stats.friedmanchisquare(*table).statistic
    assert friedman_p(ranks, 5) == pytest.approx(stats.f.sf(4 * chi / (5 * 2 - chi), 2, 8))


def test_groups_of_ranks_and_fronts() -> None:
    assert cliques([1.0, 1.5, 3.0, 3.2, 9.0], 2.0) == [(0, 1), (1, 3)]
    assert cliques([1.0, 5.0], 2.0) == []
    assert pareto([("a", 0.5, 1.0), ("b", 0.5, 1.0), ("c", 0.9, 3.0), ("d", 0.8, 4.0)]) == [
        ("a", 0.5, 1.0),
        ("c", 0.9, 3.0),
    ]


def test_a_single_suite_has_no_ranks_and_few_bytes_have_their_own_unit() -> None:
    files = [made("fedavg", [0.4, 0.5]), made("x", [0.6, 0.7])]
    shown = as_markdown({"one": stand(files, "updates")}, "updates")
    assert "Average ranks need two methods and two suites." in shown
    assert "| Average rank |" not in shown
    assert "100 updates, 16.7 min, 100 kB |" in shown
    assert "| Average rank |" in as_markdown(
        {"one": stand(files, "updates"), "two": stand(files, "updates")}, "updates"
    )


@pytest.mark.more
def test_the_page_has_tables_ranks_and_fronts_and_shows_no_markup_of_a_title() -> None:
    files = [made("fedavg", [0.4, 0.5]), made("local", [0.5, 0.6]), made("x", [0.6, 0.6], title="<b>x</b>")]
    suites = {"one": stand(files, "updates"), "two": stand(files, "updates")}
    page = render(suites, "updates", ["y on one: too large"])
    assert page.count("<table") == 3
    assert page.count("data:image/svg") == 3
    assert "<b>x" not in page
    assert "In no table: 1" in page
    assert "y on one: too large" in page
    assert "In no table" not in render({"one": suites["one"]}, "updates", [])
    assert "3 methods have results on all 2 suites" in as_markdown(suites, "updates")


def test_files_are_read_as_written_and_folders_are_put_together(tmp_path: Path) -> None:
    file = made("mine:method", [0.4, 0.5])
    file.write(tmp_path / "a")
    assert (tmp_path / "a" / "s" / "mine.method.json").is_file()
    more = made("mine:method", [0.4, 0.5, 0.7])
    more.write(tmp_path / "b")
    held = read_results([tmp_path / "a", tmp_path / "b", tmp_path / "none"], "s")["mine:method"]
    assert [each.seed for each in held.runs] == [0, 1, 2]
    assert held.trials == sorted(file.trials, key=lambda each: each.changes)


def test_why_a_method_is_left_out_is_known_from_any_folder_until_there_are_runs(tmp_path: Path) -> None:
    failed, whole = made("x", []), made("x", [0.4])
    failed.trials = [entry(0, [0.0, None], changes=("local.lr=0.4",))]
    failed.write(tmp_path / "own")
    replace(failed, left_out="none of its trials came to an end").write(tmp_path / "others")
    replace(failed, left_out="too large", code="before").write(tmp_path / "old")
    for names, why in (
        (("own",), "none of its runs is finished yet"),
        (("own", "others"), "none of its trials came to an end"),
        (("others", "own"), "none of its trials came to an end"),
        (("own", "old"), "none of its runs is finished yet"),
    ):
        assert read_results([tmp_path / name for name in names], "s")["x"].why_missing == why
    whole.write(tmp_path / "whole")
    assert read_results([tmp_path / "others", tmp_path / "whole"], "s")["x"].why_missing == ""


def test_what_another_version_of_a_method_made_is_not_mixed_with_its_successors(tmp_path: Path) -> None:
    new, old = made("mine:method", [0.4]), made("mine:method", [0.9, 0.9])
    new.code, old.code = "now", "before"
    new.write(tmp_path / "own")
    old.write(tmp_path / "others")
    held = read_results([tmp_path / "own", tmp_path / "others"], "s")["mine:method"]
    assert [[each.seed, each.score] for each in held.runs] == [[0, 0.4]]


def test_a_method_without_runs_is_in_no_table_and_says_so() -> None:
    tuned = made("tuned", [])
    assert tuned.trials
    assert tuned.why_missing == "none of its runs is finished yet"
    assert [each.method for each in stand([made("fedavg", [0.4]), tuned], "updates")] == ["fedavg"]


def _broken(change: dict[str, Any]) -> str:
    whole = {"format": 1, "suite": "s", "method": "m", "title": "m", "left_out": "", "trials": [], "runs": []}
    return json.dumps(whole | change)


BROKEN = {
    "not JSON": "{",
    "a list": "[]",
    "another format": _broken({"format": 2}),
    "another suite": _broken({"suite": "t"}),
    "no runs": _broken({"runs": None}),
    "an entry without columns": _broken(
        {"runs": [{"digest": "d", "commit": "", "seed": 0, "changes": [], "columns": {}}]}
    ),
    "an unknown field": _broken({"runs": [{"mark": 1}]}),
    "a text for a number": _broken(
        {"trials": [vars(entry(0, [0.1])) | {"columns": {n: ["x"] for n in (*COSTS, SCORE)}}]}
    ),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_broken_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "m.json").write_text(text)
    with pytest.raises(InputError, match=r"m\.json cannot be read as a result file"):
        read_results([tmp_path], "s")
