"""Reports: run folders read back, curves, tables and pictures, on folders that the tests write themselves."""

import csv
import errno
import io
import json
import os
import time
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.console import Console

from atoll.report.figures import plot
from atoll.report.figures.before_training import MANY_BARS, plot_clusters, plot_gantt
from atoll.report.figures.client_curves import plot_clients
from atoll.report.figures.curves import draw_curves, plot_curves, plot_probe
from atoll.report.figures.style import figure_width, lay_out_legend, line_styles, new_figure
from atoll.report.page.content import make_content
from atoll.report.page.results import size, write_mean
from atoll.report.reading.groups import overlay
from atoll.report.reading.runs import Run, find_runs, read_run
from atoll.report.report_files import save_figure, write_report
from atoll.report.tables.formats import TextTable
from atoll.report.tables.frames import read_runs
from atoll.report.tables.run_tables import lead_of, rounds_to_target
from atoll.report.tables.spread import spread_over_seeds
from atoll.report.tables.spread_tables import narrow_tables, target_table
from atoll.report.tables.writing import as_csv, as_dicts, narrow_table, show_number, table_of
from atoll.support.errors import InputError
from atoll.support.files import seal
from atoll.support.units import format_bytes, format_count, format_number, format_seconds, time_unit
from tests import made_runs
from tests.tiers import thinned


def make_row(index: int, *, loss: float | None, accuracy: float | None, **more: Any) -> dict[str, Any]:
    return {
        "event": 10 * index,
        "round": index,
        "virtual_time": 60.0 * index,
        "wall_time": 0.5 * index,
        "train_loss": loss,
        "test_loss": None,
        "test_accuracy": accuracy,
        "client_updates": 100 * index,
        "bytes_up": 1000 * index,
        "bytes_down": 2000 * index,
        **more,
    }


def make_rows(accuracies: Sequence[float | None]) -> list[dict[str, Any]]:
    return [make_row(i, loss=2.0 / (1 + i), accuracy=accuracy) for i, accuracy in enumerate(accuracies)]


def write_run(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    *,
    name: str = "demo",
    label: str = "",
    panel: str = "",
    finished: bool = True,
) -> Path:
    folder.mkdir(parents=True)
    top = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (("name", name), ("label", label)))
    (folder / "config.toml").write_text(top + f"panel = {json.dumps(panel)}\nseed = 3\n[data]\nclients = 5\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text("{}")
    return folder


def write_pair(parent: Path, panel: str = "") -> list[Run]:
    """One run that reaches 70 % and one that reaches 50 %, of different lengths."""
    fast = write_run(parent / f"fast{panel}", make_rows([0.1, 0.5, 0.6, 0.7]), label="fast", panel=panel)
    slow = write_run(parent / f"slow{panel}", make_rows([0.1, 0.2, 0.5]), label="slow", panel=panel)
    return find_runs([fast, slow])


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def render(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=50)
    return stream.getvalue()


class TestReadRun:
    def test_reads_settings_and_columns(self, tmp_path: Path) -> None:
        run = read_run(write_run(tmp_path / "r", make_rows([0.1, 0.9]), label="mine", panel="left"))
        assert (run.name, run.label, run.panel, run.finished) == ("demo", "mine", "left", True)
        assert run.config["data"] == {"clients": 5}
        assert run.rows["client_updates"].tolist() == [0, 100]
        assert run.rows["test_accuracy"].dtype == np.float64

    def test_null_and_missing_become_nan(self, tmp_path: Path) -> None:
        rows = [make_row(0, loss=None, accuracy=None), {"round": 1, "train_loss": 0.5}]
        run = read_run(write_run(tmp_path / "r", rows))
        np.testing.assert_array_equal(run.rows["train_loss"], [np.nan, 0.5])
        np.testing.assert_array_equal(run.rows["virtual_time"], [0, np.nan])

    def test_keeps_further_numbers_and_leaves_out_lists(self, tmp_path: Path) -> None:
        rows = [make_row(0, loss=1.0, accuracy=0.1, worst_accuracy=0.05, cluster_loss=[1, 2], note="a", ok=True)]
        run = read_run(write_run(tmp_path / "r", rows))
        assert run.rows["worst_accuracy"].tolist() == [0.05]
        assert not {"cluster_loss", "note", "ok"} & set(run.rows)

    def test_label_falls_back_to_name_and_folder(self, tmp_path: Path) -> None:
        assert read_run(write_run(tmp_path / "a", make_rows([0.1]))).label == "demo"
        assert read_run(write_run(tmp_path / "b", make_rows([0.1]), name="")).label == "b"

    def test_unfinished_run_with_torn_last_line(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "r", make_rows([0.1, 0.2]), finished=False)
        with (folder / "metrics.jsonl").open("a") as stream:
            stream.write('{"event": 20, "rou')
        run = read_run(folder)
        assert not run.finished
        assert run.rows["round"].tolist() == [0, 1]

    def test_a_whole_last_line_counts_without_its_line_end(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "r", [])
        for rows in (b'{"round": 0}\n{"round": 1}', seal(b'{"round": 0}') + b"\n" + seal(b'{"round": 1}')):
            (folder / "metrics.jsonl").write_bytes(rows)
            assert read_run(folder).rows["round"].tolist() == [0, 1]
            (folder / "metrics.jsonl").write_bytes(rows[:-1])
            assert read_run(folder).rows["round"].tolist() == [0]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"event": 2', "line 2: the line is incomplete"),
            ("[1, 2]", "line 2: a row must be a JSON object"),
            ('{"train_loss": "low"}', "line 2: train_loss must be a number or null, not 'low'"),
            ('{"round": true}', "line 2: round must be a number or null"),
        ],
    )
    def test_bad_line_in_the_middle_is_named(self, tmp_path: Path, line: str, message: str) -> None:
        folder = write_run(tmp_path / "r", [])
        (folder / "metrics.jsonl").write_text(f'{{"round": 0}}\n{line}\n{{"round": 2}}\n')
        with pytest.raises(InputError, match=message):
            read_run(folder)

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="does not exist"):
            read_run(tmp_path / "none")
        with pytest.raises(InputError, match="is not a run"):
            read_run(tmp_path)

    @pytest.mark.parametrize("content", [None, "", '{"round": 0, "tr'])
    def test_no_rows_yet(self, tmp_path: Path, content: str | None) -> None:
        folder = write_run(tmp_path / "r", [])
        (folder / "metrics.jsonl").unlink()
        if content is not None:
            (folder / "metrics.jsonl").write_text(content)
        with pytest.raises(InputError, match="has no rows yet"):
            read_run(folder)

    @pytest.mark.parametrize("content", [b"name = ", b"name = '\xff'"])
    def test_bad_settings(self, tmp_path: Path, content: bytes) -> None:
        folder = write_run(tmp_path / "r", make_rows([0.1]))
        (folder / "config.toml").write_bytes(content)
        with pytest.raises(InputError, match=r"config\.toml is not valid TOML"):
            read_run(folder)


class TestFindRuns:
    def test_run_folders_and_their_parents_each_once(self, tmp_path: Path) -> None:
        for name in ("b", "a"):
            write_run(tmp_path / name, make_rows([0.1]), label=name)
        (tmp_path / "notes").mkdir()
        assert [run.label for run in find_runs([tmp_path])] == ["a", "b"]
        assert [run.label for run in find_runs([tmp_path / "b", tmp_path])] == ["b", "a"]

    def test_order_of_the_experiment(self, tmp_path: Path) -> None:
        for name in ("a", "b", "c"):
            write_run(tmp_path / name, make_rows([0.1]), label=name)
        (tmp_path / "experiment.json").write_text('{"runs": ["c", "a", "not-started"]}')
        assert [run.label for run in find_runs([tmp_path])] == ["c", "a"]

    @pytest.mark.parametrize("content", ["{", "[]", "{}", '{"runs": "a"}', '{"runs": [1]}'])
    def test_bad_experiment_file(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "experiment.json").write_text(content)
        with pytest.raises(InputError, match=r"experiment\.json must hold"):
            find_runs([tmp_path])

    def test_runs_without_rows_are_left_out_of_a_parent(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [])
        with pytest.raises(InputError, match="no run in it has reached an evaluation"):
            find_runs([tmp_path])
        write_run(tmp_path / "b", make_rows([0.1]))
        assert [run.folder.name for run in find_runs([tmp_path])] == ["b"]

    def test_bad_paths(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="does not exist"):
            find_runs([tmp_path / "none"])
        with pytest.raises(InputError, match="no folder in it is one"):
            find_runs([tmp_path])
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match="is not a run"):
            find_runs([tmp_path / "file"])
        with pytest.raises(InputError, match="paths: holds no folders"):
            find_runs([])

    def test_a_folder_that_may_not_be_looked_into_is_passed_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as ``lost+found``, or another user's."""
        write_run(tmp_path / "mine", make_rows([0.5]))
        (tmp_path / "other").mkdir()
        stat, access = os.stat, os.access

        def refuse(path: Any, **options: Any) -> os.stat_result:
            if "other" in Path(path).parent.parts:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return stat(path, **options)

        monkeypatch.setattr(os, "stat", refuse)
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "other" and access(path, mode))
        assert [run.folder.name for run in find_runs([tmp_path])] == ["mine"]
        pytest.importorskip("pandas")
        assert {*read_runs(tmp_path)["folder"]} == {str(tmp_path / "mine")}

    def test_experiments_in_a_folder_are_looked_into(self, tmp_path: Path) -> None:
        """`atoll watch runs` and `atoll report runs` are of all that is in it, one experiment after the other."""
        write_run(tmp_path / "alone", make_rows([0.1]), label="alone")
        for name in ("first", "second"):
            for run in ("b", "a"):
                write_run(tmp_path / name / run, make_rows([0.1]), label=run)
            (tmp_path / name / "experiment.json").write_text('{"runs": ["b", "a"]}')
        write_run(tmp_path / "no-experiment" / "deeper", make_rows([0.1]))
        labels = [run.label for run in find_runs([tmp_path])]
        assert labels == ["alone", "b (first/b)", "a (first/a)", "b (second/b)", "a (second/a)"]

    def test_equal_labels_are_told_apart_within_a_panel_only(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / name, make_rows([0.1]), label="x", panel="p") for name in ("a", "b")]
        paths.append(write_run(tmp_path / "c", make_rows([0.1]), label="x", panel="q"))
        assert [run.label for run in find_runs(paths)] == ["x (a)", "x (b)", "x"]

    def test_equal_folder_names_take_their_parents(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / parent / "run", make_rows([0.1])) for parent in ("a", "b")]
        assert [run.label for run in find_runs(paths)] == ["demo (a/run)", "demo (b/run)"]


class TestCurves:
    def test_one_panel(self, tmp_path: Path) -> None:
        figure = plot_curves(write_pair(tmp_path), title="Both")
        loss, accuracy = figure.axes
        assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("Training loss", "Test accuracy (%)")
        assert loss.get_xlabel() == accuracy.get_xlabel() == "Round"
        assert [len(np.asarray(line.get_xdata())) for line in accuracy.lines] == [4, 3]
        np.testing.assert_allclose(np.asarray(accuracy.lines[0].get_ydata()), [10, 50, 60, 70])
        assert loss.get_ylim()[0] == 0
        assert loss.get_xlim() == (0, 3)
        assert legend_texts(figure) == ["fast", "slow"]
        assert figure.get_suptitle() == "Both"
        assert render(figure)

    @pytest.mark.parametrize(("panels", "columns"), [(2, 2), (3, 3), (4, 4), (5, 3), (6, 3), (9, 3)])
    def test_panels_share_styles_and_one_legend(self, tmp_path: Path, panels: int, columns: int) -> None:
        runs = [run for panel in range(panels) for run in write_pair(tmp_path, str(panel))]
        runs[-2:] = reversed(runs[-2:])
        figure = plot_curves(runs)
        assert len(figure.axes) == 2 * panels
        assert len({axes.get_position().x0 for axes in figure.axes}) == columns
        titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
        assert sorted(titles) == [str(panel) for panel in range(panels)]
        looks = {(x.get_label(), x.get_color(), x.get_linestyle()) for axes in figure.axes for x in axes.lines}
        assert len(looks) == 2
        assert legend_texts(figure) == ["fast", "slow"]

    def test_a_run_that_lost_its_last_row_is_not_finished(self, tmp_path: Path) -> None:
        rows = make_rows([0.1, 0.5, 0.6])
        folder = write_run(tmp_path / "a", rows)
        for final, finished in ((rows[-1], True), (rows[-1] | {"event": rows[-1]["event"] + 1}, False)):
            (folder / "summary.json").write_text(json.dumps({"final": final}))
            assert read_run(folder).finished is finished

    def test_data_sets_are_not_in_one_chart(self, tmp_path: Path) -> None:
        for name in ("digits", "mnist"):
            folder = write_run(tmp_path / name, make_rows([0.1, 0.5]), label="FedAvg")
            file = folder / "config.toml"
            file.write_text(file.read_text().replace("[data]", f'[data]\ndataset = "{name}"'))
        figure = plot_curves(find_runs([tmp_path]))
        assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["digits", "mnist"]

    def test_a_panel_named_as_the_data_set_of_another_is_drawn_too(self, tmp_path: Path) -> None:
        for name, dataset, panel in (("a", "digits", ""), ("b", "mnist", ""), ("c", "mnist", "mnist")):
            made_runs.write_run(tmp_path / name, made_runs.make_rows(3), data={"dataset": dataset}, panel=panel)
        above = plot_curves(find_runs([tmp_path])).axes[:3]
        assert [axes.get_title() for axes in above] == ["digits", "mnist", "mnist"]

    def test_what_rises_has_no_logarithmic_axis(self, tmp_path: Path) -> None:
        """Indices and scores may be below 0, which such an axis leaves out."""
        for column in ("ari", "client_score", "mean_cluster_accuracy", "own_accuracy_std"):
            rows = [row | {column: 0.001 * 10**i} for i, row in enumerate(make_rows([0.1, 0.2, 0.3]))]
            figure = plot_probe([read_run(write_run(tmp_path / column, rows))], column)
            assert figure.axes[0].get_yscale() == "linear"
        rows = [row | {"gap": 0.001 * 10**i} for i, row in enumerate(make_rows([0.1, 0.2, 0.3]))]
        assert plot_probe([read_run(write_run(tmp_path / "gap", rows))], "gap").axes[0].get_yscale() == "log"
        rows[1]["gap"] = -0.01
        assert plot_probe([read_run(write_run(tmp_path / "signed", rows))], "gap").axes[0].get_yscale() == "linear"

    def test_panels_over_each_other_are_told_apart(self, tmp_path: Path) -> None:
        runs = [*write_pair(tmp_path / "1", "first"), *write_pair(tmp_path / "2", "second")]
        ax = Figure().subplots()
        draw_curves(ax, runs, "train_loss")
        legend = ax.get_legend()
        assert legend is not None
        texts = [text.get_text() for text in legend.get_texts()]
        assert len({*texts}) == 4
        assert all(text.startswith(("first, ", "second, ")) for text in texts)
        assert len({(line.get_color(), line.get_linestyle()) for line in ax.get_lines()}) == 4

    def test_loss_axis_turns_logarithmic(self, tmp_path: Path) -> None:
        rows = [make_row(i, loss=loss, accuracy=0.5) for i, loss in enumerate([1.0, 0.1, 0.01, 0.0])]
        figure = plot_curves([read_run(write_run(tmp_path / "r", rows))])
        assert figure.axes[0].get_yscale() == "log"
        assert figure.axes[1].get_yscale() == "linear"
        assert render(figure)

    def test_panels_share_limits_only_where_that_flattens_none(self, tmp_path: Path) -> None:
        for index, (panel, top) in enumerate((("a", 1.0), ("b", 1.5), ("c", 20.0))):
            rows = [make_row(i, loss=top / (i + 1), accuracy=0.5) for i in range(3)]
            write_run(tmp_path / str(index), rows, panel=panel)
        runs = find_runs([tmp_path])
        near, far = plot_curves(runs[:2]), plot_curves(runs)
        assert near.axes[0].get_ylim() == near.axes[1].get_ylim()
        assert far.axes[0].get_ylim() != far.axes[2].get_ylim()

    @pytest.mark.parametrize(("step", "title"), [(1, "seconds"), (60, "minutes"), (3600, "hours"), (86400, "days")])
    def test_virtual_time_in_apt_units(self, tmp_path: Path, step: float, title: str) -> None:
        rows = [make_row(i, loss=1.0, accuracy=0.5) | {"virtual_time": i * step} for i in range(10)]
        figure = plot_curves([read_run(write_run(tmp_path / "r", rows))], "virtual_time")
        assert figure.axes[0].get_xlabel() == f"Virtual time ({title})"
        assert np.asarray(figure.axes[0].lines[0].get_xdata())[-1] == pytest.approx(9)

    def test_probes_without_a_value_are_passed_over(self, tmp_path: Path) -> None:
        run = read_run(write_run(tmp_path / "r", make_rows([0.1, None, 0.3, None])))
        accuracy = plot_curves([run], "client_updates").axes[1]
        assert np.asarray(accuracy.lines[0].get_xdata()).tolist() == [0, 200]
        assert accuracy.get_xlabel() == "Client updates"

    def test_single_probe_is_a_dot(self, tmp_path: Path) -> None:
        figure = plot_curves([read_run(write_run(tmp_path / "r", make_rows([0.1])))])
        assert [axes.lines[0].get_marker() for axes in figure.axes] == ["o", "o"]
        assert render(figure)

    def test_regression_shows_test_loss_or_training_loss_alone(self, tmp_path: Path) -> None:
        rows = [make_row(i, loss=1.0, accuracy=None) for i in range(3)]
        alone = plot_curves([read_run(write_run(tmp_path / "a", rows))])
        both = plot_curves([read_run(write_run(tmp_path / "b", [row | {"test_loss": 2.0} for row in rows]))])
        assert [axes.get_ylabel() for axes in alone.axes] == ["Training loss"]
        assert [axes.get_ylabel() for axes in both.axes] == ["Training loss", "Test loss"]

    def test_a_run_of_nothing_but_nulls_still_draws(self, tmp_path: Path) -> None:
        pair = write_pair(tmp_path)
        empty = write_run(tmp_path / "empty", [make_row(0, loss=None, accuracy=None)], panel="empty")
        assert render(plot_curves([*pair, read_run(empty)]))
        assert render(plot_curves([read_run(empty)], "virtual_time"))

    def test_an_empty_chart_says_why(self, tmp_path: Path) -> None:
        """As of the accuracies of numbers, beside a panel of classes."""
        numbers = write_run(tmp_path / "numbers", [make_row(i, loss=1.0, accuracy=None) for i in range(3)], panel="b")
        figure = plot_curves([*write_pair(tmp_path, "a"), read_run(numbers)])
        assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [[], [], [], ["not recorded"]]
        assert render(figure)

    @pytest.mark.parametrize(("value", "limits"), [(0.0, (-0.2, 10.2)), (1.0, (89.8, 100.2)), (0.5, (39.8, 50.2))])
    def test_an_axis_of_accuracies_has_no_shares_that_cannot_be(
        self, tmp_path: Path, value: float, limits: tuple[float, float]
    ) -> None:
        run = read_run(write_run(tmp_path / "r", make_rows([value, value])))
        assert plot_curves([run]).axes[1].get_ylim() == pytest.approx(limits)

    def test_a_logarithmic_axis_of_zeros_warns_of_nothing(self, tmp_path: Path) -> None:
        """As of an error to planted parameters that are found at once."""
        rows = [row | {"parameter_error": 0.0} for row in make_rows([0.1, 0.5])]
        with warnings.catch_warnings(action="error"):
            figure = plot_probe([read_run(write_run(tmp_path / "r", rows))], "parameter_error")
            assert render(figure)
        assert figure.axes[0].get_ylim() == (0.1, 1.0)

    def test_long_labels_of_client_curves_fit_the_figure(self, tmp_path: Path) -> None:
        label = "a label with a good many words, longer than half of the figure's width, number"
        for number in range(8):
            folder = write_run(tmp_path / str(number), make_rows([0.1, 0.5]), label=f"{label} {number}")
            told = {"client_accuracy": {"clients": [0, 1], "values": [0.2, 0.9]}}
            (folder / "clients.json").write_text(json.dumps(told))
        figure = plot_clients(find_runs([tmp_path]), "client_accuracy")
        assert render(figure)
        assert {text.replace("\n", " ") for text in legend_texts(figure)} == {
            *(f"{label} {n}" for n in range(8)),
            "Mean over clients",
        }
        legend = figure.legends[0].get_window_extent()
        assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1
        (axes,) = figure.axes
        assert axes.get_window_extent().height > 0.3 * figure.get_dpi() * 3.4, "the legend flattens no curve"

    def test_no_runs(self) -> None:
        with pytest.raises(InputError, match="no runs were given"):
            plot_curves([])


class TestTables:
    def test_values_by_hand(self, tmp_path: Path) -> None:
        fast, slow = as_dicts(rounds_to_target(write_pair(tmp_path), [0.5, 0.6]))
        assert fast == {
            "panel": "",
            "label": "fast",
            "folder": "fast",
            "finished": True,
            "final_train_loss": 0.5,
            "final_test_accuracy": 0.7,
            "best_test_accuracy": 0.7,
            "metric": "test_accuracy",
            "targets": (
                {"target": 0.5, "round": 1, "client_updates": 100, "virtual_time": 60.0, "bytes_sent": 3000},
                {"target": 0.6, "round": 2, "client_updates": 200, "virtual_time": 120.0, "bytes_sent": 6000},
            ),
        }
        assert slow["targets"][1] == {
            "target": 0.6,
            "round": None,
            "client_updates": None,
            "virtual_time": None,
            "bytes_sent": None,
        }

    def test_a_stable_target_is_one_that_is_not_lost_again(self, tmp_path: Path) -> None:
        curves: list[list[float | None]] = [[0.1, 0.6, 0.4, 0.7, None, 0.6], [0.1, 0.6, 0.7, 0.4]]
        runs = [read_run(write_run(tmp_path / str(i), make_rows(curve))) for i, curve in enumerate(curves)]
        first, stable = (rounds_to_target(runs, [0.5], stable=stable) for stable in (False, True))
        assert [row.targets[0].round for row in first] == [1, 1]
        assert [row.targets[0].round for row in stable] == [3, None]
        assert (
            "bytes sent of the first measurement from which all later ones meet it." in table_of(stable).as_markdown()
        )
        assert [row.get("stable") for row in (as_dicts(first)[0], as_dicts(stable)[0])] == [None, True]
        note = "To a target: round of the first measurement from which all later ones meet it."
        assert narrow_table(stable).note == note

    def test_best_may_come_before_the_last(self, tmp_path: Path) -> None:
        run = read_run(write_run(tmp_path / "r", make_rows([0.1, 0.9, None, 0.8])))
        (row,) = rounds_to_target([run])
        assert (row.final_test_accuracy, row.best_test_accuracy) == (0.8, 0.9)

    @pytest.mark.parametrize(
        ("curves", "expected"),
        [
            # All reach 50 %, but at different rounds; one reaches 70 %; 60 % lies between.
            ([[0.1, 0.5, 0.6, 0.7], [0.1, 0.2, 0.5]], [0.5, 0.6, 0.7]),
            # All end alike: the three highest that tell them apart.
            ([[0.1, 0.9, 0.9], [0.1, 0.2, 0.9]], [0.8, 0.85, 0.9]),
            # A run alone: what it reaches after its first probe.
            ([[0.1, 0.22]], [0.15, 0.2]),
            # What one meets before it trains says nothing, unless there is nothing else.
            ([[0.4, 0.6], [0.1, 0.3]], [0.5, 0.55, 0.6]),
            ([[0.4], [0.1, 0.3]], [0.3, 0.35, 0.4]),
            # Equal runs, and runs without an accuracy, have nothing to tell.
            ([[0.1, 0.5], [0.1, 0.5]], []),
            ([[None, None]], []),
        ],
    )
    def test_default_targets(self, tmp_path: Path, curves: list[list[float | None]], expected: list[float]) -> None:
        runs = [read_run(write_run(tmp_path / str(i), make_rows(curve))) for i, curve in enumerate(curves)]
        assert [reached.target for reached in rounds_to_target(runs)[0].targets] == expected

    def test_a_loss_is_met_from_above(self, tmp_path: Path) -> None:
        runs = write_pair(tmp_path)
        rows = rounds_to_target(runs, [0.6], "train_loss")  # losses are 2, 1, 2/3, 1/2
        assert [row.targets[0].round for row in rows] == [3, None]
        assert "To train_loss 0.6" in table_of(rows).as_markdown()
        assert rounds_to_target(runs, metric="train_loss")[0].targets == ()

    def test_unknown_metric(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="metric = 'speed' is in no run; the columns are"):
            rounds_to_target(write_pair(tmp_path), metric="speed")
        assert rounds_to_target([], metric="speed") == []

    def test_a_metric_that_only_some_runs_have(self, tmp_path: Path) -> None:
        rows = [make_row(0, loss=1.0, accuracy=0.1, worst_accuracy=0.9)]
        runs = [*write_pair(tmp_path), read_run(write_run(tmp_path / "w", rows))]
        reached = [row.targets[0].round for row in rounds_to_target(runs, [0.5], "worst_accuracy")]
        assert reached == [None, None, 0]

    def test_markdown(self, tmp_path: Path) -> None:
        assert table_of(rounds_to_target(write_pair(tmp_path), [0.6])).as_markdown() == (
            "| Run  | Final loss | Final accuracy | Best accuracy |                To 60 % |\n"
            "| ---- | ---------: | -------------: | ------------: | ---------------------: |\n"
            "| fast |        0.5 |        70.00 % |       70.00 % | 2 / 200 / 2 min / 6 kB |\n"
            "| slow |     0.6667 |        50.00 % |       50.00 % |                      – |\n"
            "\n"
            "To a target: round / client updates / virtual time / bytes sent of the first measurement that meets it.\n"
        )

    def test_a_column_of_one_letter_has_a_rule_that_markdown_reads(self) -> None:
        lines = TextTable([["Run", "p"], ["a", "–"]], 1).as_markdown().splitlines()
        assert lines == ["| Run |  p |", "| --- | -: |", "| a   |  – |"]

    def test_runs_without_accuracies_show_the_test_loss(self, tmp_path: Path) -> None:
        rows = [make_row(i, loss=1.0, accuracy=None, test_loss=3.0 - i) for i in range(2)]
        numbers = read_run(write_run(tmp_path / "numbers", rows, label="numbers"))
        assert (
            table_of(rounds_to_target([numbers])).as_markdown().splitlines()[2]
            == "| numbers |          1 |         2 |"
        )
        both = table_of(rounds_to_target([numbers, *write_pair(tmp_path)], [0.6])).as_markdown().splitlines()
        assert both[0].split("|")[3:6] == [" Final accuracy ", " Best accuracy ", " Test loss "]
        assert both[3].split("|")[5].strip() == "–", "those with accuracies"

    def test_markdown_of_panels_pipes_and_unfinished_runs(self, tmp_path: Path) -> None:
        rows = [{"round": 0, "test_accuracy": 0.5}]
        folder = write_run(tmp_path / "r", rows, label="a|b", panel="left", finished=False)
        lines = table_of(rounds_to_target([read_run(folder)], [0.5])).as_markdown().splitlines()
        assert lines[0].startswith("| Panel | Run ")
        assert lines[2].startswith("| left  | a\\|b (unfinished) |          – |")
        assert lines[2].endswith("| 0 / – / – / – |")
        assert table_of([]).as_markdown().startswith("| Run |")

    def test_rich(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "r", make_rows([0.1, 0.5]), label="a[red]b")
        stream = io.StringIO()
        table = narrow_table(rounds_to_target([read_run(folder)], [0.5, 0.9])).as_rich("Runs")
        Console(file=stream, width=120).print(table)
        assert "a[red]b" in stream.getvalue()
        assert stream.getvalue().splitlines()[4].split("│")[5].strip() == "1"  # rounds alone, so that it fits
        assert "–" in stream.getvalue()

    @pytest.mark.parametrize("width", [40, 60])
    def test_no_number_is_cut_short(self, tmp_path: Path, width: int) -> None:
        stream = io.StringIO()
        table = narrow_table(rounds_to_target(write_pair(tmp_path), [0.4, 0.5, 0.6, 0.7])).as_rich()
        Console(file=stream, width=width).print(table)
        assert "…" not in stream.getvalue()
        lines = [line.split("│")[1:-1] for line in stream.getvalue().splitlines() if line.startswith("│")]
        assert "".join(line[1].strip() for line in lines) == "0.50.6667"  # the final losses, each perhaps in parts

    def test_virtual_time_leads_where_rounds_mean_different_work(self, tmp_path: Path) -> None:
        """CenSyn's 20 rounds take longer than CenAsy's 300, so that rounds would name the wrong winner."""
        syn = [make_row(i, loss=1.0, accuracy=0.04 * i) | {"virtual_time": 16.6 * i} for i in range(21)]
        asy = [make_row(15 * i, loss=1.0, accuracy=0.04 * i) | {"virtual_time": 13.1 * i} for i in range(21)]
        runs = []
        for label, rows in (("CenSyn", syn), ("CenAsy", asy)):
            folder = write_run(tmp_path / label, rows, label=label)
            with (folder / "config.toml").open("a") as config:
                config.write('[method]\nname = "hierarchical"\n')
            runs.append(read_run(folder))
        rows_ = rounds_to_target(runs, [0.8])
        assert [row.lead for row in rows_] == ["virtual_time", "virtual_time"]
        printed = io.StringIO()
        Console(file=printed, width=120).print(narrow_table(rows_).as_rich())
        assert "5.53 min / 20" in printed.getvalue()
        assert "4.37 min / 300" in printed.getvalue()
        assert "Virtual time comes first, since rounds differ in work." in " ".join(printed.getvalue().split())
        assert "| 4.37 min / 300 / 30,000 / 900 kB |" in table_of(rows_).as_markdown()
        assert "virtual time / round / client updates / bytes sent of the first" in table_of(rows_).as_markdown()

    def test_rounds_lead_where_they_are_the_same_work(self, tmp_path: Path) -> None:
        pair = write_pair(tmp_path)
        assert lead_of(pair) == "round"
        rows = [make_row(i, loss=1.0, accuracy=0.5) | {"client_updates": 10 * i} for i in range(4)]
        assert lead_of([*pair, read_run(write_run(tmp_path / "tenth", rows))]) == "virtual_time"
        assert lead_of([read_run(write_run(tmp_path / "begun", rows[:1]))]) == "round"

    def test_virtual_time_does_not_lead_where_clocks_differ_in_kind(self, tmp_path: Path) -> None:
        told = "Virtual times with a network of aggregators are not comparable with those without one."
        for name in ("hierarchical", "fedavg"):
            for seed in (0, 1):
                made_runs.write_run(
                    tmp_path / f"{name}-{seed}", made_runs.make_rows(8), label=name, seed=seed, method={"name": name}
                )
        runs = find_runs([tmp_path])
        rows = rounds_to_target(runs, [0.5])
        markdown = table_of(rows).as_markdown()
        assert "To a target: client updates / round / virtual time / bytes sent of the first" in markdown
        assert f"Client updates come first, since rounds differ in work. {told}" in narrow_table(rows).note
        assert told in target_table(spread_over_seeds(runs, [0.5])).note
        page = make_content(runs, [0.5])
        assert told in page.sections["notices-body"]
        assert page.data["curves"]["lead"] == "client_updates"
        targets = page.sections["targets-body"]
        assert targets.index("Client updates") < targets.index("Rounds") < targets.index("Virtual time")
        assert targets.count("1.00×") == 4  # of all costs but virtual time
        assert lead_of(runs[2:]) == "virtual_time"  # of hierarchical alone
        assert told not in table_of(rounds_to_target(runs[2:], [0.5])).note

    def test_latex(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "r", make_rows([0.1, 0.5]), label="a_b & 50 %")
        assert table_of(rounds_to_target([read_run(folder)], [0.5, 0.9])).as_latex() == (
            "% To a target: round / client updates / virtual time / bytes sent "
            "of the first measurement that meets it.\n"
            "\\begin{tabular}{lrrrrr}\n\\toprule\n"
            "Run & Final loss & Final accuracy & Best accuracy & To 50 \\% & To 90 \\% \\\\\n\\midrule\n"
            "a\\_b \\& 50 \\% & 1 & 50.00 \\% & 50.00 \\% & 1 / 100 / 60 s / 3 kB & -- \\\\\n"
            "\\bottomrule\n\\end{tabular}\n"
        )

    def test_csv(self, tmp_path: Path) -> None:
        rows = [make_row(0, loss=1.0, accuracy=0.1, gap=0.25)]
        runs = [*write_pair(tmp_path), read_run(write_run(tmp_path / "w", rows))]
        read = list(csv.DictReader(io.StringIO(as_csv(rounds_to_target(runs, [0.5])))))
        assert [line["to_0.5_bytes_sent"] for line in read] == ["3000", "6000", ""]
        assert [line["final_test_accuracy"] for line in read] == ["0.7", "0.5", "0.1"]
        assert [line["final_gap"] for line in read] == ["", "", "0.25"]

    def test_many_probes_fit_the_terminal(self, tmp_path: Path) -> None:
        own = {f"{kind}_client_accuracy_{part}": 0.5 for kind in ("", "new", "trained") for part in ("p10", "worst")}
        pair = [
            write_run(tmp_path / name, [make_row(i, loss=1.0, accuracy=0.5, **own) for i in (0, 1)]) for name in "ab"
        ]
        rows = rounds_to_target(find_runs(pair))
        main, measured = (table.as_rich() for table in narrow_tables(rows, []))
        assert [column.header for column in main.columns if "client" in str(column.header)] == []
        assert measured.row_count == len(own)
        printed = io.StringIO()
        Console(file=printed, width=80).print(main, measured)
        assert "50.00 %" in printed.getvalue()
        assert "…" not in printed.getvalue()
        few = rounds_to_target([read_run(write_run(tmp_path / "few", [make_row(0, loss=1.0, accuracy=0.1, gap=1.0)]))])
        assert len(narrow_tables(few, [])) == 1

    def test_panels_in_one(self, tmp_path: Path) -> None:
        runs = overlay([*write_pair(tmp_path, "CenSyn"), *write_pair(tmp_path, "CenAsy")])
        assert [run.label for run in runs] == ["CenSyn, fast", "CenSyn, slow", "CenAsy, fast", "CenAsy, slow"]
        figure = plot_curves(runs)
        assert len(figure.axes) == 2
        assert legend_texts(figure) == [run.label for run in runs]
        seeds = overlay([replace(run, config={**run.config, "seed": seed}) for seed, run in enumerate(runs[:1] * 2)])
        assert [spread.label for spread in spread_over_seeds(seeds)] == ["CenSyn, fast"]


class TestPictures:
    def test_shares(self) -> None:
        figure = new_figure(8, 2)
        axes = figure.subplots()
        plot.shares(axes, [[3, 1], [0, 0], [0, 5]], "Three")
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("Client", "Class", "Three")
        np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), [[0.75, 0, 0], [0.25, 0, 1]])
        assert render(figure)

    def test_shares_of_many_clients_are_a_sample(self) -> None:
        axes = new_figure(8, 2).subplots()
        plot.shares(axes, np.ones((1000, 10), dtype=int), "Many")
        assert axes.get_title() == "Many (60 of 1,000 clients)"
        assert np.asarray(axes.images[0].get_array()).shape == (10, 60)
        assert axes.get_xticklabels()[0].get_text() == "0"

    @pytest.mark.parametrize("counts", [[], [1, 2], np.ones((0, 3)), np.ones((3, 0))])
    def test_shares_of_nothing(self, counts: Any) -> None:
        with pytest.raises(InputError, match="class_counts must be"):
            plot.shares(new_figure(8, 2).subplots(), counts)

    def test_clusters(self) -> None:
        figure = plot_clusters([4, 2, 6], [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], "Three")
        top, bottom = figure.axes[:2]
        assert [patch.get_height() for patch in top.patches] == [4, 2, 6]  # type: ignore[attr-defined]
        assert (top.get_ylabel(), bottom.get_ylabel(), bottom.get_xlabel()) == ("Clients", "Class", "Cluster")
        np.testing.assert_allclose(np.asarray(bottom.images[0].get_array()), [[1, 0.5, 0], [0, 0.5, 1]])
        assert render(figure)

    def test_clusters_that_disagree(self) -> None:
        with pytest.raises(InputError, match=r"sizes has shape \(1,\), but class_shares describes 2"):
            plot_clusters([4], [[1, 0], [0, 1]])
        with pytest.raises(InputError, match="class_shares must be"):
            plot_clusters([], [])

    def test_gantt(self) -> None:
        figure = plot_gantt([(0, 0, 3600, 0), (2, 0, 7200, 0), (0, 3600, 10800, 2)], "Three")
        axes = figure.axes[0]
        (bars,) = axes.collections
        assert axes.get_xlabel().startswith("Virtual time (hours)")
        assert axes.get_ylabel() == "Cluster"
        assert axes.get_yticks().tolist() == [0, 1, 2]
        ends = [path.vertices[:, 0].max() for path in bars.get_paths()]  # type: ignore[index,union-attr]
        assert ends == [1, 2, 3]
        first, second, third = (to_hex(colour) for colour in np.asarray(bars.get_facecolor()))
        assert first == second != third  # rounds 0 and 2 differ, though both are even
        assert render(figure)

    @pytest.mark.more
    def test_gantt_of_many_bars_is_fast_and_small(self, tmp_path: Path) -> None:
        events = [(c, 10.0 * i, 10.0 * i + 9, i) for c in range(100) for i in range(100)]
        assert len(events) > MANY_BARS
        start = time.perf_counter()
        figure = plot_gantt(events)
        _, svg = save_figure(figure, tmp_path / "gantt")
        assert time.perf_counter() - start < 20
        assert svg.stat().st_size < 1_000_000
        assert figure.get_figheight() <= 7

    @pytest.mark.parametrize(
        ("events", "message"),
        [
            ([], "no events"),
            ([(-1, 0, 1, 0)], "names cluster -1"),
            ([(0, 0, 1, 0), (0, 2, 1, 0)], "Event 1 ends before it starts"),
        ],
    )
    def test_bad_events(self, events: list[tuple[int, float, float, int]], message: str) -> None:
        with pytest.raises(InputError, match=message):
            plot_gantt(events)

    def test_gantt_shows_waiting(self) -> None:
        events = [(0, 0.0, 60.0, 0), (1, 0.0, 60.0, 0), (0, 60.0, 120.0, 1), (1, 60.0, 120.0, 1)]
        figure = plot_gantt(events, "Two", [30.0, 60.0, 90.0, 120.0])
        bars, waits = figure.axes[0].collections
        assert [path.vertices[:, 0].max() for path in bars.get_paths()] == [0.5, 1, 1.5, 2]  # type: ignore[index,union-attr]
        spans = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in waits.get_paths()]  # type: ignore[index,union-attr]
        assert spans == [(0.5, 1), (1.5, 2)]
        assert legend_texts(figure) == ["Training", "Training (alternate rounds)", "Waiting for the slowest"]
        assert render(figure)
        assert legend_texts(plot_gantt(events)) == ["Training", "Training (alternate rounds)"]

    @pytest.mark.parametrize(
        ("done", "message"), [([1.0], r"shape \(1,\), but there are 2"), ([0.5, 3.0], r"done\[1\] = 3: must lie")]
    )
    def test_gantt_refuses_work_outside_its_event(self, done: list[float], message: str) -> None:
        with pytest.raises(InputError, match=message):
            plot_gantt([(0, 0, 1, 0), (1, 1, 2, 0)], done=done)

    def test_heat_maps_scale_to_their_data(self) -> None:
        axes, empty = new_figure(8, 2).subplots(1, 2)
        plot.shares(axes, np.ones((5, 10), dtype=int))
        assert axes.images[0].get_clim() == (0, pytest.approx(0.1))
        clusters = plot_clusters([1, 1], [[0.5, 0.5], [0.25, 0.75]]).axes[1].images[0]
        assert clusters.get_clim() == (0, 0.75)
        plot.shares(empty, np.zeros((2, 2), dtype=int))
        assert empty.images[0].get_clim() == (0, 1)

    def test_event_of_no_length(self) -> None:
        assert render(plot_gantt([(0, 0.0, 0.0, 0)]))


class TestWidth:
    @pytest.mark.more
    @pytest.mark.parametrize("inches", thinned([3.5, 7.16], 1))
    def test_figures_are_as_wide_as_asked(self, tmp_path: Path, inches: float) -> None:
        runs = [*write_pair(tmp_path, "left"), *write_pair(tmp_path, "right")]
        with figure_width(inches):
            figures = [plot_curves(runs), plot_curves(runs[:2]), plot_gantt([(0, 0, 1, 0)])]
        assert [figure.get_figwidth() for figure in figures] == [pytest.approx(inches)] * 3
        assert all(render(figure) for figure in figures)
        assert plot_curves(runs).get_figwidth() == 8

    def test_a_column_has_one_chart_above_the_other(self, tmp_path: Path) -> None:
        with figure_width(3.5):
            loss, accuracy = plot_curves(write_pair(tmp_path)).axes
        assert loss.get_position().x0 == accuracy.get_position().x0
        assert loss.get_position().y0 > accuracy.get_position().y1


class TestPlot:
    """`atoll.plot`: into axes that the user gives, whose figure keeps its size."""

    @pytest.mark.more
    def test_everything_into_one_figure(self, tmp_path: Path) -> None:
        runs = [replace(run, clients={"gap": np.array([1.0, 2.0])}) for run in write_pair(tmp_path)]
        xy = [[0.0, 0.0], [1.0, 1.0]]
        draw: dict[str, Callable[[Any], Any]] = {
            "bars": lambda ax: plot.bars(ax, {"group": {"series": 1.0}}, "Value", group_label="Groups"),
            "clients": lambda ax: plot.clients(ax, runs, "gap"),
            "clusters": lambda ax: plot.clusters(ax, [[0.5, 0.5]]),
            "completion": lambda ax: plot.completion(ax, [1.0, 2.0], 1.5),
            "curves": lambda ax: plot.curves(runs, "test_accuracy", "virtual_time", ax=ax) and None,
            "gantt": lambda ax: plot.gantt(ax, [(0, 0, 1, 0)], done=[0.5]),
            "network": lambda ax: plot.network(ax, xy, xy, [0, 1]),
            "shares": lambda ax: plot.shares(ax, [[1, 2]]),
            "size_against": lambda ax: plot.size_against(ax, [0.1, 0.2], [3, 4], "Frequency"),
        }
        assert sorted(draw) == sorted(plot.__all__)
        figure = Figure(figsize=(12, 9), layout="constrained")
        for axes, (name, function) in zip(figure.subplots(3, 3).flat, draw.items(), strict=True):
            handles = function(axes)
            assert axes.has_data(), name
            assert axes.get_xlabel(), name
            if handles:
                axes.legend(handles=handles)
        assert tuple(figure.get_size_inches()) == (12, 9)
        assert render(figure)

    def test_a_column_that_no_run_has(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no run has the column ari"):
            plot.curves(write_pair(tmp_path), "ari", ax=Figure().subplots())


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "files"),
        [
            ("gantt", ["gantt.png", "gantt.svg"]),
            ("gantt.pdf", ["gantt.pdf"]),
            ("gantt.SVG", ["gantt.SVG"]),
            ("v1.2", ["v1.2.png", "v1.2.svg"]),
        ],
    )
    def test_a_figure_is_what_its_name_says(self, tmp_path: Path, name: str, files: list[str]) -> None:
        figure = plot_gantt([(0, 0, 1, 0)])
        assert [file.name for file in save_figure(figure, tmp_path / name)] == files
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
        if name.endswith("pdf"):
            before = (tmp_path / name).read_bytes()
            assert before.startswith(b"%PDF")
            assert b"/Type3" not in before
            save_figure(figure, tmp_path / name)
            assert (tmp_path / name).read_bytes() == before

    @pytest.mark.more
    def test_report(self, tmp_path: Path) -> None:
        files = write_report(write_pair(tmp_path / "runs"), tmp_path / "deep" / "out")
        assert [file.name for file in files] == [
            "curves-round.png",
            "curves-round.svg",
            "curves-round.pdf",
            "curves-client-updates.png",
            "curves-client-updates.svg",
            "curves-client-updates.pdf",
            "curves-virtual-time.png",
            "curves-virtual-time.svg",
            "curves-virtual-time.pdf",
            "table.md",
            "table.tex",
            "table.csv",
            "table.json",
        ]
        assert sorted(files) == sorted((tmp_path / "deep" / "out").iterdir())  # nothing temporary is left
        assert all(file.stat().st_size > 0 for file in files)
        assert json.loads(files[-1].read_text())[1]["targets"][-1]["round"] is None
        assert files[-4].read_text().startswith("| Run ")

    @pytest.mark.more
    def test_runs_that_differ_in_bytes_an_update_are_drawn_against_bytes(self, tmp_path: Path) -> None:
        one, other = write_pair(tmp_path / "runs")
        coded = replace(other, rows=other.rows | {"bytes_up": other.rows["bytes_up"] / 4})
        names = {file.name for file in write_report([one, coded], tmp_path / "out")}
        assert {"curves-bytes-up.png", "curves-bytes-up.svg", "curves-bytes-up.pdf"} < names
        axes = plot_curves([one, coded], "bytes_up").axes[1]
        whole, quarter = (np.asarray(line.get_xdata()) for line in axes.lines)
        assert axes.get_xscale() == "log"
        assert axes.get_xlabel() == "Sent up (kB)"
        np.testing.assert_allclose(whole, one.rows["bytes_up"][1:] / 1000)  # zero has no place on a logarithmic axis
        assert quarter.max() < whole.max()

    def test_bytes_are_labelled_at_round_numbers_in_one_notation(self, tmp_path: Path) -> None:
        run = read_run(write_run(tmp_path / "a", make_rows([0.5] * 12)))
        figure = plot_curves([run], "bytes_up")
        figure.draw_without_rendering()
        ticks = [*figure.axes[1].xaxis.get_major_ticks(), *figure.axes[1].xaxis.get_minor_ticks()]
        seen = [tick.label1.get_text() for tick in ticks if 1 <= tick.get_loc() <= 11]
        assert [label for label in seen if label] == ["1", "2", "5", "10"]

    def test_a_row_without_bytes_leaves_their_unit(self, tmp_path: Path) -> None:
        rows = make_rows([0.1, 0.2, 0.3])
        rows[1]["bytes_up"] = None
        axes = plot_curves([read_run(write_run(tmp_path / "a", rows))], "bytes_up").axes[1]
        assert axes.get_xlabel() == "Sent up (kB)"

    def test_report_without_runs_writes_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no runs"):
            write_report([], tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.more
    def test_figures_are_whole_and_equal_to_the_byte(self, tmp_path: Path) -> None:
        runs = write_pair(tmp_path / "runs")
        first = save_figure(plot_curves(runs), tmp_path / "run.v1")
        second = save_figure(plot_curves(runs), tmp_path / "again")
        assert [file.name for file in first] == ["run.v1.png", "run.v1.svg"]
        assert first[0].read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(first[1]).getroot().tag.endswith("svg")
        assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]

    def test_failed_write_keeps_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "f.png").write_bytes(b"old")

        def fail(*_: object, **__: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(Figure, "savefig", fail)
        with pytest.raises(OSError, match="disk full"):
            save_figure(Figure(), tmp_path / "f")
        assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("f.png", b"old")]


class TestStyle:
    def test_twelve_labels_have_a_colour_each_and_more_look_different(self) -> None:
        styles = line_styles([*"abcdefghijklmnopqrstuvwx", "a"])
        assert len({str(style) for style in styles.values()}) == len(styles) == 24
        assert len({style["color"] for style in line_styles("abcdefghijkl").values()}) == 12

    @pytest.mark.parametrize(
        ("labels", "columns"), [(["a"], 1), (["method"] * 8, 4), (["a rather long label " * 9] * 2, 1)]
    )
    def test_legend_fits_its_width(self, labels: list[str], columns: int) -> None:
        found, texts, lines = lay_out_legend(labels, 6.0)
        assert found == columns
        assert max(len(line) for text in texts for line in text.splitlines()) * 0.075 + 0.55 <= 6.0 / columns
        assert lines <= sum(text.count("\n") + 1 for text in texts)

    @pytest.mark.parametrize(
        ("call", "value", "expected"),
        [
            (format_count, 0, "0"),
            (format_count, 9999, "9999"),
            (format_count, 12_500, "12.5k"),
            (format_count, 1_500_000, "1.5M"),
            (format_count, 2e9, "2G"),
            (format_bytes, 512, "512 B"),
            (format_bytes, 1_234_000, "1.23 MB"),
            (format_bytes, 4e17, "400,000 TB"),
            (partial(show_number, "worst_accuracy"), 0.25, "25.00 %"),
            (partial(show_number, "gap"), 0.25, "0.25"),
            (partial(show_number, "perplexity"), 31_234.6, "31,235"),
            (lambda mean: write_mean([mean], size), 4e17, "400,000 TB"),
            (lambda span: time_unit(span).name, 119, "seconds"),
            (lambda span: time_unit(span).name, 120, "minutes"),
            (lambda span: time_unit(span).name, 7200, "hours"),
            (format_seconds, 150, "2.5 min"),
            (format_number, 12345.6, "12,346"),
            (format_number, 0.0123456, "0.01235"),
            (lambda value: format_number(value, 2), 99.7, "100"),
        ],
    )
    def test_units(self, call: Callable[[float], str], value: float, expected: str) -> None:
        assert call(value) == expected
