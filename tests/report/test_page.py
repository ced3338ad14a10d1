"""The report page before a browser sees it: groups of seeds, panels, tables, warnings, escaping, colours, size."""

import base64
import json
import math
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.experiment.cluster_waits import work_ends
from atoll.experiment.experiment import Experiment
from atoll.report.page import Content, make_content, render
from atoll.report.page.compared import warnings
from atoll.report.page.scenes import Scene, make_scene
from atoll.report.reading.groups import group_runs, make_panels
from atoll.report.reading.runs import find_runs
from atoll.report.report_files import write_report
from atoll.schedules.schedule_files import write_schedule
from atoll.settings.validation import validate
from atoll.support.errors import InputError
from tests.made_runs import make_rows, write_run

ASSETS = Path(__file__).parents[2] / "src/atoll/report/page/assets"


class Tables(HTMLParser):
    """The cells of all tables, row by row, and what stands around text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True
        elif tag == "small":
            self.rows[-1][-1] += "|"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def content_of(*folders: Path, **options: Any) -> Content:
    return make_content(find_runs(folders), **options)


def rows_of(content: Content, section: str) -> list[list[str]]:
    return Tables(content.sections[f"{section}-body"]).rows


def numbers(content: Content, place: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(base64.b64decode(content.data["columns"][place]), "<f4")


def write_seeds(root: Path, name: str, rates: list[float], **settings: Any) -> list[Path]:
    return [
        write_run(root / f"{name}-{seed}", make_rows(20, rate), seed=seed, label=f"{name}, seed {seed}", **settings)
        for seed, rate in enumerate(rates)
    ]


def test_seeds_of_one_setting_are_one_group(tmp_path: Path) -> None:
    runs = find_runs([*write_seeds(tmp_path, "A", [3, 4, 5]), *write_seeds(tmp_path, "B", [6], rounds=9)])
    groups = group_runs(runs)
    assert [(group.label, group.seeds) for group in groups] == [("A", (0, 1, 2)), ("B, seed 0", (0,))]


def test_a_seed_that_comes_again_counts_in_no_mean_twice(tmp_path: Path) -> None:
    first, again = write_run(tmp_path / "a", make_rows(3)), write_run(tmp_path / "b", make_rows(3))
    groups = group_runs(find_runs([first, again]))
    assert [len(group.runs) for group in groups] == [1, 1]
    assert len({group.label for group in groups}) == 2


def test_unfinished_seeds_are_in_the_group_but_in_no_mean(tmp_path: Path) -> None:
    write_run(tmp_path / "a", make_rows(20), seed=0, label="A")
    write_run(tmp_path / "b", make_rows(2), seed=1, label="A", finished=False)
    content = content_of(tmp_path / "a", tmp_path / "b")
    header, line = rows_of(content, "results")
    assert line[header.index("State")] == "1 of 2 finished"
    assert line[header.index("Final accuracy")] == f"{100 * (1 - 0.9 * np.exp(-19 / 5)):.2f} %"


def test_results_have_what_probes_measured_of_clients_only_mean_and_worst(tmp_path: Path) -> None:
    measured = {"own_accuracy": 0.5, "own_accuracy_std": 0.1, "p10_own_accuracy": 0.3, "worst_own_accuracy": 0.2}
    folder = write_run(tmp_path / "a", [row | measured | {"gap": 1.5} for row in make_rows(3)])
    header, line = rows_of(content_of(folder), "results")
    found = dict(zip(header, line, strict=True))
    assert (found["Own accuracy"], found["Worst own accuracy"], found["Gap"]) == ("50.00 %", "20.00 %", "1.5")
    assert not {"Standard deviation of own accuracy", "10th percentile of own accuracy"} & set(header)


def test_curves_carry_every_probe_to_seven_digits_and_share_equal_columns(tmp_path: Path) -> None:
    rows = make_rows(30)
    content = content_of(write_run(tmp_path / "a", rows), write_run(tmp_path / "b", make_rows(30, 9.0)))
    first, second = (group["runs"][0] for group in content.data["curves"]["panels"][0]["groups"])
    for name in ("round", "wall_time", "train_loss", "test_accuracy"):
        np.testing.assert_allclose(numbers(content, first[name]), [row[name] for row in rows], rtol=1e-6)
    np.testing.assert_allclose(numbers(content, first["bytes"]), [row["bytes_up"] + row["bytes_down"] for row in rows])
    assert first["round"] == second["round"]
    assert first["train_loss"] != second["train_loss"]


def test_targets_tell_all_costs_with_their_speed_up_and_spread(tmp_path: Path) -> None:
    slow, fast = write_seeds(tmp_path, "slow", [10.0, 8.0]), write_seeds(tmp_path, "fast", [4.0, 5.0], rounds=9)
    content = content_of(*slow, *fast, targets=[0.5])
    header, title, first, second = rows_of(content, "targets")
    assert header == ["Run", "Rounds", "Client updates", "Bytes sent", "Virtual time", "Wall time"]
    assert title == ["To 50 %"]

    def rounds(rate: float) -> int:  # the slow twin: the first round at which the accuracy is there
        return next(row["round"] for row in make_rows(20, rate) if row["test_accuracy"] >= 0.5)

    slows, fasts = [rounds(10.0), rounds(8.0)], [rounds(4.0), rounds(5.0)]
    half = 12.706 * statistics.stdev(slows) / math.sqrt(2)  # Student's t for two seeds
    assert first[1] == f"{statistics.mean(slows):.1f} ± {half:.1f}"
    assert second[1].split("|")[1] == f"{statistics.mean(slows) / statistics.mean(fasts):.2f}×"
    assert {cell.split("|")[1] for cell in second[1:]} == {second[1].split("|")[1]}  # all costs grow with rounds here
    assert first[3] == "16.5 ± 19 kB"


def test_the_page_tells_when_targets_are_stable(tmp_path: Path) -> None:
    rows = make_rows(6)
    for row, accuracy in zip(rows, [0.1, 0.6, 0.4, 0.7, 0.6, 0.8], strict=True):
        row["test_accuracy"] = accuracy
    runs = find_runs([write_run(tmp_path / "a", rows)])
    for stable, wanted in ((False, "1"), (True, "3")):
        content = make_content(runs, [0.5], stable=stable)
        assert rows_of(content, "targets")[2][1] == wanted
        assert ("from which all later" in content.sections["targets-body"]) is stable


def test_no_cost_and_no_speed_up_where_a_seed_does_not_get_there(tmp_path: Path) -> None:
    slow, fast = write_seeds(tmp_path, "slow", [10.0, 90.0]), write_seeds(tmp_path, "fast", [4.0, 5.0], rounds=9)
    first, second = rows_of(content_of(*slow, *fast, targets=[0.5]), "targets")[2:]
    assert set(first[1:]) == {"–|1 of 2 seeds"}
    assert "|" not in second[1]


def test_virtual_times_of_different_clocks_have_no_speed_up(tmp_path: Path) -> None:
    """And the script, which compares with the setting that the reader chooses, knows the clock of each cell."""
    rows = [make_rows(20, rate) for rate in (9, 7, 5, 3)]
    own = write_run(tmp_path / "own", rows[0], method={"name": "mine"})
    (own / "summary.json").write_text('{"own_seconds": true}')
    there = write_run(tmp_path / "there", rows[1], method={"name": "hierarchical"})
    here = [write_run(tmp_path / f"here-{i}", rows[i], method={"name": "fedavg"}, rounds=i) for i in (2, 3)]
    content = content_of(own, there, *here, targets=[0.5], baseline="here-2")
    header, _, *lines = rows_of(content, "targets")
    seconds = header.index("Virtual time")
    assert ["×" in line[seconds] for line in lines] == [False, False, False, True]
    assert ["×" in line[header.index("Rounds")] for line in lines] == [True, True, False, True]
    clocks = re.findall(r'data-clock="([^"]+)"', content.sections["targets-body"])
    assert len(clocks) == 4
    assert [clock == clocks[2] for clock in clocks] == [False, False, True, True]
    assert clocks[0] != clocks[1]


def test_of_many_settings_only_differences_to_the_first_baseline_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script shows a dash where the reader chooses another."""
    monkeypatch.setattr("atoll.report.page.content.MOST_BASELINES", 1)
    folders = [*write_seeds(tmp_path, "a", [3, 4]), *write_seeds(tmp_path, "b", [5, 7], rounds=9)]
    (own,) = content_of(*folders, baseline="b").data["compared"]["differences"]
    assert own[0] == []
    assert [bool(text) for text, _ in own[1]] == [True, False]


def test_different_data_sets_are_compared_only_among_their_own(tmp_path: Path) -> None:
    for name, dataset, rate in (("a", "digits", 3), ("b", "mnist", 9), ("c", "digits", 6)):
        write_run(tmp_path / name, make_rows(20, rate), data={"dataset": dataset})
    content = content_of(*(tmp_path / name for name in "abc"), targets=[0.5])
    assert [panel["title"] for panel in content.data["curves"]["panels"]] == ["digits", "mnist"]
    lines = {row[0]: row[1] for row in rows_of(content, "targets") if len(row) > 1}
    assert "×" not in lines["b"]  # the first, and only, of its own panel
    assert "×" in lines["c"]
    assert "different data sets (digits, mnist)" in content.sections["notices-body"]


def test_panels_keep_their_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", make_rows(3), panel="MNIST", data={"dataset": "mnist"})
    write_run(tmp_path / "b", make_rows(3), panel="Digits")
    assert [p.title for p in make_panels(group_runs(find_runs([tmp_path / "a", tmp_path / "b"])))] == [
        "MNIST",
        "Digits",
    ]


@pytest.mark.parametrize(
    ("rows", "finished", "told"),
    [
        (make_rows(1), True, "a has a single row so far: a point, not a curve."),
        (make_rows(5), False, "Runs not finished: 1 of 1; what there is so far is shown: a."),
        (make_rows(30)[:10] + make_rows(30)[20:], True, "rows are missing between rounds 9 and 20"),
        (make_rows(6) + make_rows(6), True, "its rows are not in the order of events"),
        (
            [{**row, "train_loss": None} if row["round"] == 4 else row for row in make_rows(9)],
            True,
            "train_loss is missing in 1 of its 9 rows",
        ),
    ],
)
def test_warnings(tmp_path: Path, rows: list[dict[str, Any]], finished: bool, told: str) -> None:
    runs = find_runs([write_run(tmp_path / "a", rows, finished=finished)])
    (warning,) = warnings(make_panels(group_runs(runs)))
    assert told in warning


def test_no_warning_without_a_reason(tmp_path: Path) -> None:
    sparse = [{**row, "test_accuracy": None} if row["round"] % 5 else row for row in make_rows(31)]
    late = [*make_rows(10), {**make_rows(30)[-1]}]  # a last probe at the very end
    runs = find_runs([write_run(tmp_path / "a", sparse), write_run(tmp_path / "b", late)])
    assert warnings(make_panels(group_runs(runs))) == []


def test_settings_mark_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", make_rows(3), local={"lr": 0.1, "steps": 5})
    write_run(tmp_path / "b", make_rows(3), local={"lr": 0.2, "steps": 5}, method={"name": "fedavg"})
    content = content_of(tmp_path / "a", tmp_path / "b")
    lines = {row[0]: row[1:] for row in rows_of(content, "settings")}
    assert lines["lr|differs"] == ["0.1", "0.2"]
    assert lines["steps"] == ["5", "5"]
    assert lines["name|differs"] == ["–", "fedavg"]
    assert 'class="other">0.2<' in content.sections["settings-body"]
    assert 'class="other">0.1<' not in content.sections["settings-body"]


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'"


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", make_rows(20), label=EVIL, panel=EVIL, name=EVIL, note={EVIL: EVIL})
    write_run(tmp_path / "b", make_rows(20, 9.0), panel=EVIL, data={"dataset": EVIL})
    page = render(content_of(folder, tmp_path / "b", notices=[EVIL]), command=EVIL)
    found = Tables(page)
    assert [tag for tag, _ in found.tags].count("script") == 2  # the data, and the page's own
    assert not any(tag == "img" for tag, _ in found.tags)
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    data = re.search(r'<script type="application/json" id="atoll-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["curves"]["labels"][0] == EVIL


def test_tables_have_captions_and_scopes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", make_rows(20))
    write_run(tmp_path / "b", make_rows(20, 9.0))
    html = "".join(content_of(tmp_path / "a", tmp_path / "b").sections.values())
    tags = Tables(html).tags
    assert [tag for tag, _ in tags].count("table") == [tag for tag, _ in tags].count("caption") == 3
    assert all(attributes.get("scope") for tag, attributes in tags if tag == "th")


def test_the_page_of_two_runs_is_small_and_is_all_its_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a", make_rows(100))
    write_run(tmp_path / "b", make_rows(100, 9.0))
    page = render(content_of(tmp_path / "a", tmp_path / "b"))
    assert len(page.encode()) < 100_000  # 2 MB are allowed
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page)


def test_a_page_without_runs_waits() -> None:
    content = make_content([])
    assert "Waiting for the first row" in content.sections["results-body"]
    assert content.data["curves"]["panels"] == content.data["details"] == []
    assert "<h1" in render(content)


def test_the_schedule_is_drawn_from_its_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", make_rows(3))
    np.savez(
        folder / "schedule.npz",
        seconds=[2.0, 5.0],
        round=[0, 1],
        active=[0, 1, 1],
        active_offsets=[0, 2, 3],
        began=[0.0, 0.5, 2.0],
    )
    figures = content_of(folder).data["details"][0]["figures"]
    (gantt,) = [figure for figure in figures if figure["kind"] == "gantt"]
    assert gantt["alt"] == "Gantt chart of a: 3 pieces of work in 2 clusters over 5 s of virtual time."
    content = content_of(folder)
    assert numbers(content, gantt["ended"]).tolist() == [2.0, 2.0, 5.0]
    assert numbers(content, gantt["turn"]).tolist() == [1.0, 1.0, 0.0]


def test_the_schedule_shows_who_waits(tmp_path: Path) -> None:
    data = {"dataset": "digits", "partition": "one-label", "clients": 8, "samples": 20}
    settings: dict[str, Any] = {
        "name": "net",
        "rounds": 20,
        "local": {"steps": 1},
        "data": data,
        "method": {"name": "hierarchical", "pattern": "censyn"},
        "clustering": {"method": "comaw", "clusters": 4},
    }
    experiment = Experiment(validate(settings))
    folder = write_run(tmp_path / "a", make_rows(3), **settings)
    write_schedule(folder / "schedule.npz", experiment.method.schedule)
    content = content_of(folder)
    (gantt,) = [figure for figure in content.data["details"][0]["figures"] if figure["kind"] == "gantt"]
    ended, done = numbers(content, gantt["ended"]), numbers(content, gantt["done"])
    assert (done <= ended).all()
    assert (done < ended).any()
    assert (done == ended).any()  # somebody is the slowest
    assert gantt["note"].endswith("Grey: it has finished and waits for the slowest cluster.")
    expected = work_ends(experiment)
    assert expected is not None
    np.testing.assert_allclose(done, expected, rtol=1e-6)


def test_virtual_time_leads_where_rounds_mean_different_work(tmp_path: Path) -> None:
    write_run(tmp_path / "a", make_rows(20), method={"name": "hierarchical", "pattern": "censyn"})
    write_run(tmp_path / "b", make_rows(20, 9.0), method={"name": "hierarchical", "pattern": "cenasy"})
    content = content_of(tmp_path / "a", tmp_path / "b")
    assert content.data["curves"]["lead"] == "virtual_time"
    assert rows_of(content, "targets")[0][:3] == ["Run", "Virtual time", "Rounds"]
    write_run(tmp_path / "c", make_rows(20))
    content = content_of(tmp_path / "c")
    assert content.data["curves"]["lead"] == "round"
    assert rows_of(content, "targets")[0][:2] == ["Run", "Rounds"]


@pytest.mark.parametrize("bytes_", [b"", b"no archive", b"PK\x03\x04 torn"])
def test_a_damaged_schedule_is_left_out(tmp_path: Path, bytes_: bytes) -> None:
    folder = write_run(tmp_path / "a", make_rows(3))
    (folder / "schedule.npz").write_bytes(bytes_)
    figures = content_of(folder).data["details"][0]["figures"]
    assert not [figure for figure in figures if figure["kind"] == "gantt"]


@pytest.mark.more
def test_single_clients_are_a_sorted_curve_beside_their_mean(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", make_rows(3))
    told = {"event": 3, "round": 3, "client_accuracy": {"clients": [0, 1, 4], "values": [0.75, 0.25, 0.5]}}
    (folder / "clients.json").write_text(json.dumps(told))
    content = content_of(folder)
    (curve,) = [figure for figure in content.data["details"][0]["figures"] if figure["kind"] == "clients"]
    assert numbers(content, curve["values"]).tolist() == [0.25, 0.5, 0.75]
    assert curve["mean"] == 0.5
    assert "3 clients of a at the last evaluation, sorted: 25.00 % to 75.00 %, mean 50.00 %" in curve["alt"]
    names = {file.name for file in write_report(find_runs([folder]), tmp_path / "report")}
    assert {"clients-client-accuracy.svg", "clients-client-accuracy.png"} <= names


@pytest.mark.parametrize("text", ["", "torn", "[]", '{"a": {"values": "b"}}', '{"a": {}}', '{"a": {"values": []}}'])
def test_a_damaged_file_of_clients_is_left_out(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path / "a", make_rows(3))
    (folder / "clients.json").write_text(text)
    assert not [each for each in content_of(folder).data["details"][0]["figures"] if each["kind"] == "clients"]


def test_found_clusters_are_bands_and_counts(tmp_path: Path) -> None:
    rows = [{**row, "confusion": [[4 - i, i], [0, 3]]} for i, row in enumerate(make_rows(4))]
    content = content_of(write_run(tmp_path / "a", rows))
    figures = {figure["kind"]: figure for figure in content.data["details"][0]["figures"]}
    assert numbers(content, figures["confusion"]["counts"]).tolist() == [1, 3, 0, 3]
    shares = numbers(content, figures["bands"]["shares"]).reshape(figures["bands"]["shape"])
    np.testing.assert_allclose(shares[:, 0, 1], [0, 0.25, 0.5, 0.75])
    assert "group 0: 1 take model 0, 3 take model 1; group 1: 3 take model 1" in figures["confusion"]["alt"]
    assert list(figures["bands"]["groups"]) == list(figures["confusion"]["groups"]) == ["0", "1"]
    (tmp_path / "a" / "summary.json").write_text('{"groups": ["north", "south"]}')
    named = {figure["kind"]: figure for figure in content_of(tmp_path / "a").data["details"][0]["figures"]}
    assert list(named["bands"]["groups"]) == list(named["confusion"]["groups"]) == ["north", "south"]
    assert "group north: 1 take model 0, 3 take model 1; group south: 3" in named["confusion"]["alt"]


@pytest.mark.parametrize("confusion", [[[1, 2], [3]], "text", [1, 2], [[["x"]]]])
def test_counts_that_are_none_are_left_out(tmp_path: Path, confusion: Any) -> None:
    content = content_of(write_run(tmp_path / "a", [{**row, "confusion": confusion} for row in make_rows(3)]))
    assert not {"bands", "confusion"} & {figure["kind"] for figure in content.data["details"][0]["figures"]}


def test_a_scene_is_the_runs_own() -> None:
    settings = {"data": {"dataset": "digits", "clients": 6, "samples": 20}, "clustering": {"clusters": 3}, "seed": 4}
    scene = make_scene(settings)
    assert isinstance(scene, Scene)
    assert scene.sizes.tolist() == [2, 2, 2]
    np.testing.assert_allclose(scene.shares.sum(axis=1), 1)
    held = scene.counts[scene.labels == 1].sum(axis=0)
    np.testing.assert_allclose(scene.shares[1], held / held.sum())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model": {"name": "os:getcwd"}}, "custom code (os:getcwd)"),
        ({"clustering": {"method": "mine.part:rule"}}, "custom code (mine.part:rule)"),
        ({"travel": {"stages": ["os:getcwd"]}}, "custom code (os:getcwd)"),
        ({"method": {"name": "hierarchical"}, "model": {"start": "a.pt"}}, "model.start names files"),
        ({"method": {"name": "hierarchical"}, "model": {"name": "pretrained", "path": "a"}}, "model.path names files"),
        ({"data": {"clients": 50_000}}, "more than 20,000 clients"),
        ({"method": {"name": "centralized"}}, "one client holds all data"),
        ({"no": {"such": "setting"}}, "not drawn: no"),
    ],
)
def test_a_scene_that_cannot_be_made_says_why(settings: dict[str, Any], told: str) -> None:
    scene = make_scene(settings)
    assert isinstance(scene, str)
    assert told in scene


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_colours_reach_contrast_aa_in_both_themes() -> None:
    css = (ASSETS / "page.css").read_text()
    blocks = re.findall(r"\{([^{}]*--paper:[^{}]*)\}", css)
    themes = [dict(re.findall(r"(--\w+): (#\w{6});", block)) for block in blocks]
    light, dark, system = themes
    assert system.items() <= dark.items()
    for theme in (light, dark):
        for name in ("ink", "quiet", "link", "good", "bad"):
            assert contrast(theme[f"--{name}"], theme["--paper"]) >= 4.5, name
        for behind in ("soft", "mark", "notice"):
            assert contrast(theme["--ink"], theme[f"--{behind}"]) >= 4.5, behind
        assert contrast(theme["--quiet"], theme["--soft"]) >= 4.5
        for name in ("edge", "accent", *(f"c{index}" for index in range(12))):
            assert contrast(theme[f"--{name}"], theme["--paper"]) >= 3, name
        assert len({theme[f"--c{index}"] for index in range(12)}) == 12


PRIVATE: dict[str, Any] = {
    "trust": "server",
    "adjacency": "zero-out",
    "delta": 1e-5,
    "budget": 8.0,
    "epsilon": 3.25,
    "worst_client_releases": 4,
    "is_private": False,
    "clusters": [
        {"cluster": 0, "clients": 12, "releases": 4, "epsilon": 3.25},
        {"cluster": 1, "clients": 8, "releases": 3, "epsilon": None},
    ],
}


def private_run(folder: Path, told: Any) -> Path:
    write_run(folder, make_rows(3, 0.1), label="private")
    summary = json.loads((folder / "summary.json").read_bytes())
    (folder / "summary.json").write_text(json.dumps(summary | {"privacy": told}))
    return folder


def test_private_runs_have_what_each_cluster_was_to_spend(tmp_path: Path) -> None:
    content = content_of(private_run(tmp_path / "run", PRIVATE), write_run(tmp_path / "plain", make_rows(3, 0.1)))
    rows = rows_of(content, "results")[-4:]
    assert rows == [
        ["Cluster", "Clients", "Releases", "Epsilon"],
        ["0", "12", "4", "3.250"],
        ["1", "8", "3", "–"],
        ["Worst client, spent", "", "4", "3.250"],
    ]
    html = content.sections["results-body"]
    assert html.count("<caption>Privacy") == 1
    assert "trust = server, budget 8. The noise is drawn from the seed" in html


def test_the_table_of_privacy_is_of_the_first_finished_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "0", make_rows(2), finished=False, label="private", seed=0)
    (write_run(tmp_path / "1", make_rows(3), label="private", seed=1) / "summary.json").write_text(
        json.dumps({"privacy": PRIVATE})
    )
    assert "<caption>Privacy" in content_of(tmp_path / "0", tmp_path / "1").sections["results-body"]


@pytest.mark.parametrize(
    "told", [1, {}, PRIVATE | {"clusters": 3}, PRIVATE | {"delta": "<b>"}, PRIVATE | {"clusters": [{"cluster": "x"}]}]
)
def test_a_damaged_summary_has_no_table_of_privacy(tmp_path: Path, told: Any) -> None:
    assert "Privacy" not in content_of(private_run(tmp_path / "run", told)).sections["results-body"]


def test_the_reader_may_choose_the_baseline(tmp_path: Path) -> None:
    slow, fast = write_seeds(tmp_path, "slow", [10.0, 8.0]), write_seeds(tmp_path, "fast", [4.0, 5.0], rounds=9)
    runs = find_runs([*slow, *fast])
    content = make_content(runs, [0.5], baseline="fast")
    first, second = rows_of(content, "targets")[2:]
    assert first[1].endswith("×")
    assert "×" not in second[1]
    header, *lines = rows_of(content, "results")
    assert [line[header.index("Difference")].partition("|")[0][:1] for line in lines] == ["-", ""]
    compared = content.data["compared"]
    assert (compared["baseline"], compared["labels"]) == ("fast", [["slow", "fast"]])
    own, other = compared["differences"][0][0][1], compared["differences"][0][1][0]
    assert own[0].lstrip("+") == other[0].lstrip("-")  # one minus the other, and the other way round
    assert "paired t test" in content.sections["results-body"]
    with pytest.raises(InputError, match="no setting has this label; the labels are slow; fast"):
        make_content(runs, baseline="none")


def test_the_page_tells_what_was_run_with_what(tmp_path: Path) -> None:
    told = {
        "python": "3.12.1",
        "packages": {"atoll": "0.1.0", "torch": "2.9"},
        "machine": {"system": "Linux", "cpus": 8},
    }
    for name in "ab":
        folder = write_run(tmp_path / name, make_rows(3), description="Five <seeds>", run={"device": "cuda"})
        (folder / "environment.json").write_text(json.dumps(told))
    (tmp_path / "b" / "environment.json").write_text("[]")  # damaged: nothing is said of it
    about = content_of(tmp_path / "a", tmp_path / "b").sections["about"]
    assert about.count("Five &lt;seeds&gt;") == 1
    assert "Run with Atoll 0.1.0, PyTorch 2.9, Python 3.12.1, on Linux, 8 CPUs, device cuda." in about
    assert about.count("<p") == 2


def test_deviations_of_accuracies_are_in_per_cent(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [row | {"own_accuracy_std": 0.125} for row in make_rows(3)])
    header, line = rows_of(content_of(folder), "results")
    assert dict(zip(header, line, strict=True))["Standard deviation of own accuracy"] == "12.50 %"


def test_bands_of_fewer_runs_than_planned_have_their_own_t(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path / str(seed), make_rows(3), finished=seed < 3, seed=seed)
    assert content_of(tmp_path).data["curves"]["t"] == pytest.approx({2: 12.706, 3: 4.303, 4: 3.182}, abs=1e-3)


def test_no_mean_is_shown_of_some_of_the_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        *first, last = make_rows(3)
        write_run(tmp_path / str(seed), [*first, last | {"test_accuracy": None if seed == 2 else 0.5}], seed=seed)
    header, row = Tables(content_of(tmp_path).sections["results-body"]).rows[:2]
    cells = dict(zip(header, row, strict=True))
    assert cells["Final accuracy"] == "–"
    assert cells["Best accuracy"] != "–"


def test_results_have_the_test_loss_where_classes_have_the_accuracy(tmp_path: Path) -> None:
    numbers = [{**row, "test_accuracy": None} for row in make_rows(3, test_loss=0.25)]
    header, row = rows_of(content_of(write_run(tmp_path / "numbers", numbers)), "results")[:2]
    assert dict(zip(header, row, strict=True))["Test loss"] == "0.25"
    assert "Test loss" not in rows_of(content_of(write_run(tmp_path / "classes", make_rows(3))), "results")[0]


@pytest.mark.parametrize("seed", ["x", [1], 1.5])
def test_a_seed_that_is_none_takes_no_report_down(tmp_path: Path, seed: Any) -> None:
    write_run(tmp_path / "good", make_rows(3), seed=0)
    write_run(tmp_path / "bad", make_rows(3), seed=seed, label="bad")
    assert len(Tables(content_of(tmp_path).sections["results-body"]).rows) == 3
