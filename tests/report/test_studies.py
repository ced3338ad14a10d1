"""Studies with seeds, from folders to a paper: mean curves in bands, tables over seeds, a baseline and its test."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from atoll.report.figures import plot
from atoll.report.page.content import make_content
from atoll.report.reading.groups import group_runs
from atoll.report.reading.mean_curves import mean_curve
from atoll.report.reading.runs import Run, find_runs
from atoll.report.report_files import write_report
from atoll.report.tables.formats import show_p
from atoll.report.tables.spread import Difference, choose_targets, spread_over_seeds
from atoll.report.tables.spread_tables import final_table, show_difference, target_table
from atoll.runs.result import Result
from atoll.support.errors import InputError
from atoll.support.estimates import Estimate
from tests.made_runs import make_rows, write_run
from tests.tiers import thinned

SEEDS = (0, 1, 2, 3, 4)
NAMES = [
    *("FedAvg", "FedProx, μ = 0.1", "SCAFFOLD", "FedAdam", "FedYogi", "FedNova", "FedDyn", "IFCA", "FeSEM", "FedBuff"),
    *(
        "Clustered FL with multiple gradient descent",
        "An own method & its rather_long 100 % label, as people write them",
    ),
]


def write_study(place: Path, labels: Sequence[str], seeds: Sequence[int] = SEEDS, rows: int = 8) -> Path:
    """Write a sweep's folder: methods that learn one faster than the other, with noise by seed."""
    for number, label in enumerate(labels):
        for seed in seeds:
            noise = np.random.default_rng([number, seed]).uniform(0.9, 1.1)
            write_run(
                place / f"{number}-{seed}",
                make_rows(rows, (2.0 + number) * noise),
                label=f"{label}, seed {seed}",
                seed=seed,
                method={"name": f"m{number}"},
            )
    names = [f"{number}-{seed}" for number in range(len(labels)) for seed in seeds]
    (place / "experiment.json").write_text(json.dumps({"runs": names}))
    return place


def last(runs: Sequence[Run], column: str = "test_accuracy") -> list[float]:
    return [float(run.rows[column][-1]) for run in runs]


class TestFigures:
    @pytest.mark.parametrize("methods", thinned([12, 2, 6], 1))
    @pytest.mark.parametrize("width", ["column", "text"])
    def test_one_line_band_and_legend_entry_a_setting_and_nothing_clipped(
        self, tmp_path: Path, methods: int, width: str
    ) -> None:
        figure = plot.curves(write_study(tmp_path, NAMES[:methods]), width=width)
        assert figure.get_figwidth() == {"column": 3.5, "text": 7.16}[width]
        for axes in figure.axes:
            assert len(axes.lines) == len(axes.collections) == methods
            assert len({str(line.get_color()) for line in axes.lines}) == methods
        (legend,) = figure.legends
        assert [text.get_text().replace("\n", " ") for text in legend.get_texts()] == NAMES[:methods]
        assert_nothing_is_clipped(figure)

    def test_bands_by_hand(self, tmp_path: Path) -> None:
        (group,) = group_runs(find_runs([write_study(tmp_path, ["a"])]))
        values = np.array([run.rows["test_accuracy"] for run in group.runs])
        interval, spread = (mean_curve(group.runs, "round", "test_accuracy", band) for band in ("interval", "spread"))
        np.testing.assert_allclose(interval.y, values.mean(axis=0))
        low, high = stats.t.interval(0.95, 4, values.mean(axis=0)[1:], stats.sem(values, axis=0)[1:])
        np.testing.assert_allclose(interval.low[1:], low)
        np.testing.assert_allclose(interval.high[1:], np.minimum(high, 1))
        np.testing.assert_allclose(spread.y - spread.low, values.std(axis=0, ddof=1), atol=1e-12)

    def test_a_band_stays_among_possible_values_and_does_not_flatten_the_curves(self, tmp_path: Path) -> None:
        for seed, accuracy in ((0, 0.1), (1, 0.9)):  # with two seeds the interval is 12.7 standard errors wide
            rows = [row | {"test_accuracy": accuracy, "train_loss": accuracy} for row in make_rows(4)]
            write_run(tmp_path / str(seed), rows, label="a", seed=seed)
        (group,) = group_runs(find_runs([tmp_path]))
        curve = mean_curve(group.runs, "round", "test_accuracy")
        assert (curve.low.min(), curve.high.max()) == (0, 1)
        assert mean_curve(group.runs, "round", "train_loss").low.min() == 0

    def test_seeds_meet_at_the_rounds_that_all_have(self, tmp_path: Path) -> None:
        write_run(tmp_path / "0", make_rows(5), label="a", seed=0)
        write_run(tmp_path / "1", make_rows(8)[::2], label="a", seed=1)
        (group,) = group_runs(find_runs([tmp_path]))
        assert mean_curve(group.runs, "virtual_time", "test_accuracy").x.tolist() == [0, 120, 240]

    def test_a_failed_seed_is_left_out_of_mean_and_band(self, tmp_path: Path) -> None:
        write_study(tmp_path, ["a"])
        (tmp_path / "0-4" / "summary.json").unlink()
        figure = plot.curves(tmp_path, "test_accuracy")
        found = float(np.asarray(figure.axes[0].lines[0].get_ydata())[-1])
        assert found == pytest.approx(100 * np.mean(last(find_runs([tmp_path])[:4])))

    def test_one_seed_is_a_line_without_a_band(self, tmp_path: Path) -> None:
        figure = plot.curves(write_study(tmp_path, ["a", "b"], seeds=[7]))
        assert [len(axes.collections) for axes in figure.axes] == [0, 0]

    def test_all_forms_of_a_study_give_the_same_figure(self, tmp_path: Path) -> None:
        place = write_study(tmp_path, ["a", "b"], seeds=(0, 1))
        forms = [place, str(place), [place], find_runs([place])]
        drawn = [np.asarray(plot.curves(form, "train_loss").axes[0].lines[1].get_ydata()) for form in forms]
        assert all(np.array_equal(drawn[0], each) for each in drawn)

    def test_into_axes_of_ones_own(self, tmp_path: Path) -> None:
        figure = Figure(figsize=(4, 3))
        axes = figure.subplots()
        found = plot.curves(write_study(tmp_path, ["a"]), "train_loss", "virtual_time", ax=axes, band="spread")
        assert found is figure
        assert axes.get_xlabel() == "Virtual time (minutes)"
        assert len(axes.collections) == 1

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"band": "both"}, "band = 'both': must be 'interval' or 'spread'"),
            ({"width": "wide"}, "width wide: must be column, text or a number of inches from 1 to 50"),
            ({"y": "gap"}, "no run has the column gap"),
            ({"x": "nope"}, "x = 'nope': must be 'round' or 'client_updates' or 'virtual_time' or 'bytes_up'"),
            ({"x": "nope", "ax": Figure().subplots()}, "x = 'nope': must be 'round'"),
            ({"ax": 5}, "ax: must be Matplotlib axes"),
            ({"ax": Figure().subplots(), "width": 3.5}, "width = 3.5: cannot be used with ax"),
        ],
    )
    def test_bad_input(self, tmp_path: Path, arguments: dict[str, object], told: str) -> None:
        with pytest.raises(InputError, match=told):
            plot.curves(write_study(tmp_path, ["a"]), **arguments)  # type: ignore[arg-type]

    @pytest.mark.parametrize("study", [None, 5, [], {}, [1]])
    def test_no_study(self, study: object) -> None:
        with pytest.raises(InputError, match="study"):
            plot.curves(study)


def assert_nothing_is_clipped(figure: Figure) -> None:
    """Every text lies inside the figure, and the legend on no axes."""
    renderer: Any = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw(renderer)
    page = figure.bbox
    texts = [text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label)]
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text()]
    legends = [legend.get_window_extent(renderer) for legend in figure.legends]
    for box in (*boxes, *legends):
        assert (box.x0 >= page.x0 - 1, box.x1 <= page.x1 + 1) == (True, True), box
        assert (box.y0 >= page.y0 - 1, box.y1 <= page.y1 + 1) == (True, True), box
    for axes in figure.axes:
        assert axes.get_window_extent(renderer).height > 0.8 * figure.dpi
        assert not any(axes.get_window_extent(renderer).overlaps(legend) for legend in legends)


class TestTables:
    def test_final_values_and_a_paired_test_by_hand(self, tmp_path: Path) -> None:
        runs = find_runs([write_study(tmp_path, ["a", "b", "c"])])
        a, b, c = (runs[5 * i : 5 * i + 5] for i in range(3))
        base, *others = spread_over_seeds(runs, [0.5], baseline="A")
        accuracy = base.final["test_accuracy"]
        assert accuracy.mean == pytest.approx(np.mean(last(a)))
        low, high = stats.t.interval(0.95, 4, np.mean(last(a)), stats.sem(last(a)))
        assert (accuracy.low, accuracy.high) == (pytest.approx(low), pytest.approx(high))
        assert base.difference is None
        raw = sorted((stats.ttest_rel(last(each), last(a)).pvalue, place) for place, each in enumerate((b, c)))
        for factor, (p, place) in zip((2, 1), raw, strict=True):
            found = others[place].difference
            assert found is not None
            assert found.p is not None
            assert found.baseline == "a"
            assert found.p == pytest.approx(max(factor * p, 2 * raw[0][0]))
        markdown = final_table([base, *others]).as_markdown()
        assert "two-sided paired t test over seeds, corrected for 2 comparisons by Holm's method" in markdown

    def test_of_a_table_the_content_tells_settings_apart_and_not_the_path(self, tmp_path: Path) -> None:
        for seed, digest in enumerate("aab"):
            data = {"dataset": "table", "root": f"{seed}/table.csv", "target": "y"}
            place = write_run(tmp_path / f"{seed}", make_rows(5), label="a", seed=seed, data=data)
            (place / "environment.json").write_text(json.dumps({"data": {"data.root/table.csv": digest}}))
        assert [spread.seeds for spread in spread_over_seeds(find_runs([tmp_path]))] == [(0, 1), (2,)]
        (tmp_path / "0" / "environment.json").write_text("[]")
        assert spread_over_seeds(find_runs([tmp_path])) == []

    def test_numbers_have_the_test_loss_where_classes_have_the_accuracy(self, tmp_path: Path) -> None:
        """And a note on differences names both."""
        for label, rate in (("a", 3.0), ("b", 6.0)):
            for seed in range(3):
                rows = make_rows(5, rate + 0.1 * seed)
                write_run(tmp_path / f"classes-{label}-{seed}", rows, label=label, seed=seed, panel="1")
                numbers = [{**row, "test_accuracy": None} for row in rows]
                own: dict[str, Any] = {"panel": "2", "data": {"dataset": "regression"}}
                write_run(tmp_path / f"numbers-{label}-{seed}", numbers, label=label, seed=seed, **own)
        spreads = spread_over_seeds(find_runs([tmp_path]), baseline="a")
        assert [[name for name in spread.final if name.startswith("test")] for spread in spreads] == [
            *[["test_accuracy"]] * 2,
            *[["test_loss"]] * 2,
        ]
        (header, *lines), note = final_table(spreads).cells, final_table(spreads).note
        assert header[3:6] == ["Final accuracy (%)", "Final loss", "Final test loss"]
        assert [line[5] == "–" for line in lines] == [True, True, False, False]
        assert "Difference: in final test accuracy or test loss to a, over the seeds of both" in note

    def test_equal_values_have_no_deviation_of_rounding(self, tmp_path: Path) -> None:
        """NumPy's mean of three times 0.1 is 0.1 + 1.4e-17."""
        for seed in range(3):
            rows = make_rows(2, gap=0.1)
            write_run(tmp_path / str(seed), rows, label="a", seed=seed)
        (spread,) = spread_over_seeds(find_runs([tmp_path]))
        assert spread.final["gap"].std == 0.0
        assert final_table([spread]).cells[1][-1] == "0.10 ± 0.00"

    def test_costs_of_targets(self, tmp_path: Path) -> None:
        runs = find_runs([write_study(tmp_path, ["fast", "slow"], rows=7)])
        fast, slow = spread_over_seeds(runs, [0.5, 0.9])
        rounds = [int(np.argmax(run.rows["test_accuracy"] >= 0.5)) for run in runs[:5]]
        assert fast.targets[0].costs["round"].mean == pytest.approx(np.mean(rounds))
        assert fast.targets[0].costs["virtual_time"].mean == pytest.approx(60 * np.mean(rounds))
        assert fast.targets[0].costs["bytes_sent"].mean == pytest.approx(3000 * np.mean(rounds))
        assert slow.targets[1].reached < 5
        assert slow.targets[1].costs == {}  # a mean of those that got there would flatter
        lines = target_table([fast, slow]).as_markdown().splitlines()
        assert lines[0].split("|")[1:5] == [" Target ", " Run  ", "  Seeds ", " Rounds "]
        assert len(lines) == 2 + 2 * 2 + 2

    @pytest.mark.more
    def test_targets_that_no_run_reaches_are_said_to_be_unreached(self, tmp_path: Path) -> None:
        study = write_study(tmp_path / "study", ["a", "b"])
        write_report(find_runs([study]), tmp_path / "out", [0.999])
        told = (tmp_path / "out" / "targets.md").read_text()
        assert told.count("0 of 5") == 2

    def test_targets_that_a_run_meets_before_it_trains_are_not_chosen(self, tmp_path: Path) -> None:
        write_study(tmp_path, ["Own", "FedAvg"], seeds=(0, 1))
        file = tmp_path / "0-1" / "metrics.jsonl"
        first, *others = file.read_text().splitlines()
        file.write_text("\n".join([json.dumps({**json.loads(first), "test_accuracy": 0.72}), *others]) + "\n")
        chosen = [each.target for each in spread_over_seeds(find_runs([tmp_path]))[0].targets]
        assert chosen
        assert min(chosen) > 0.72

    def test_chosen_targets_are_reached_by_all_seeds_of_some_setting(self, tmp_path: Path) -> None:
        spreads = spread_over_seeds(find_runs([write_study(tmp_path, ["a", "b", "c"])]))
        for place in range(len(spreads[0].targets)):
            assert any(spread.targets[place].reached == 5 for spread in spreads)
        assert len(spreads[0].targets) == 3

    def test_failed_seeds_are_counted_and_left_out(self, tmp_path: Path) -> None:
        study = write_study(tmp_path, ["a", "b"])
        (study / "1-2" / "summary.json").unlink()
        a, b = spread_over_seeds(find_runs([study]), [], baseline="a")
        assert (b.seeds, b.planned) == ((0, 1, 3, 4), 5)
        assert b.difference is not None
        assert b.difference.estimate.n == 4  # pairs of seeds that both have
        assert "| 4 of 5 |" in final_table([a, b]).as_markdown()

    def test_runs_that_a_sweep_has_not_begun_are_missing(self, tmp_path: Path) -> None:
        study = write_study(tmp_path, ["a", "b"], seeds=(0, 1))
        (study / "sweep.json").write_text(json.dumps({"over": {"seed": ["0", "1", "2"]}}))
        spreads = spread_over_seeds(find_runs([study]), [0.5])
        assert [(spread.seeds, spread.planned) for spread in spreads] == [((0, 1), 3)] * 2
        final, targets = final_table(spreads).as_markdown(), target_table(spreads).as_markdown()
        assert "| 2 of 3 |" in final
        assert "| 2 of 2, 1 missing |" in targets
        assert all("2 of the 6 runs are missing or not finished." in table for table in (final, targets))
        assert "2 of 3 finished" in make_content(find_runs([study])).sections["results-body"]
        chosen = spread_over_seeds(find_runs(sorted(study.glob("[01]-[01]"))), [])
        assert [spread.planned for spread in chosen] == [2, 2]

    def test_a_sweep_beside_a_run_with_one_of_its_seeds_is_whole(self, tmp_path: Path) -> None:
        labels = ["FedAvg", "FedCluster by size"]
        for number, label in enumerate(labels):
            rows = make_rows(8, 2.0 + number)
            write_run(tmp_path / f"alone/{number}", rows, label=label, seed=0, method={"name": f"m{number}"})
        study = write_study(tmp_path / "seeds", labels, seeds=(0, 1, 2))
        (study / "sweep.json").write_text(json.dumps({"over": {"seed": ["0", "1", "2"]}}))
        groups = group_runs(find_runs([tmp_path / "alone", study]))
        assert [(group.label, group.seeds, group.planned) for group in groups] == [
            *((label, (0,), 1) for label in labels),
            *((f"{label}, 3 seeds", (0, 1, 2), 3) for label in labels),
        ]

    def test_two_sweeps_that_share_a_seed_are_both_whole(self, tmp_path: Path) -> None:
        for name, seeds in (("a", (0, 1)), ("b", (1, 2))):
            study = write_study(tmp_path / name, ["FedAvg"], seeds)
            (study / "sweep.json").write_text(json.dumps({"over": {"seed": [*map(str, seeds)]}}))
        groups = group_runs(find_runs([tmp_path / "a", tmp_path / "b"]))
        assert [(group.seeds, len(group.finished), group.planned) for group in groups] == [
            ((0, 1), 2, 2),
            ((1, 2), 2, 2),
        ]

    def test_p_values_are_corrected_within_a_panel(self, tmp_path: Path) -> None:
        """In tables as on the page: a panel's do not depend on which others there are."""
        found = []
        for panels in (("1",), ("1", "2")):
            place = tmp_path / str(len(panels))
            for panel in panels:
                for number, label in enumerate("abc"):
                    for seed in range(3):
                        rate = (2.0 + number) * np.random.default_rng([number, seed]).uniform(0.8, 1.2)
                        own: dict[str, Any] = {"label": label, "seed": seed, "panel": panel}
                        write_run(place / f"{panel}{label}{seed}", make_rows(8, rate), **own, method={"name": label})
            spreads = spread_over_seeds(find_runs([place]), [], baseline="a")
            found.append([each.p for spread in spreads[:3] if (each := spread.difference) is not None])
            assert ("corrected for 2 comparisons by" in final_table(spreads).note) == (len(panels) == 1)
            page = make_content(find_runs([place]), baseline="a").data["compared"]["differences"][0][0]
            assert [text for _, text in page[1:]] == [show_p(p, "p") for p in found[-1]]
        assert "corrected for all comparisons in a panel by Holm's method" in final_table(spreads).note
        assert found[0] == found[1]

    def test_latex_of_hostile_labels(self, tmp_path: Path) -> None:
        labels = [r"[FedAvg] 50 % & \input{x}", "*_$#^~", "μ ≤ 0.1 | “x”"]
        table = final_table(spread_over_seeds(find_runs([write_study(tmp_path, labels)]), [])).as_latex()
        body = table.split(r"\midrule")[1]
        assert r"{[}FedAvg] 50 \% \& \textbackslash{}input\{x\} &" in body
        assert r"{*}\_\$\#\textasciicircum{}\textasciitilde{} &" in body
        assert r"$\mu$ $\leq$ 0.1 \textbar{}" in body
        assert all(line.count(" & ") == 3 for line in body.splitlines() if line.endswith(r"\\"))

    @pytest.mark.parametrize(
        ("seeds", "baseline", "told"),
        [
            (SEEDS, "FedAvgg", "baseline 'FedAvgg': no setting has this label .did you mean 'FedAvg'"),
            (SEEDS, "", "no setting has this label"),
            ((3,), "FedAvg", r"at least two finished seeds of this one's \(3\)"),
        ],
    )
    def test_a_baseline_that_is_not_there(self, tmp_path: Path, seeds: Sequence[int], baseline: str, told: str) -> None:
        runs = find_runs([write_study(tmp_path / "study", ["FedAvg", "IFCA"], seeds)])
        with pytest.raises(InputError, match=told):
            write_report(runs, tmp_path / "out", baseline=baseline)
        assert not (tmp_path / "out").exists()

    @pytest.mark.more
    def test_files(self, tmp_path: Path) -> None:
        runs = find_runs([write_study(tmp_path / "study", ["a", "b"], rows=6)])
        files = {file.name for file in write_report(runs, tmp_path / "out", [0.5], baseline="a")}
        assert {"curves-round.pdf", "spread.tex", "spread.md", "spread.csv", "targets.tex", "targets.md"} <= files
        with (tmp_path / "out" / "spread.csv").open() as file:
            a, b = csv.DictReader(file)
        assert float(a["test_accuracy_mean"]) == pytest.approx(np.mean(last(runs[:5])))
        assert float(a["to_0.5_round_ci_low"]) <= float(a["to_0.5_round_mean"]) <= float(a["to_0.5_round_ci_high"])
        assert float(b["difference_mean"]) < 0 < float(b["difference_p"]) < 0.05
        assert r"\toprule" in (tmp_path / "out" / "targets.tex").read_text()


class TestLabels:
    def test_equal_labels_are_told_apart_by_settings_and_not_by_folders(self, tmp_path: Path) -> None:
        for number, rate in enumerate((0.1, 0.5)):
            for seed in (0, 1):
                write_run(tmp_path / f"f{number}{seed}", make_rows(3), label="FedAvg", seed=seed, local={"lr": rate})
        assert [group.label for group in group_runs(find_runs([tmp_path]))] == [
            "FedAvg (lr = 0.1)",
            "FedAvg (lr = 0.5)",
        ]

    def test_what_affects_no_result_splits_no_seeds(self, tmp_path: Path) -> None:
        for seed, run in enumerate(
            ({"workers": 2}, {"workers": 4, "executor": "cores"}, {"stop_at": "test_loss <= 1"})
        ):
            write_run(tmp_path / str(seed), make_rows(3), label=f"FedAvg, seed {seed}", seed=seed, run=run)
        assert [group.seeds for group in group_runs(find_runs([tmp_path]))] == [(0, 1), (2,)]

    @pytest.mark.parametrize(
        ("dataset", "labels"), [("table", ["A (root = a.csv)", "A (root = b.csv)"]), ("mnist", ["A"])]
    )
    def test_runs_of_two_tables_are_no_seeds_of_one(self, tmp_path: Path, dataset: str, labels: list[str]) -> None:
        """An official data set is the same wherever it lies."""
        for seed, root in enumerate(("a.csv", "b.csv")):
            data = {"dataset": dataset, "root": root}
            write_run(tmp_path / str(seed), make_rows(3), label="A", seed=seed, data=data)
        assert [group.label for group in group_runs(find_runs([tmp_path]))] == labels


@pytest.mark.more
def test_results_of_run_all_are_a_study(tmp_path: Path) -> None:
    import atoll

    settings = {"rounds": 1, "data": {"clients": 4, "dataset": "digits"}, "method": {"name": "fedavg"}}
    results: list[Result] = [atoll.run(settings, seed=seed) for seed in (0, 1)]
    (axes,) = atoll.plot.curves(results, "test_accuracy").axes
    assert (len(axes.lines), len(axes.collections)) == (1, 1)


def test_a_difference_of_accuracies_is_in_points() -> None:
    found = Difference("test_accuracy", "FedAvg", Estimate(5, 0.021, 0.01, 0.0086, 0.0334), 0.01)
    assert show_difference(found) == "+2.10 ± 1.24"


def test_a_target_that_a_run_meets_before_training_is_not_chosen(tmp_path: Path) -> None:
    for label, values in (("begins high", (0.62, 0.7, 0.92)), ("stays low", (0.1, 0.2, 0.33))):
        for seed in (0, 1):
            rows = [{**row, "test_accuracy": value} for row, value in zip(make_rows(3), values, strict=True)]
            write_run(tmp_path / f"{label}-{seed}", rows, label=label, seed=seed, local={"lr": values[0]})
    assert choose_targets(group_runs(find_runs([tmp_path])), stable=False) == [0.9]
