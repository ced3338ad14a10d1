"""Reports on clients that find their cluster, on planted parameters and on several seeds, on folders written here."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, StepPatch

from atoll.report.figures.assignments import BAND, plot_identity
from atoll.report.figures.curves import plot_probe
from atoll.report.figures.style import PALETTE, figure_width
from atoll.report.reading.runs import Run, find_runs, read_run
from atoll.report.report_files import write_report
from atoll.report.tables.run_tables import rounds_to_target
from atoll.report.tables.spread import spread_over_seeds
from atoll.report.tables.spread_tables import final_table, narrow_tables
from atoll.report.tables.writing import as_dicts, table_of
from atoll.support.errors import InputError
from atoll.support.estimates import Estimate
from tests.report.test_report import make_row, make_rows, render, write_pair, write_run
from tests.tiers import thinned

MIXED, FOUND = [[6, 2, 2], [5, 0, 5]], [[0, 10, 0], [10, 0, 0]]
TITLES = ["Test accuracy (%)", "Adjusted Rand index", "Clients by the model they take", "Clients at round 1"]


def identity_row(index: int, confusion: Any, ari: float | None, own: Sequence[float | None] | None) -> dict[str, Any]:
    return make_row(
        index, loss=1 / (1 + index), accuracy=0.5, confusion=confusion, ari=ari, cluster_accuracy=own and list(own)
    )


def found_rows() -> list[dict[str, Any]]:
    return [identity_row(0, MIXED, 0.1, [0.1, 0.2, 0.3]), identity_row(1, FOUND, 1.0, [0.8, 0.9, None])]


def read(tmp_path: Path, rows: Sequence[dict[str, Any]], **names: Any) -> Run:
    return read_run(write_run(tmp_path / "r", rows, **names))


def steps(patch: Patch) -> list[Any]:
    """Return a band's values, edges and baseline."""
    assert isinstance(patch, StepPatch)
    return [np.asarray(values) for values in patch.get_data()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


class TestRead:
    def test_lists_become_tables(self, tmp_path: Path) -> None:
        rows = [make_row(0, loss=1.0, accuracy=0.1, counts=[1, 2], mixed=[1]), {"round": 1, "mixed": 2}]
        assert read(tmp_path, rows).tables == {"counts": [[1, 2], None]}


class TestIdentity:
    def test_four_panels(self, tmp_path: Path) -> None:
        figure = plot_identity(read(tmp_path, found_rows(), label="mine", panel="left"))
        assert titles(figure) == TITLES
        assert figure.get_suptitle() == "left · mine"
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Model 0", "Model 1", "Model 2", "Mean"]
        assert render(figure)

    def test_in_one_column_panels_are_above_each_other(self, tmp_path: Path) -> None:
        with figure_width(3.5):
            figure = plot_identity(read(tmp_path, found_rows()))
        assert titles(figure) == TITLES
        assert render(figure)
        assert all(low.get_position().y1 < high.get_position().y0 for high, low in pairwise(figure.axes))
        widths = [axes.get_position().width for axes in figure.axes]
        assert min(widths) == pytest.approx(max(widths))

    def test_accuracies_by_model_and_mean(self, tmp_path: Path) -> None:
        mean, *own = plot_identity(read(tmp_path, found_rows())).axes[0].lines
        np.testing.assert_allclose(np.asarray(mean.get_ydata()), [50, 50])
        np.testing.assert_allclose(np.asarray(own[0].get_ydata()), [10, 80])
        np.testing.assert_allclose(np.asarray(own[2].get_ydata()), [30, np.nan])
        assert [line.get_color() for line in own] == list(PALETTE[:3])
        assert np.asarray(own[2].get_markevery()).tolist() == [0]  # a value alone is a dot
        assert all(mean.get_linewidth() > 2 * line.get_linewidth() for line in own)

    def test_index_says_since_when_it_is_exact(self, tmp_path: Path) -> None:
        rows = [identity_row(i, FOUND, ari, None) for i, ari in enumerate([1.0, 0.5, None, 1.0, 1.0])]
        axes = plot_identity(read(tmp_path, rows)).axes[1]
        assert [text.get_text() for text in axes.texts] == ["exact since round 3"]
        assert np.asarray(axes.lines[0].get_ydata())[1] == 0.5

    def test_index_that_ends_below_one_or_is_negative(self, tmp_path: Path) -> None:
        rows = [identity_row(i, MIXED, ari, None) for i, ari in enumerate([1.0, -0.2])]
        axes = plot_identity(read(tmp_path, rows)).axes[1]
        assert not axes.texts
        assert axes.get_ylim()[0] < -0.2

    def test_bands_split_each_group_by_model(self, tmp_path: Path) -> None:
        axes = plot_identity(read(tmp_path, found_rows())).axes[2]
        bands = [steps(patch) for patch in axes.patches]
        colors = [to_hex(patch.get_facecolor()).upper() for patch in axes.patches]
        # Group 0 takes all three models; group 1 never takes model 1, which is not drawn.
        assert colors == [*PALETTE[:3], PALETTE[0], PALETTE[2]]
        heights = np.array([baseline - values for values, _, baseline in bands]) / BAND
        np.testing.assert_allclose(heights, [[0.6, 0], [0.2, 1], [0.2, 0], [0.5, 1], [0.5, 0]], atol=1e-12)
        assert [edges.tolist() for _, edges, _ in bands] == [[-0.5, 0.5, 1.5]] * 5
        assert axes.get_yticks().tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("told", "shown"),
        thinned(
            [(["north", "s" * 30], ["north", "s" * 20]), (["north"], ["0", "1"]), (7, ["0", "1"]), (None, ["0", "1"])]
        ),
    )
    def test_groups_have_their_names(self, tmp_path: Path, told: Any, shown: list[str]) -> None:
        folder = write_run(tmp_path / "r", found_rows())
        (folder / "summary.json").write_text(json.dumps({"groups": told}))
        figure = plot_identity(read_run(folder))
        for axes in figure.axes[2:]:
            assert [label.get_text() for label in axes.get_yticklabels()] == shown
        assert render(figure)

    def test_uneven_probes_meet_halfway(self, tmp_path: Path) -> None:
        rows = [identity_row(i, FOUND, 1.0, None) for i in (0, 10, 30)]
        _, edges, _ = steps(plot_identity(read(tmp_path, rows)).axes[2].patches[0])
        assert edges.tolist() == [-5, 5, 20, 40]

    def test_last_counts_in_matched_order(self, tmp_path: Path) -> None:
        axes = plot_identity(read(tmp_path, found_rows())).axes[3]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "0", "2"]
        assert [text.get_text() for text in axes.texts] == ["10", "0", "0", "0", "10", "0"]
        cells = np.asarray(axes.images[0].get_array())
        assert [to_hex(cells[0, 0]).upper(), to_hex(cells[1, 1]).upper()] == [PALETTE[1], PALETTE[0]]

    def test_single_group_has_neither_index_nor_table(self, tmp_path: Path) -> None:
        rows = [identity_row(i, [[3, 7]], None, [0.1, 0.2]) for i in range(2)]
        figure = plot_identity(read(tmp_path, rows))
        assert titles(figure) == [TITLES[0], TITLES[2]]
        assert figure.axes[1].get_ylabel() == ""
        assert render(figure)

    def test_single_round(self, tmp_path: Path) -> None:
        figure = plot_identity(read(tmp_path, found_rows()[:1]))
        assert figure.axes[2].get_xlim() == (-0.5, 0.5)
        assert [axes.get_xticks().tolist() for axes in figure.axes[:3]] == [[0]] * 3
        assert render(figure)

    def test_regression_shows_the_loss(self, tmp_path: Path) -> None:
        rows = [row | {"test_accuracy": None, "cluster_accuracy": [None] * 3} for row in found_rows()]
        figure = plot_identity(read(tmp_path, rows))
        assert titles(figure) == ["Training loss", *TITLES[1:]]
        assert figure.axes[0].get_yscale() == "log"
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Model 0", "Model 1", "Model 2"]

    def test_missing_columns_and_probes(self, tmp_path: Path) -> None:
        rows: list[dict[str, Any]] = [{"round": 0, "confusion": MIXED}, {"round": 1}, {"round": 2, "confusion": FOUND}]
        figure = plot_identity(read(tmp_path, rows))
        assert figure.axes[3].get_title(loc="left") == "Clients at round 2"
        assert render(figure)

    @pytest.mark.more
    def test_many_models_and_groups(self, tmp_path: Path) -> None:
        figure = plot_identity(read(tmp_path, [identity_row(0, np.eye(25, 30, dtype=int).tolist(), 1.0, None)]))
        assert not figure.axes[3].texts
        assert render(figure)

    def test_runs_that_have_none(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no column confusion"):
            plot_identity(read(tmp_path, make_rows([0.1])))

    @pytest.mark.parametrize("confusion", [[1, 2], [[1, 2], [3]], [[]], [["a"]]])
    def test_bad_counts(self, tmp_path: Path, confusion: Any) -> None:
        with pytest.raises(InputError, match=r"confusion must be \[planted group\]\[model\] counts"):
            plot_identity(read(tmp_path, [identity_row(0, confusion, None, None)]))


class TestParameterError:
    def test_curves_of_the_runs_that_have_it(self, tmp_path: Path) -> None:
        rows = [make_row(i, loss=1.0, accuracy=None, parameter_error=error) for i, error in enumerate([0.4, 0.2, None])]
        with_error = read(tmp_path, rows, label="mine")
        figure = plot_probe([*write_pair(tmp_path / "pair"), with_error], "parameter_error")
        (axes,) = figure.axes
        assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_yscale()) == ("Parameter error", "Round", "log")
        assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[0.4, 0.2]]
        assert render(figure)

    def test_none_has_it(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no run has the column parameter_error"):
            plot_probe(write_pair(tmp_path), "parameter_error")


class TestTable:
    def test_final_index_where_some_run_has_one(self, tmp_path: Path) -> None:
        rows = rounds_to_target([*write_pair(tmp_path / "pair"), read(tmp_path, found_rows(), label="mine")], [])
        assert [row["final_ari"] for row in as_dicts(rows)] == [None, None, 1.0]
        header, _, fast, _, mine = table_of(rows).as_markdown().splitlines()
        assert [line.split("|")[-2].strip() for line in (header, fast, mine)] == ["ARI", "–", "1.000"]

    def test_no_index_no_column(self, tmp_path: Path) -> None:
        rows = rounds_to_target(write_pair(tmp_path), [])
        assert "ARI" not in table_of(rows).as_markdown()
        assert "final_ari" not in as_dicts(rows)[0]


def write_seed(parent: Path, seed: int, accuracy: float | None, label: str = "mine", **more: Any) -> Path:
    rows = [make_row(0, loss=2.0, accuracy=0.1), make_row(1, loss=float(seed), accuracy=accuracy, **more)]
    folder = write_run(parent / f"{label}-{seed}", rows, label=label)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("seed = 3", f"seed = {seed}"))
    return folder


class TestSpread:
    def test_two_seeds_by_hand(self, tmp_path: Path) -> None:
        folders = [write_seed(tmp_path, seed, accuracy, ari=1.0) for seed, accuracy in ((1, 0.5), (3, 0.7))]
        (spread,) = spread_over_seeds(find_runs(folders))
        assert (spread.panel, spread.label, spread.seeds) == ("", "mine", (1, 3))
        accuracy, loss = spread.final["test_accuracy"], spread.final["train_loss"]
        assert (accuracy.n, loss.n) == (2, 2)
        assert [accuracy.mean, accuracy.std] == pytest.approx([0.6, 0.02**0.5])
        assert [loss.mean, loss.std] == pytest.approx([2.0, 2**0.5])
        assert spread.final["ari"] == Estimate(2, 1.0, 0.0, 1.0, 1.0)
        assert "parameter_error" not in spread.final

    def test_labels_that_name_the_seed(self, tmp_path: Path) -> None:
        folders = [write_seed(tmp_path, seed, 0.5, f"IFCA (seed {seed})") for seed in (10, 11)]
        assert [spread.label for spread in spread_over_seeds(find_runs(folders))] == ["IFCA"]

    def test_labels_that_have_nothing_in_common(self, tmp_path: Path) -> None:
        folders = [write_seed(tmp_path, seed, 0.5, label) for seed, label in ((1, "a"), (2, "b"))]
        assert [spread.label for spread in spread_over_seeds(find_runs(folders))] == ["demo"]

    def test_without_a_second_seed_there_is_none(self, tmp_path: Path) -> None:
        assert spread_over_seeds(find_runs([write_seed(tmp_path, 1, 0.5)])) == []
        again = write_seed(tmp_path / "again", 1, 0.5)
        assert spread_over_seeds(find_runs([tmp_path / "mine-1", again])) == []
        assert spread_over_seeds([]) == []

    def test_other_settings_are_another_group(self, tmp_path: Path) -> None:
        folders = [write_seed(tmp_path, seed, None) for seed in (1, 2, 3)]
        config = (folders[2] / "config.toml").read_text()
        (folders[2] / "config.toml").write_text(config.replace("clients = 5", "clients = 6"))
        both, alone = spread_over_seeds(find_runs(folders))
        assert (both.seeds, alone.seeds) == ((1, 2), (3,))
        assert both.final.keys() == {"train_loss"}  # no accuracy was recorded at the end
        assert alone.final["train_loss"] == Estimate(1, 3.0, None, None, None)

    def test_unfinished_runs_are_left_out(self, tmp_path: Path) -> None:
        folders = [write_seed(tmp_path, seed, 0.5) for seed in (1, 2)]
        (folders[1] / "summary.json").unlink()
        assert spread_over_seeds(find_runs(folders)) == []

    def test_tables(self, tmp_path: Path) -> None:
        folders = [write_seed(tmp_path, seed, accuracy) for seed, accuracy in ((1, 0.5), (3, 0.7))]
        folders.append(write_seed(tmp_path / "other", 4, None, "other"))
        (folders[2] / "config.toml").write_text('name = "other"\nseed = 4\n')
        spreads = spread_over_seeds(find_runs(folders))
        assert final_table(spreads, "spread").as_markdown() == (
            "| Run   | Seeds | Final accuracy (%) | Final loss |\n"
            "| ----- | ----: | -----------------: | ---------: |\n"
            "| mine  |     2 |      60.00 ± 14.14 |  2.0 ± 1.4 |\n"
            "| other |     1 |                  – |        4.0 |\n"
            "\n"
            "Final values of finished runs: mean ± the sample standard deviation over seeds.\n"
        )
        assert narrow_tables([], spreads)[0].as_rich().row_count == 2


class TestFiles:
    @pytest.mark.more
    def test_report_with_everything(self, tmp_path: Path) -> None:
        rows = [row | {"parameter_error": 0.5} for row in found_rows()]
        folders = [write_run(tmp_path / name, rows, label=label) for name, label in (("a", "IFCA 1"), ("b", "ifca/1"))]
        folders.append(write_run(tmp_path / "c", rows, label="…"))
        (folders[1] / "config.toml").write_text((folders[1] / "config.toml").read_text().replace("= 3", "= 4"))
        files = write_report(find_runs(folders), tmp_path / "out")
        assert [
            file.name for file in files if file.suffix not in (".svg", ".pdf") and not file.name.startswith("curves")
        ] == [
            "parameter-error.png",
            "identity-ifca-1.png",  # of the first seed alone
            "identity-c.png",
            "table.md",
            "table.tex",
            "table.csv",
            "table.json",
            "spread.md",
            "spread.tex",
            "spread.csv",
            "spread.json",
        ]
        assert sorted(files) == sorted((tmp_path / "out").iterdir())
        spread, *_ = json.loads((tmp_path / "out" / "spread.json").read_text())
        assert spread["seeds"] == [3, 4]
        assert spread["final"]["ari"] == {"n": 2, "mean": 1.0, "std": 0.0, "low": 1.0, "high": 1.0}
