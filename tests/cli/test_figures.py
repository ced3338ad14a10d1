"""Figures that the commands draw: as their names say, and as wide as asked."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.made_runs import make_rows, write_run
from tests.tiers import thinned

NETWORK = """
name = "net"
rounds = 20
[data]
dataset = "digits"
clients = 8
samples = 20
[local]
steps = 1
[method]
name = "hierarchical"
pattern = "censyn"
[clustering]
method = "comaw"
clusters = 4
"""


def inches(svg: Path) -> float:
    found = re.search(r'width="([\d.]+)pt"', svg.read_text())
    assert found is not None
    return float(found[1]) / 72


@pytest.mark.more
def test_a_gantt_is_the_file_that_it_is_called(tmp_path: Path, atoll: Command) -> None:
    for name, written in (("gantt.pdf", ["gantt.pdf"]), ("two", ["two.png", "two.svg"]), ("a.svg", ["a.svg"])):
        done = atoll("schedule", "quickstart", "--only", "FedAvg", "--plot", name)
        assert done.err.splitlines() == [f"wrote {each}" for each in written]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".toml") == [
        "a.svg",
        "gantt.pdf",
        "two.png",
        "two.svg",
    ]


@pytest.mark.more
@pytest.mark.parametrize(("width", "wide"), thinned([("column", 3.5), ("text", 7.16), ("5.25", 5.25)], 1))
def test_a_figure_is_as_wide_as_asked(tmp_path: Path, atoll: Command, width: str, wide: float) -> None:
    for words in (("schedule",), ("data", "inspect")):
        atoll(*words, "quickstart", "--only", "FedAvg", "--plot", "a.svg", "--width", width).succeeded()
        assert inches(tmp_path / "a.svg") == pytest.approx(wide, abs=0.01)


@pytest.mark.parametrize("width", ["wide", "0", "nan", "-3", "1e9"])
def test_a_bad_width_is_one_sentence(atoll: Command, width: str) -> None:
    told = f"--width {width}: must be column, text or a number of inches from 1 to 50"
    assert atoll("schedule", "quickstart", "--plot", "a", "--width", width).refused() == told


@pytest.mark.more
def test_of_several_runs_the_first_is_drawn_and_named(atoll: Command) -> None:
    told = "--plot draws the first of 2 runs, quickstart, FedCluster, M = 10; --only chooses another"
    for words in (("cluster",), ("schedule",), ("data", "inspect")):
        done = atoll(*words, "quickstart", "--plot", "a.svg")
        done.succeeded()
        assert done.err.splitlines() == [told, "wrote a.svg"]
    private = ("--set", "privacy.trust=server", "--set", "privacy.clip=1", "--set", "privacy.noise=1")
    assert told in atoll("schedule", "quickstart", *private, "--privacy", "--plot", "a.svg").err.splitlines()


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["cluster", "quickstart", "--width", "column"], "--width"),
        (["cluster", "quickstart", "--ids"], "--ids"),
        (["schedule", "quickstart", "--width", "column"], "--width"),
        (["data", "inspect", "quickstart", "--width", "column"], "--width"),
    ],
)
def test_what_only_a_figure_has_needs_one(atoll: Command, words: list[str], option: str) -> None:
    assert atoll(*words).refused() == f"{option}: is for the figures of --plot; give --plot as well"


def test_there_are_clients_to_number_on_a_network_s_map_alone(tmp_path: Path, atoll: Command) -> None:
    told = "--ids: numbers the clients on a network's map, and this experiment has no network"
    assert atoll("cluster", "quickstart", "--plot", "new/c.svg", "--ids").refused() == told
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["gantt.jpg", "new/gantt.EPS", "page.html"])
def test_another_kind_of_image_is_refused_before_the_work(tmp_path: Path, atoll: Command, name: str) -> None:
    told = f"--plot {name}: must end in .pdf, .svg or .png, or have no ending, for a PNG and an SVG"
    assert atoll("schedule", "quickstart", "--plot", name).refused() == told
    assert not (tmp_path / "new").exists()


@pytest.mark.more
def test_a_hierarchy_s_pictures_show_waiting_and_ids(tmp_path: Path, atoll: Command) -> None:
    (tmp_path / "net.toml").write_text(NETWORK)
    atoll("schedule", "net.toml", "--plot", "gantt.svg").succeeded()
    assert "Waiting for the slowest" in (tmp_path / "gantt.svg").read_text()
    atoll("schedule", "net.toml", "--set", "method.pattern=cenasy", "--plot", "asy.svg").succeeded()
    assert "Waiting for the slowest" not in (tmp_path / "asy.svg").read_text()
    done = atoll("cluster", "net.toml", "--plot", "c.svg", "--ids")
    assert [line.split()[1] for line in done.err.splitlines() if line.startswith("wrote")] == [
        "c.svg",
        "c-map.svg",
        "c-completion.svg",
        "c-sizes.svg",
    ]
    with_ids = (tmp_path / "c-map.svg").read_text().count("<!-- 7 -->")
    atoll("cluster", "net.toml", "--plot", "d.svg").succeeded()
    assert with_ids == (tmp_path / "d-map.svg").read_text().count("<!-- 7 -->") + 1


def test_a_report_overlays_panels(tmp_path: Path, atoll: Command) -> None:
    for panel in ("CenSyn", "CenAsy"):
        write_run(tmp_path / "runs" / panel, make_rows(5), label="FedUC", panel=panel)
    printed = atoll("report", "runs", "--overlay", "--html", "page.html").succeeded()
    assert "CenSyn, FedUC" in printed
    page = (tmp_path / "page.html").read_text()
    assert "atoll report runs --html page.html --overlay" in page
    assert '"title":"CenSyn"' not in page
