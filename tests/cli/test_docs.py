"""The documentation is true: its code runs, it names every command and setting, and it builds without a warning."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from nbclient.exceptions import CellExecutionError

import atoll.cli  # noqa: F401  (registers the commands)
from atoll.cli.common import app
from atoll.network.completion import event_seconds
from atoll.settings.validation import Settings
from tests.cli.conftest import Command
from tests.cli.pages import ROOT, blocks, commands, run_together, shell, write_files
from tests.hooks import hook_of

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))

LONG = 1200  # seconds for a page of many commands: minutes on idle cores, more where others share them


@pytest.mark.more
def test_every_file_on_the_extending_page_runs(tmp_path: Path) -> None:
    names = write_files(DOCS / "extending.md", tmp_path)
    experiments = [name for name in names if name.endswith(".toml")]
    assert len(experiments) == 24
    run_together([f"atoll run {name}" for name in experiments], tmp_path)
    for name in experiments:
        assert list((tmp_path / "runs" / name.removesuffix(".toml")).rglob("summary.json")), name


def test_the_selection_on_the_extending_page_lets_clients_rest(tmp_path: Path) -> None:
    write_files(DOCS / "extending.md", tmp_path)
    draw = runpy.run_path(str(tmp_path / "own_selection.py"))["rested"](range(30), seed=0, pause=3).draw
    for first in range(20):
        assert len(np.unique(np.concatenate([draw(first + k, 6) for k in range(4)]))) == 24, first


def test_the_experiment_on_the_settings_page_is_valid(atoll: Command, folder: Path) -> None:
    (folder / "mine.toml").write_text(blocks_of("settings.md", "toml"))
    rows = atoll("schedule", "mine.toml", "--scale", "small", "--set", "data.dataset=digits").succeeded()
    assert "M = 20" in rows


@pytest.mark.slow
def test_the_five_minutes_of_the_start_page(tmp_path: Path) -> None:
    shell("\n".join(commands(DOCS / "index.md")), tmp_path)
    assert (tmp_path / "runs/orders/curves-round.png").is_file()
    assert (tmp_path / "gantt.png").is_file()
    assert (tmp_path / "orders.html").is_file()


@pytest.mark.more
def test_the_examples_on_the_command_line_page_run(tmp_path: Path) -> None:
    lines = [line.partition(" > ")[0] for line in commands(DOCS / "cli.md") if " fetch " not in line]
    assert len(lines) >= 7
    run_together(lines, tmp_path)


@pytest.mark.slow
def test_the_commands_and_files_of_the_page_on_planning_run(tmp_path: Path) -> None:
    files = write_files(DOCS / "planning.md", tmp_path)
    assert files == ["clients.csv", "sites.csv", "links.csv", "shops.toml", "fleet.toml"]
    shown = run_together(commands(DOCS / "planning.md"), tmp_path)
    assert [row[5] for row in rows_of(shown, "aggregator")[:4]] == ["3 s"] * 4, "the page says that the limit is 3 s"
    assert (tmp_path / "fleet-map.png").is_file()
    assert "CenAsy" in (tmp_path / "runs/patterns/table.md").read_text()


@pytest.mark.more
def test_the_page_on_training_runs(tmp_path: Path) -> None:
    assert write_files(DOCS / "training.md", tmp_path) == ["rates.toml"]
    run_together(commands(DOCS / "training.md"), tmp_path)
    assert json.loads((tmp_path / "runs" / "rates" / "summary.json").read_text())["rounds"] == 12
    assert "in round" in json.loads((tmp_path / "runs" / "early" / "summary.json").read_text())["stopped"]
    exec(blocks_of("training.md", "python"), {})


@pytest.mark.more
def test_the_page_on_drift_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that no title is cut
    assert write_files(DOCS / "drift.md", tmp_path) == ["moving.toml", "own_drift.py"]
    shown = run_together(commands(DOCS / "drift.md")[:4], tmp_path)
    assert "data change at round" in shown
    assert "Recovery rounds" in shown
    assert "start of round 4, 8" in (tmp_path / "runs/moving.html").read_text()


@pytest.mark.slow
def test_the_times_on_the_page_on_choosing_are_those_of_its_experiment(tmp_path: Path) -> None:
    write_files(DOCS / "choosing.md", tmp_path)
    run_together(commands(DOCS / "choosing.md"), tmp_path)
    rows = json.loads((tmp_path / "runs/paces/report/table.json").read_text())
    measured = {(row["panel"], row["label"]): [reached["virtual_time"] for reached in row["targets"]] for row in rows}
    line = r"^\| (?:Paces (\w+): )?((?:Cen|Dec)\w+) \| (\d+) \| (\d+) \| (\d+) \| \d+ \|$"
    stated, panel = {}, ""
    for word, label, *seconds in re.findall(line, page("choosing"), re.MULTILINE):
        panel = f"paces {word}" if word else panel
        # On another processor a target may be met a probe earlier or later.
        stated[panel, label] = pytest.approx([float(number) for number in seconds], rel=0.1, abs=20)
    assert measured == stated


def test_every_command_has_a_section_and_a_table_of_its_options() -> None:
    root: Any = typer.main.get_command(app)
    marked = set(re.findall(r"<!-- options of atoll (\S+) -->", page("cli")))
    titled = set(re.findall(r"^## atoll (\S+)", page("cli"), re.MULTILINE))
    assert marked == titled == set(root.commands)


@pytest.mark.more
def test_the_tables_of_options_have_every_option_and_what_its_help_says() -> None:
    hook, text = hook_of("command_options"), page("cli")
    for path, command in leaves(typer.main.get_command(app)):
        table = hook.options_table(path[0])
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert parameter.opts[0] in table, f"{' '.join(path)} {parameter.opts[0]}"
                assert " ".join((parameter.help or "").split()).replace("|", r"\|") in table
        assert table in text


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "api.md"])
def test_the_lists_in_the_pages_are_those_of_the_code(name: str) -> None:
    """Run `make docs-lists` where this fails."""
    text = (DOCS / name).read_text()
    lists = hook_of("lists")
    assert text.count(lists.END) >= 1
    assert lists.with_lists(name, text) == text
    spoilt = text.replace("|---|", "|---|-", 1)
    assert lists.with_lists(name, spoilt) == text != spoilt


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that does something, with its name below `atoll`."""
    for name, each in getattr(command, "commands", {}).items():
        yield from leaves(each, (*path, name))
    if path and not getattr(command, "commands", {}):
        yield path, command


@pytest.mark.more
def test_a_table_has_clients_groups_and_aggregators_in_fifteen_lines(tmp_path: Path) -> None:
    assert write_files(DOCS / "tables.md", tmp_path) == ["make_clinics.py", "clinics.toml", "predict_rows.py"]
    assert len((tmp_path / "clinics.toml").read_text().splitlines()) < 15
    subprocess.run([sys.executable, "make_clinics.py"], cwd=tmp_path, check=True, timeout=60)
    shown = run_together(commands(DOCS / "tables.md"), tmp_path)
    assert "24 clients" in shown
    rows = [json.loads(line) for line in (tmp_path / "runs/clinics/ifca/metrics.jsonl").read_text().splitlines()]
    assert (rows[-1]["ari"], sorted(rows[-1]["cluster_clients"])[-3:]) == (1.0, [8, 8, 8])
    assert (tmp_path / "runs/clinics/by-region/summary.json").is_file()
    by_region = json.loads(run_together(["atoll cluster clinics.toml --only region --json"], tmp_path))[0]
    assert by_region["membership"] == [0, 1, 2] * 8
    told = subprocess.run([sys.executable, "predict_rows.py"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert sorted(line[2:] for line in told.stdout.splitlines()) == ["['no', 'yes']", "['no', 'yes']", "['yes', 'no']"]


@pytest.mark.parametrize("pattern", ["censyn", "cenasy", "decsyn", "decasy"])
def test_the_drawn_timeline_says_what_the_one_in_text_says(pattern: str) -> None:
    """The page draws each pattern twice: from its schedule, and by hand, where a digit is a merge and its staleness."""
    figures = hook_of("figures")
    drawn = {cluster: [] for cluster in range(3)}  # type: dict[int, list[tuple[float, int]]]
    for event in figures.schedule_of(pattern, figures.three_clusters()).events:
        for cluster, staleness in zip(event.active, event.staleness, strict=True):
            if event.seconds <= figures.SHOWN_SECONDS:
                drawn[cluster].append((event.seconds, staleness))
    blocks_ = re.findall(r"^ +(?:Cen|Dec)\w+ +cluster 0.*\n.*\n.*$", page("concepts"), re.MULTILINE)
    by_hand = next(block for block in blocks_ if pattern in block.lower()).splitlines()
    for cluster, line in enumerate(by_hand):
        work = re.search(r"cluster \d +([=.\d]+)", line)
        assert work is not None
        digits = [(at, int(sign)) for at, sign in enumerate(work[1]) if sign.isdigit()]
        assert [staleness for _, staleness in digits] == [staleness for _, staleness in drawn[cluster]]
    assert event_seconds(figures.three_clusters(), np.arange(3), pattern, 1).tolist() == list(figures.PACES)


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def rows_of(text: str, first: str) -> list[list[str]]:
    """Return the cells of printed rows that follow a header which begins with `first`."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == [first])
    return [re.split(r"\s{2,}", line.strip()) for line in lines[start + 1 :]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, for which the notebooks have been carried out."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.more
@pytest.mark.timeout(900)  # it carries out the notebooks besides
def test_the_site_builds_and_shows_every_setting(site: Path) -> None:
    page = (site / "settings/index.html").read_text().replace("[", "").replace("]", "")
    for name, field in Settings.model_fields.items():
        inside = getattr(field.annotation, "model_fields", {})
        assert [key for key in (name, *inside) if f"<code>{key}</code>" not in page] == []
    assert list(site.rglob("*.py*")) == []
    for file in site.rglob("*.html"):
        assert 'src="http' not in file.read_text(), f"{file.name} fetches something from the network"


@pytest.mark.more
def test_links_to_the_code_lead_to_the_page_of_what_they_name(site: Path) -> None:
    assert 'href="../api/Event/"' in (site / "concepts/index.html").read_text()
    page = (site / "api/Event/index.html").read_text()
    assert 'id="atoll.schedules.events.Event"' in page
    assert 'href="../#methods-of-your-own"' in page
    inside = (site / "internals/schedules/events/index.html").read_text()
    assert 'id="atoll.schedules.events.Event"' not in inside
    assert 'href="../../../api/Event/"' in inside


@pytest.mark.more
def test_the_notebooks_are_shown_with_what_they_give(site: Path) -> None:
    assert {path.stem for path in NOTEBOOKS} == {"data-frames", "first-comparison", "own-rules"}
    for path in NOTEBOOKS:
        page = (site / "notebooks" / path.stem / "index.html").read_text()
        assert "<table" in page
        assert f'src="../{path.stem}-1.svg"' in page
        assert (site / "notebooks" / path.name).read_bytes() == path.read_bytes()
    assert "gave 3 labels for 24 clients" in page
    assert "three models (IFCA)" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_gave(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.more
def test_a_failing_cell_stops_the_build(tmp_path: Path) -> None:
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "a",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
        "source": "1 / 0",
    }
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "wrong.ipynb").write_text(json.dumps(notebook))
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        hook_of("run_notebooks").carried_out(tmp_path / "wrong.ipynb")


@pytest.mark.slow
@pytest.mark.timeout(LONG + 60)
def test_the_tutorial_runs_as_it_stands(tmp_path: Path) -> None:
    assert write_files(DOCS / "tutorial.md", tmp_path) == ["draw_stations.py", "weather.py", "rain.toml", "figure.py"]
    shell(blocks_of("tutorial.md", "sh"), tmp_path, LONG)
    assert (tmp_path / "rain.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "figures/table.tex").is_file()
    assert (tmp_path / "runs/rain/fedavg/model.safetensors").is_file()
    rows = {row["label"]: row for row in json.loads((tmp_path / "runs/rain/report/table.json").read_text())}
    assert rows["IFCA"]["final_test_accuracy"] > rows["FedAvg"]["final_test_accuracy"] + 0.1, "as the page has it"


@pytest.mark.slow
@pytest.mark.timeout(LONG + 60)
def test_the_answers_to_questions_run(tmp_path: Path) -> None:
    lines = [line for line in commands(DOCS / "faq.md") if not re.search("cuda|verify", line)]
    assert len(lines) >= 7
    run_together(lines, tmp_path, LONG)
    assert (tmp_path / "gantt.pdf").is_file()
    exec(blocks_of("faq.md", "python"), {})


def test_the_code_of_the_python_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(DOCS / "api.md", "python"):
        exec(compile(block.text, "api.md", "exec"), {})
    assert "[10 10 10 10 10 10 10 10 10 10]" in capsys.readouterr().out


def test_each_pattern_is_drawn_with_the_links_of_its_schedule() -> None:
    links = hook_of("method_figures").links
    central = {(-1, k) for k in range(3)} | {(k, -1) for k in range(3)}
    assert links("censyn") == links("cenasy") == central
    assert links("decsyn") == links("decasy") == {(0, 1), (1, 0), (1, 2), (2, 1)}


def blocks_of(page: str, language: str) -> str:
    return "\n".join(block.text for block in blocks(DOCS / page, language))
