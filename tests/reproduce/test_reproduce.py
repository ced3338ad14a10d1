"""Judging claims against values worked out by hand, costs, and the page."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.report.reading.records import COLUMNS
from atoll.report.reading.runs import Run
from atoll.reproduce import costs, pictures
from atoll.reproduce.claim_results import ClaimResult, at_largest_scale, gather
from atoll.reproduce.claims import Claim, Paper
from atoll.reproduce.evidence import Value
from atoll.reproduce.judging import judge, measure_plan, measure_run, meet_target
from atoll.reproduce.verdict_wording import (
    count,
    difference_in_words,
    estimate_in_words,
    tolerance_in_words,
    value_in_words,
)
from atoll.reproduce.verdicts_page import render
from atoll.settings.experiment_file import make_runs, read_experiment, resolved
from atoll.support.estimates import Estimate

ROUNDS = [0.0, 10.0, 20.0, 40.0, 100.0]
RISING = [0.1, 0.5, 0.7, 0.6, 0.8]


def make_run(label: str = "A", accuracy: list[float] = RISING, panel: str = "", finished: bool = True) -> Run:
    rows = {name: np.full(len(accuracy), np.nan) for name in COLUMNS}
    rows |= {"round": np.array(ROUNDS[: len(accuracy)]), "test_accuracy": np.array(accuracy)}
    rows |= {"event": rows["round"], "virtual_time": 3 * rows["round"], "wall_time": rows["round"] / 2}
    rows |= {"train_loss": 1 - np.array(accuracy)}
    seed = int(label.partition(", seed ")[2] or 0)
    config = {"seed": seed, "label": label, "method": {"name": label.partition(", seed ")[0]}}
    return Run(Path(label), "test", label, panel, config, rows, finished)


def make_seeds(label: str, values: Sequence[float], **fields: Any) -> list[Run]:
    return [make_run(f"{label}, seed {seed}", [0.1, value], **fields) for seed, value in enumerate(values)]


def make_claim(**fields: Any) -> Claim:
    given = {"recipe": "r", "source": "Fig. 1", "says": "s", "runs": ("A", "B"), "measure": "last", "check": "first"}
    return Claim.model_validate(given | fields)


MEASURES = {
    "last": 0.8,
    "best": 0.8,
    "mean": (10 * 0.3 + 10 * 0.6 + 20 * 0.65 + 60 * 0.7) / 100,
    "end": 0.8,
    "jitter": 0.0,
    "fall": 0.125,
    "settled": 100,
}


@pytest.mark.parametrize("measure", MEASURES)
def test_measures_by_hand(measure: str) -> None:
    assert measure_run(make_claim(measure=measure), make_run()) == pytest.approx(MEASURES[measure])


def test_a_fall_to_nothing_is_beyond_every_number() -> None:
    assert measure_run(make_claim(measure="fall"), make_run(accuracy=[0.4, 0.1, 0.0])) == math.inf


def test_jitter_and_end_cover_the_last_half_and_fifth() -> None:
    run = make_run(accuracy=[0.0, 0.9, 0.2, 0.5])  # rounds 0, 10, 20, 40
    assert measure_run(make_claim(measure="jitter"), run) == pytest.approx(0.3)
    assert measure_run(make_claim(measure="end"), run) == 0.5
    late = make_run(accuracy=[math.nan, math.nan, 0.2, 0.5, 0.4])  # first measured at round 20
    assert measure_run(make_claim(measure="mean"), late) == pytest.approx((20 * 0.35 + 60 * 0.45) / 80)
    assert measure_run(make_claim(measure="jitter"), late) == 0
    settling = make_run(accuracy=[0.1, 0.49, 0.3, 0.51, 0.5])
    assert measure_run(make_claim(measure="settled"), settling) == 40


@pytest.mark.parametrize(
    ("measure", "target", "along", "wanted"),
    [
        ("reach", 0.7, "round", Value(20, spacing=9)),
        ("stable", 0.7, "round", Value(100, spacing=59)),
        ("stable", 0.6, "round", Value(20, spacing=9)),
        ("reach", 0.05, "round", Value(0, spacing=0)),
        ("reach", 0.65, "virtual_time", Value(60, spacing=27)),
        ("reach", 0.9, "round", None),
        ("stable", 0.9, "round", None),
    ],
)
def test_when_targets_are_met(measure: str, target: float, along: str, wanted: Value | None) -> None:
    claim = make_claim(measure=measure, target=target, along=along)
    assert meet_target(claim, make_run()) == wanted


def test_a_target_is_met_at_an_event() -> None:
    """Where each event is probed nothing is left open; two events between probes may be half the spacing apart."""
    claim, run = make_claim(measure="reach", target=0.7, along="virtual_time"), make_run()
    for events, spacing in ([0, 1, 2, 3, 4], 0), ([0, 2, 4, 6, 8], 15):
        rows = run.rows | {"event": np.array(events, float)}
        assert meet_target(claim, replace(run, rows=rows)) == Value(60, spacing=spacing)


def test_a_loss_is_met_from_above() -> None:
    claim = make_claim(measure="reach", target=0.4, column="train_loss")
    assert meet_target(claim, make_run()) == Value(20, spacing=9)
    assert measure_run(make_claim(measure="best", column="train_loss"), make_run()) == pytest.approx(0.2)


def test_equal_rounds_on_a_coarse_grid_are_no_evidence() -> None:
    """All seeds meet the target at the same probe; the interval holds all events since the one before."""
    runs = [make_run(f"A, seed {seed}") for seed in range(5)]
    claim = make_claim(runs=("A",), measure="reach", target=0.65, check="within", stated=(20,), tolerance=0.25)
    verdict = judge(claim, runs, [], "paper")
    assert verdict.ours[0] == Estimate(5, 20.0, 0.0, 11.0, 20.0)
    assert verdict.status == "undecided"
    near = claim.model_copy(update={"tolerance": 1.1})
    assert judge(near, runs, [], "paper").status == "holds"


def test_a_ratio_of_runs_that_missed_a_target_is_unknown() -> None:
    """Each misses it with one seed: the ratio may be anything, not only more."""
    met, missed = [0.1, 0.7, 0.7], [0.1, 0.2, 0.3]
    claim = make_claim(measure="reach", target=0.65, check="ratio", stated=(1.0,), tolerance=0.1)
    values = {"A": (met, met, missed), "B": (missed, met, met)}
    runs = [make_run(f"{label}, seed {n}", own) for label, each in values.items() for n, own in enumerate(each)]
    verdict = judge(claim, runs, [], "paper")
    assert (verdict.status, estimate_in_words(claim, verdict.ours[0])) == ("undecided", "unknown")
    later = judge(claim, [*runs[:2], *runs[3:5]], [], "paper")  # B alone missed it, in one of two seeds
    assert estimate_in_words(claim, later.ours[0]).startswith("> ")


def test_a_lead_smaller_than_probes_are_apart_is_no_evidence() -> None:
    claim = make_claim(measure="reach", target=0.65)
    ahead = [make_run(f"A, seed {seed}", [0.1, 0.7, 0.7]) for seed in range(5)]
    level = [make_run(f"B, seed {seed}", [0.1, 0.7, 0.7]) for seed in range(5)]  # both between 1 and 10
    assert judge(claim, [*ahead, *level], [], "paper").status == "undecided"
    behind = [make_run(f"B, seed {seed}", [0.1, 0.5, 0.7]) for seed in range(5)]  # between 11 and 20
    assert judge(claim, [*ahead, *behind], [], "paper").status == "holds"


def test_runs_below_twice_chance_decide_nothing() -> None:
    claim = make_claim()
    for least, status in ((0.15, "not comparable"), (0.25, "holds")):
        runs = make_seeds("A", [least + each for each in (0.01, 0.02, 0.012)]) + make_seeds("B", [0.12, 0.13, 0.125])
        known = [replace(run, config=run.config | {"data": {"dataset": "mnist"}}) for run in runs]
        assert judge(claim, known, [], "paper").status == status
        assert judge(claim, runs, [], "paper").status == "holds"  # nobody knows their number of classes


def test_runs_on_several_data_sets_have_no_common_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.reproduce.judging._CLASSES", {"mnist": 10, "letters": 26})
    for names in (("mnist", "letters"), ("letters", "mnist")):
        runs = make_seeds("A", [0.16, 0.17, 0.162]) + make_seeds("B", [0.12, 0.13, 0.125])
        known = [replace(r, config=r.config | {"data": {"dataset": names[r.label[0] == "B"]}}) for r in runs]
        assert judge(make_claim(), known, [], "paper").status == "holds"


def test_a_gain_is_compared_between_panels_seed_by_seed() -> None:
    """Losses 0.4 and 0.8 in one panel, a factor of 2; 0.5 and 0.6 in the other, 1.2; the second seed the other way."""
    claim = make_claim(column="train_loss", check="gain", panel="hard", against="easy")

    def losses(label: str, panel: str, *last: float) -> list[Run]:
        return make_seeds(label, [1 - value for value in last], panel=panel)

    hard = losses("A", "hard", 0.4, 0.41, 0.39) + losses("B", "hard", 0.8, 0.82, 0.8)
    easy = losses("A", "easy", 0.5, 0.5, 0.5) + losses("B", "easy", 0.6, 0.61, 0.6)
    verdict = judge(claim, hard + easy, [], "paper")
    assert verdict.status == "holds"
    assert verdict.needs[0].numbers == pytest.approx(
        [math.log(2 / 1.2), math.log(0.82 / 0.41 / 1.22), math.log(0.8 / 0.39 / 1.2)]
    )
    other = judge(claim.model_copy(update={"panel": "easy", "against": "hard"}), hard + easy, [], "paper")
    assert other.status == "fails"
    assert judge(claim, hard, [], "paper").status == "not run"


def test_faster_and_comparable_exclude_each_other() -> None:
    """A lead between zero and the margin is comparable; one beyond it is faster; never both."""
    faster, comparable = make_claim(margin=0.02), make_claim(check="alike", tolerance=0.02)
    for lead, noise, wanted in (
        (0.01, 1e-4, ("fails", "holds")),
        (0.02, 1e-2, ("undecided", "undecided")),
        (0.04, 1e-4, ("holds", "fails")),
    ):
        runs = make_seeds("A", [0.5 * (1 + lead) + each * noise for each in (-1, 0, 1)])
        runs += make_seeds("B", [0.5, 0.5, 0.5])
        assert tuple(judge(claim, runs, [], "paper").status for claim in (faster, comparable)) == wanted


def test_a_column_that_was_not_recorded_has_no_value() -> None:
    assert measure_run(make_claim(column="ari"), make_run()) is None
    assert measure_run(make_claim(column="bytes_up"), make_run()) is None


PLAN = {
    "label": "FedUC, seed 0",
    "seed": 0,
    "panel": "",
    "mean_emd": 0.4,
    "weighted_emd": 0.35,
    "mean_emd_norm": 0.2,
    "weighted_emd_norm": 0.15,
    "max_completion_seconds": 2.5,
    "clusters": [
        {"size": 2, "psi": 0.1, "links": 2},
        {"size": 4, "psi": 0.3, "links": 2},
        {"size": 9, "psi": 0.6, "links": 4},
    ],
}


@pytest.mark.parametrize(
    ("measure", "wanted"),
    [
        ("emd", 0.4),
        ("emd-weighted", 0.35),
        ("emd-norm", 0.2),
        ("emd-norm-weighted", 0.15),
        ("longest", 2.5),
        ("size-frequency", 1.0),
        ("size-at-2-links", 3.0),
        ("size-at-4-links", 9.0),
        ("size-at-3-links", None),
    ],
)
def test_measures_of_a_clustering(measure: str, wanted: float | None) -> None:
    claim = make_claim(measure=measure)
    found = measure_plan(claim, PLAN)
    assert found == (None if wanted is None else pytest.approx(wanted))


CHECKS: list[tuple[dict[str, Any], list[float], str]] = [
    ({"check": "first"}, [0.8, 0.7, 0.6], "holds"),
    ({"check": "first"}, [0.7, 0.8, 0.6], "fails"),
    ({"check": "first"}, [0.7, 0.7, 0.6], "undecided"),
    ({"check": "first", "column": "train_loss"}, [0.7, 0.8, 0.75], "fails"),
    ({"check": "order"}, [0.8, 0.7, 0.6], "holds"),
    ({"check": "order"}, [0.8, 0.6, 0.7], "fails"),
    ({"check": "alike", "tolerance": 0.1}, [0.8, 0.74, 0.73], "holds"),
    ({"check": "alike", "tolerance": 0.05}, [0.8, 0.74, 0.73], "fails"),
    ({"check": "close", "stated": (0.8, 0.7, 0.6), "tolerance": 0.05}, [0.85, 0.65, 0.6], "holds"),
    ({"check": "close", "stated": (0.8, 0.7, 0.6), "tolerance": 0.05}, [0.85, 0.65, 0.54], "fails"),
    ({"check": "within", "stated": (0.4, 0.4, 0.4), "tolerance": 1.0}, [0.8, 0.2, 0.4], "holds"),
    ({"check": "within", "stated": (0.4, 0.4, 0.4), "tolerance": 0.9}, [0.8, 0.2, 0.4], "fails"),
    ({"check": "ratio", "stated": (0.5,), "tolerance": 0.1}, [0.8, 0.4, 0.1], "holds"),
    ({"check": "ratio", "stated": (2.0,), "tolerance": 0.1}, [0.8, 0.4, 0.1], "fails"),
    ({"check": "lead", "stated": (0.4,), "tolerance": 0.01}, [0.8, 0.4, 0.1], "holds"),
    ({"check": "lead", "stated": (-0.4,), "tolerance": 0.01}, [0.8, 0.4, 0.1], "fails"),
    ({"check": "at-least", "bound": 0.6}, [0.8, 0.7, 0.6], "holds"),
    ({"check": "at-least", "bound": 0.65}, [0.8, 0.7, 0.6], "fails"),
]


@pytest.mark.parametrize(("fields", "values", "status"), CHECKS)
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_checks_of_values_that_all_seeds_agree_on(
    fields: dict[str, Any], values: list[float], status: str, seeds: int
) -> None:
    runs = [run for label, value in zip("ABC", values, strict=True) for run in make_seeds(label, [value] * seeds)]
    claim = make_claim(runs=("A", "B", "C"), why="because", **fields)
    verdict = judge(claim, runs, [], "tiny")
    assert verdict.status == (status if seeds > 2 else "undecided")
    if seeds > 2 and status != "undecided":
        assert verdict.reason == ("" if status == "holds" else "because")
    else:
        assert "seed" in verdict.reason


def test_means_come_with_their_intervals() -> None:
    verdict = judge(make_claim(), [*make_seeds("A", [0.4, 0.6, 0.8]), *make_seeds("B", [0.45, 0.5, 0.4])], [], "tiny")
    found = verdict.ours[0]
    assert found is not None
    assert (found.n, found.mean) == (3, pytest.approx(0.6))
    assert found.high == pytest.approx(0.6 + 4.302653 * 0.2 / 3**0.5, rel=1e-6)


def test_a_lead_is_shown_as_the_difference_within_a_seed() -> None:
    claim = make_claim(check="lead", stated=(0.2,), tolerance=0.05)
    runs = [*make_seeds("A", [0.4, 0.6, 0.8]), *make_seeds("B", [0.3, 0.4, 0.5])]
    (found,) = judge(claim, runs, [], "tiny").ours
    assert found is not None
    assert (found.n, found.mean) == (3, pytest.approx(0.2))
    assert judge(claim, [*make_seeds("A", [0.4]), make_run("B, seed 1")], [], "tiny").ours == (None,)


def test_claims_about_clusterings_are_tested_over_networks() -> None:
    claim = make_claim(runs=("FedUC",), measure="emd", check="close", stated=(0.4,), tolerance=0.05)
    plans = [{**PLAN, "label": f"FedUC, seed {seed}", "seed": seed} for seed in range(3)]
    assert judge(claim, [], plans, "tiny").status == "holds"
    assert judge(claim, [], plans[:2], "tiny").status == "undecided"
    no_links = make_claim(runs=("FedUC",), measure="size-at-3-links", check="close", stated=(6.0,), tolerance=1.0)
    assert judge(no_links, [], plans, "tiny").status == "not comparable"


def test_what_cannot_be_judged_at_a_scale_is_told_with_its_values() -> None:
    claim = make_claim(not_at={"tiny": "too few rounds"})
    runs = [*make_seeds("A", [0.8] * 3), *make_seeds("B", [0.7] * 3)]
    verdict = judge(claim, runs, [], "tiny")
    assert (verdict.status, verdict.reason) == ("not comparable", "too few rounds")
    assert [found.mean for found in verdict.ours if found] == pytest.approx([0.8, 0.7])
    assert judge(claim, runs, [], "paper").status == "holds"


def test_runs_that_are_missing_unfinished_or_of_another_panel_do_not_count() -> None:
    for other in ([], [make_run("B", finished=False)], [make_run("B", panel="other")]):
        verdict = judge(make_claim(), [make_run("A"), *other], [], "tiny", "no data")
        assert (verdict.status, verdict.reason) == ("not run", "no data")
        assert [found and found.mean for found in verdict.ours] == [0.8, None]  # what is there is shown


@pytest.mark.parametrize("measure", ["last", "reach"])
def test_what_runs_did_not_record_cannot_be_compared(measure: str) -> None:
    runs = [*make_seeds("A", [0.8] * 3), *make_seeds("B", [0.7] * 3)]
    verdict = judge(make_claim(measure=measure, target=0.5, column="personal_accuracy"), runs, [], "tiny")
    assert (verdict.status, verdict.reason) == ("not comparable", "not all runs have this value")


def test_all_seeds_of_a_run_are_one_curve_in_a_band() -> None:
    runs = (*make_seeds("A", [0.8, 0.7, 0.6]), *make_seeds("B", [0.7, 0.5, 0.4]))
    (_, figure), *_ = pictures._curves(ClaimResult("r", "", runs, (), 6, (), None))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["A", "B"]
    assert [(len(axes.lines), len(axes.collections)) for axes in figure.axes] == [(2, 2), (2, 2)]


def test_a_figure_is_called_what_it_shows() -> None:
    run = make_run("A")
    runs = (run, _without_accuracy(run))
    told = [next(pictures._curves(ClaimResult("r", "", (each,), (), 6, (), None)))[0] for each in runs]
    assert told == [f"Training loss and test {what} against rounds, {pictures.MEANS}" for what in ("accuracy", "loss")]


def _without_accuracy(run: Run) -> Run:
    """Return the run as one of a regression."""
    rows = dict(run.rows)
    return replace(run, rows=rows | {"test_loss": rows["train_loss"], "test_accuracy": rows["test_accuracy"] * np.nan})


def test_the_cost_of_paper_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 3 at the small scale: 10 of 100 rounds, each of as many clients or central steps; steps are timed."""
    recipe = "fedcluster-figure-3"
    here, paper = (make_runs(read_experiment(recipe), scale) for scale in ("small", "paper"))
    monkeypatch.setattr(costs, "_step_seconds", lambda model, shape, batch: {"cnn": 0.002, "alexnet": 0.05}[model])
    for number in (0, 2):
        settings = here[number]
        assert costs.local_seconds(settings) == pytest.approx(0.04 if number == 0 else 2.0)
        run = replace(make_run(settings.label, RISING, settings.panel), config=resolved(settings))
        cost = costs.cost_of(recipe, [run])
        assert cost is not None
        assert (cost.runs, cost.seconds, cost.rounds) == (1, 50, 100)
        assert cost.paper_seconds == pytest.approx(50 * (100 / 10) * 25)
    assert costs.cost_of(recipe, [make_run(finished=False)]) is None
    assert paper[0].data.clients == 1000


def test_the_time_of_a_step() -> None:
    """That of a user's own model or data is not known; a cohort of one step is timed whole; more work takes longer."""
    assert costs.local_seconds(make_runs({"data": {"dataset": "logging:basicConfig"}})[0]) is None
    small, large = (costs._step_seconds("mlp", (1, 28, 28), batch) for batch in (1, 2000))
    assert 0 < small < large


def test_words() -> None:
    accuracy = make_claim()
    assert value_in_words(accuracy, 0.8043, half=0.0014) == "80.4 ± 0.1 %"
    assert value_in_words(accuracy, 0.01, True, 0.0014) == "1.0 ± 0.1 points"
    assert difference_in_words(accuracy, 0.82, 0.8) == "+2.0 points"
    assert value_in_words(accuracy, None) == "\N{EN DASH}"
    rounds = make_claim(measure="reach", target=0.75)
    assert (value_in_words(rounds, 1913.0), difference_in_words(rounds, 150, 100)) == ("1,913 rounds", "+50 %")
    assert tolerance_in_words(rounds) == "A has the lowest round of the first probe with 75 % test accuracy"
    ratio = make_claim(check="ratio", stated=(1.79,))
    assert value_in_words(ratio, 1.794) == "1.79 \N{MULTIPLICATION SIGN}"


@pytest.mark.more
def test_the_page_holds_everything_and_escapes_it() -> None:
    claim = make_claim(
        says="A < B",
        quote="<script>",
        stated=(0.81, 0.7),
        why="1 & 2",
        reading="clear & plain",
        panel="",
        measure="last",
    )
    runs = (*make_seeds("A", [0.5] * 3), *make_seeds("B", [0.6] * 3))
    verdict = judge(claim, runs, [], "tiny")
    result = ClaimResult("r", "about r", runs, (), 6, (verdict,), None, ("no data",))
    other = replace(result, recipe="other", verdicts=(), expected=7)
    page = render([Paper(name="p", title="P", reference="R", claims=(claim,))], [result, other], "tiny")
    for text in ("A &lt; B", "&lt;script&gt;", "1 &amp; 2", "81.0 %", "50.0 ± 0.0 %", "-31.0 points", "no data"):
        assert text in page
    assert page.index('id="r"') < page.index("Beyond the papers</h2>") < page.index('id="other"')
    assert page.count("data:image/svg+xml;base64,") == 2
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("Runs finished: 6 of 7.") == 1
    assert "lead of A over B: -10.0 ± 0.0 points" in page
    assert "Reading: clear &amp; plain" in page
    assert count([verdict]) == "1 fails"
    assert count([verdict, verdict, replace(verdict, status="holds")]) == "1 holds, 2 fail"


def test_a_time_that_is_unknown_is_no_time() -> None:
    known, unknown = (costs.RunCost("r", 3, 12.0, 10, seconds) for seconds in (90.0, None))
    pages = [
        render([], [ClaimResult(str(i), "", (), (), 0, (), each) for i, each in enumerate(own)], "tiny")
        for own in ([known], [unknown], [known, unknown])
    ]
    assert "The paper scale would take at most 90 s on one core: each" in pages[0]
    assert "would take at most" not in pages[1]
    assert "would take at most 90 s on one core, without the recipes whose time is unknown: each" in pages[2]


def test_the_page_folds_problems_after_the_third() -> None:
    few, many = ("a", "b", "c", "a"), tuple("abcde")
    pages = [render([], [ClaimResult("r", "", (), (), 0, (), None, problems)], "tiny") for problems in (few, many)]
    assert [page.count('class="problem"') for page in pages] == [3, 5]
    assert [page.partition("2 more</summary>")[2].count('class="problem"') for page in pages] == [0, 2]


def test_a_folder_without_runs_gives_claims_that_are_not_run(tmp_path: Path) -> None:
    claim = make_claim(recipe="quickstart", runs=("FedAvg",), check="at-least", bound=0.5)
    paper = Paper(name="p", title="P", reference="R", claims=(claim,))
    result = gather("quickstart", [paper], "tiny", tmp_path / "nowhere", ["no data"], expected=6)
    assert (result.finished, result.expected, result.cost) == (0, 6, None)
    assert [verdict.status for verdict in result.verdicts] == ["not run"]
    json.dumps(result.verdicts[0].claim.model_dump())


@pytest.mark.parametrize(
    ("paper", "tiny", "counted"),
    [
        ((3, 3), (5, 5), "paper"),
        ((2, 2), (3, 3), "tiny"),
        ((3, 2), (3, 3), "tiny"),
        ((2, 2), (1, 1), "paper"),
        ((2, 0), (1, 1), "tiny"),
        ((0, 0), (0, 0), "tiny"),
    ],
)
def test_a_scale_counts_once_each_of_a_claims_runs_has_three_seeds(
    paper: tuple[int, int], tiny: tuple[int, int], counted: str
) -> None:
    found = []
    for scale, seeds in (("paper", paper), ("tiny", tiny)):
        runs = (*make_seeds("A", [0.5] * seeds[0]), *make_seeds("B", [0.6] * seeds[1]))
        found.append(ClaimResult("r", scale, runs, (), 6, (judge(make_claim(), runs, [], scale),), None))
    whole = at_largest_scale(found)
    assert whole.verdicts[0].scale == counted
    assert whole.description == counted  # so its figures are of that scale too
