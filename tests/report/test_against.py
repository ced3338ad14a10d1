"""Where runs end against a setting: means over seeds, a line for whatever else differs."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import InputError
from atoll.report.figures.against import plot_against
from atoll.report.reading.runs import Run, find_runs
from atoll.report.report_files import write_report
from tests.made_runs import make_rows, write_run

ENDS = {(1.0, 0): 0.5, (1.0, 1): 0.7, (4.0, 0): 0.8, (50.0, 0): 0.9, (50.0, 1): 0.9}


def row(event: int, accuracy: float, **more: Any) -> dict[str, Any]:
    return {"event": event, "round": event, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": accuracy, **more}


def made(folder: Path, ari: bool = True, **changes: Any) -> list[Run]:
    """Return runs by epsilon and seed, of which the last probe is told in ENDS; and one that is under way."""
    folders = []
    for (epsilon, seed), accuracy in ENDS.items():
        for identity in ("response", "exponential"):
            if identity == "exponential" and epsilon == 50:
                continue
            end = accuracy - (0.2 if identity == "exponential" else 0.0)
            rows = [row(0, 0.1, **({"ari": 0.0} if ari else {})), row(5, end, **({"ari": end} if ari else {}))]
            privacy = {"identity": identity, "identity_epsilon": epsilon}
            settings: dict[str, Any] = {"seed": seed, "label": f"{identity}, {epsilon:g}", "privacy": privacy} | changes
            folders.append(write_run(folder / f"{identity}-{epsilon:g}-{seed}", rows, **settings))
    folders.append(write_run(folder / "going", [row(0, 0.1)], finished=False, privacy={"identity_epsilon": 2.0}))
    return find_runs(folders)


def test_points_are_means_over_seeds_with_their_deviation(tmp_path: Path) -> None:
    figure = plot_against(made(tmp_path), "privacy.identity_epsilon", "spread")
    left, right = figure.axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("Adjusted Rand index", "Test accuracy (%)")
    containers: list[Any] = list(right.containers)
    first, second = containers
    drawn = [np.asarray(each.lines[0].get_xydata()) for each in (first, second)]
    assert drawn[0].tolist() == pytest.approx(np.array([[1, 60], [4, 80], [50, 90]]))
    assert drawn[1].tolist() == pytest.approx(np.array([[1, 40], [4, 60]]))
    (bars,) = first.lines[2]
    heights = [float(np.ptp(np.asarray(segment)[:, 1])) for segment in bars.get_segments()]
    assert heights == pytest.approx([2 * np.std([50, 70], ddof=1), 0, 0])
    intervals: list[Any] = list(plot_against(made(tmp_path), "privacy.identity_epsilon").axes[1].containers)
    (wide,) = intervals[0].lines[2]
    reach = np.ptp(np.asarray(wide.get_segments()[0])[:, 1])
    assert reach == pytest.approx(2 * 12.7062 * 10)  # Student's t for two seeds, of 50 and 70 %
    assert right.get_xscale() == "log"
    assert [each.get_text() for each in right.get_xticklabels()] == ["1", "4", "50"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["identity = response", "identity = exponential"]


def test_a_seed_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    """As a copied folder beside the runs themselves, whose interval it would narrow."""
    intervals = []
    for runs in ((once := made(tmp_path / "a")), [*once, *made(tmp_path / "b")]):
        (bars,) = plot_against(runs, "privacy.identity_epsilon").axes[1].containers[0].lines[2]  # type: ignore[attr-defined]
        intervals.append([float(np.ptp(np.asarray(segment)[:, 1])) for segment in bars.get_segments()])
    assert intervals[1] == pytest.approx(intervals[0])


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    figure = plot_against(made(tmp_path, ari=False), "privacy.identity_epsilon")
    assert [axes.get_ylabel() for axes in figure.axes] == ["Test accuracy (%)", "Test loss"]


@pytest.mark.parametrize("setting", ["privacy.identity", "rounds", "no.such", "local", "seed"])
def test_a_setting_that_tells_nothing_is_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^--against {setting}: must be a number in which finished runs differ"):
        plot_against(made(tmp_path), setting)


def test_runs_that_share_no_result_are_refused(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        rows = [row | {"ari": None, "test_accuracy": None, "test_loss": None} for row in make_rows(3)]
        write_run(tmp_path / str(lr), rows, label=str(lr), local={"lr": lr})
    with pytest.raises(InputError, match=r"^--against local\.lr: the runs end with no ari, test_accuracy, test_loss"):
        plot_against(find_runs([tmp_path]), "local.lr")


@pytest.mark.more
def test_it_is_written_with_the_report(tmp_path: Path) -> None:
    runs = made(tmp_path / "runs")
    files = write_report(runs, tmp_path / "out", against="privacy.identity_epsilon")
    assert tmp_path / "out" / "against-privacy-identity-epsilon.png" in files
    stream = io.BytesIO()
    plot_against(runs, "privacy.identity_epsilon").savefig(stream, format="png", dpi=30)
    assert stream.getvalue()
