"""The report page in a browser: it asks for nothing, is drawn, and can be used by mouse, keyboard and on a phone."""

import csv
import importlib.util
import io
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Command
from tests.made_runs import make_rows, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update", "disable-sync"]
EVIL = "<script>alert(1)</script><b>bold</b> & %{x} " + "long" * 30

CURVES = "document.querySelector('#charts .plot').querySelectorAll('path.curve').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a headless Chromium."""
    if CHROMIUM is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("needs Chromium and playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{flag}" for flag in [*FLAGS, "no-first-run"]]
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, file: Path, **options: Any) -> Iterator[Any]:
    """Open a page, and see at the end that it neither complained nor asked for anything but itself."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: told.append("dialog"))
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.on("request", lambda request: told.append(request.url))
    page.goto(file.as_uri(), wait_until="commit")
    page.locator("#charts path.curve").first.wait_for(state="attached")
    yield page
    context.close()
    assert set(told) == {file.as_uri()}


def reports(folder: Path, atoll: Command) -> Path:
    """Write runs of two settings, one with two seeds, on a tiny network, and their page."""
    rows = [{**row, "confusion": [[5, row["round"]], [0, 7]], "cluster_accuracy": [0.5, 0.7]} for row in make_rows(20)]
    write_run(folder / "a0", rows, label="A", data={"dataset": "digits", "clients": 8, "samples": 20})
    write_run(
        folder / "a1", make_rows(20, 6), label="A", seed=1, data={"dataset": "digits", "clients": 8, "samples": 20}
    )
    write_run(folder / "b", make_rows(15, 9), label=EVIL, finished=False, local={"lr": 0.5})
    atoll("report", folder, "--html", folder / "page.html").succeeded()
    return folder / "page.html"


@pytest.fixture
def page_file(tmp_path: Path, atoll: Command) -> Path:
    return reports(tmp_path / "runs", atoll)


def until(page: Any, expression: str, expected: Any = True) -> None:
    """Wait for what JavaScript says; the page's policy forbids playwright's own way of doing so."""
    deadline = time.monotonic() + 60  # at once where nobody else computes
    while (found := page.evaluate(expression)) != expected:
        assert time.monotonic() < deadline, f"{expression}: {found!r}, not {expected!r}"
        page.wait_for_timeout(20)


def test_the_page_draws_its_curves_and_is_used_by_mouse_and_keyboard(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        assert page.title() == "made"
        assert page.locator("#notices").inner_text().startswith("Runs not finished: 1 of 3; ")
        until(page, CURVES, 2)
        chart = page.locator("#charts .plot").first
        assert "A: from 10.0 % to" in chart.get_attribute("aria-label")

        first, second = page.locator("#legend button").all()
        assert second.inner_text() == EVIL
        first.click()
        assert first.get_attribute("aria-pressed") == "false"
        until(page, CURVES, 1)
        assert "A: from" not in chart.get_attribute("aria-label")

        second.focus()
        page.keyboard.press("Space")
        until(page, CURVES, 0)
        assert chart.get_attribute("aria-label").endswith("No curve is shown.")
        page.get_by_role("button", name="Show all").press("Enter")
        until(page, CURVES, 2)

        for axis, title in (
            ("Client updates", "Client updates"),
            ("Bytes sent", "Bytes sent (kB)"),
            ("Virtual time", "Virtual time (minutes)"),
            ("Wall time", "Wall time (seconds)"),
        ):
            page.get_by_label("against, the horizontal axis").select_option(label=axis)
            until(page, "document.querySelector('#charts .plot .x-title')?.textContent", title)
        assert (
            page.get_by_role("status").inner_text()
            == "The curves show Test accuracy and Training loss against Wall time."
        )
        page.get_by_label("Show on the first chart").select_option(label="Test loss")
        until(page, "document.querySelector('#charts h3').textContent", "Test loss")

        line = page.locator("#settings tr", has=page.locator("th", has_text="dataset"))
        assert not line.is_visible()
        page.get_by_label("show settings that do not differ").check()
        assert line.is_visible()


@pytest.mark.more
def test_the_page_fits_a_phone_and_follows_the_theme(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file, viewport={"width": 390, "height": 740}, color_scheme="dark") as page:
        height = page.evaluate("document.body.scrollHeight")
        for top in range(0, height, 600):  # figures are drawn when they come into sight
            page.evaluate("top => scrollTo({top, behavior: 'instant'})", top)
            page.wait_for_timeout(50)
        until(page, "[...document.querySelectorAll('.plot')].every(p => p.querySelector('svg'))")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("document.querySelector('#results .scroll').scrollWidth") > 390  # and a shadow says so
        shadow = "getComputedStyle(document.querySelector('#results .scroll')).backgroundImage"
        assert page.evaluate(shadow).count("gradient") == 4

        toggle = page.locator("#theme")
        assert toggle.inner_text() == "Light mode"  # what it will do
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == "rgb(21, 24, 27)"
        toggle.click()
        assert page.evaluate(background) == "rgb(255, 255, 255)"
        assert toggle.inner_text() == "Dark mode"
        page.reload(wait_until="commit")
        page.get_by_role("button", name="Dark mode").wait_for()
        assert page.evaluate(background) == "rgb(255, 255, 255)"  # the reader's choice is remembered


@pytest.mark.more
def test_a_screen_reader_finds_its_way(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        for role in ("banner", "main", "contentinfo", "navigation"):
            assert page.get_by_role(role).count() == 1, role
        assert page.get_by_role("heading", level=1).count() == 1
        names = "e => e.ariaLabel || e.textContent.trim() || e.labels?.[0]?.textContent.trim()"
        assert all(page.locator("button, select, input, [role=img]").evaluate_all(f"all => all.map({names})"))
        assert page.locator("table").count() == page.locator("table > caption").count() > 0
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(h => Number(h.tagName[1]))")
        assert all(after <= before + 1 for before, after in pairwise(levels)), levels


def opening(browser: Any, file: Path, ready: str) -> tuple[float, float]:
    """Open a file until there is an element; return seconds waited and seconds that the page's thread has worked."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    begun = time.monotonic()
    page.goto(file.as_uri(), wait_until="commit")
    page.locator(ready).last.wait_for(state="attached")
    waited = time.monotonic() - begun
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return waited, metrics["TaskDuration"]


@pytest.mark.slow
def test_twenty_runs_of_a_thousand_probes_open_at_once(browser: Any, tmp_path: Path, atoll: Command) -> None:
    for index in range(20):
        more = {"local_loss": 1.0 / (1 + index), "cluster_accuracy": [0.1 * index / 2] * 10}
        write_run(
            tmp_path / "runs" / f"{index:02}", make_rows(1000, 50 + 20 * index, **more), local={"lr": 0.1 + index}
        )
    atoll("report", tmp_path / "runs", "--html", "page.html").succeeded()
    size = (tmp_path / "page.html").stat().st_size
    assert size < 2_000_000
    times = [opening(browser, tmp_path / "page.html", "#charts path.curve") for _ in range(4)]
    waited, worked = map(min, zip(*times, strict=True))
    print(f"{size / 1e6:.2f} MB: open after {waited:.2f} s and {worked:.2f} s of work")
    if os.getloadavg()[0] < (os.cpu_count() or 1):  # else others' work is measured
        assert waited < 1


def test_a_chart_is_zoomed_into_and_tells_its_points(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        until(page, CURVES, 2)
        chart = page.locator("#charts .plot").first
        titles = "[...document.querySelector('#charts .plot').querySelectorAll('text')].map(t => t.textContent).join()"
        whole = page.evaluate(titles)
        box = chart.bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 102, steps=4)
        page.mouse.up()
        until(page, f"{titles} !== {whole!r}")
        chart.dblclick(position={"x": 200, "y": 100})
        until(page, titles, whole)
        marker = page.locator("#charts .plot path[transform]").nth(3).bounding_box()
        page.mouse.move(marker["x"] + marker["width"] / 2, marker["y"] + marker["height"] / 2)
        tip = page.locator("#charts .plot .tip").first
        tip.wait_for()
        assert "%" in tip.inner_text()
        page.mouse.move(5, 5)
        tip.wait_for(state="hidden")


NETWORKED = """
name = "networked"
rounds = 4
run.probes = ["client_accuracy"]
method = { name = "hierarchical", intra_rounds = 2 }
clustering = { method = "comaw", clusters = 4 }
data = { clients = 12, samples = 20 }
local.steps = 1
"""


def save_all(page: Any) -> dict[str, list[dict[str, str]]]:
    """Save every figure as a drawing and as data; return the rows of each, by its first column's name and its title."""
    found = {}
    for place in range(page.locator("figure").count()):
        page.reload(wait_until="commit")  # Chromium hands over ten files from a page that nobody real clicks on
        figure = page.locator("figure").nth(place)
        figure.scroll_into_view_if_needed()
        figure.locator(".plot svg").wait_for()
        files = {}
        for kind in ("SVG", "CSV"):
            with page.expect_download() as download:
                figure.get_by_role("button", name=f"Save as {kind}: ").click()
            assert download.value.suggested_filename.endswith(f".{kind.lower()}")
            files[kind] = download.value.path().read_bytes().decode()
        assert ElementTree.fromstring(files["SVG"]).tag == "{http://www.w3.org/2000/svg}svg"
        found[figure.locator("h3, h4").inner_text()] = list(csv.DictReader(io.StringIO(files["CSV"])))
    return found


@pytest.mark.more
def test_what_falls_below_0_has_no_logarithmic_axis(browser: Any, tmp_path: Path, atoll: Command) -> None:
    rows = [row | {"gap": loss, "train_loss": loss} for row, loss in zip(make_rows(4), (5, 0.1, 0.01, -1), strict=True)]
    write_run(tmp_path / "a", rows)
    atoll("report", tmp_path, "--html", tmp_path / "page.html").succeeded()
    with opened(browser, tmp_path / "page.html") as page:
        assert not page.locator("#log").is_checked()
        page.locator("#log").check()
        page.locator("#y1").select_option("gap")
        path = page.locator("#charts .plot >> nth=1").locator("path.curve").get_attribute("d")
        assert len(path.split("L")) == 4, "also the point below 0"


def test_curves_and_found_clusters_are_saved_as_image_drawing_and_data(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file) as page:
        until(page, CURVES, 2)
        with page.expect_download() as found:
            page.get_by_role("button", name="Save as PNG").first.click()
        assert found.value.suggested_filename == "test-accuracy-against-rounds.png"
        assert found.value.path().read_bytes().startswith(b"\x89PNG")
        saved = save_all(page)
    curves = saved["Test accuracy (%)"]
    assert [*curves[0]] == ["label", "run", "round", "test_accuracy"]
    assert Counter((row["label"], row["run"]) for row in curves) == {("A", "0"): 20, ("A", "1"): 20, (EVIL, "0"): 15}
    assert float(curves[0]["test_accuracy"]) == pytest.approx(0.1)
    counts = saved["Clients by planted group and model at round 19"]
    assert [[*row.values()] for row in counts] == [["0", "0", "5"], ["0", "1", "19"], ["1", "0", "0"], ["1", "1", "7"]]
    shares = saved["Clients by the model they take, over rounds"]
    assert sum(float(row["share"]) for row in shares if row["round"] == "19" and row["group"] == "0") == pytest.approx(
        1
    )
    assert len(saved["Test accuracy of each cluster's model"]) == 2 * 20


@pytest.mark.more
def test_a_networks_figures_are_saved(browser: Any, tmp_path: Path, atoll: Command) -> None:
    (tmp_path / "networked.toml").write_text(NETWORKED)
    atoll("run", "networked.toml", "--quiet").succeeded()
    atoll("report", "runs/networked", "--html", "page.html").succeeded()
    with opened(browser, tmp_path / "page.html") as page:
        tables = {tuple(rows[0]): rows for rows in save_all(page).values()}
    place = tables["kind", "number", "x_metres", "y_metres", "aggregator"]
    assert Counter(row["kind"] for row in place) == {"client": 12, "aggregator": 4, "server": 1}
    works = tables["cluster", "began_seconds", "worked_until_seconds", "ended_seconds"]
    assert all(
        float(row["began_seconds"]) <= float(row["worked_until_seconds"]) <= float(row["ended_seconds"])
        for row in works
    )
    for whole in (("cluster", "clients", "class", "share"), ("client", "class", "share")):
        assert sum(float(row["share"]) for row in tables[whole]) == pytest.approx(
            len({row[whole[0]] for row in tables[whole]}), abs=1e-5
        )


def test_the_page_is_printed_whole_and_on_white(browser: Any, page_file: Path) -> None:
    with opened(browser, page_file, color_scheme="dark") as page:
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        page.set_viewport_size({"width": 700, "height": 1000})
        assert page.evaluate("[...document.querySelectorAll('.plot')].every(p => p.querySelector('svg'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("document.documentElement.scrollWidth") == 700
        cut = "[...document.querySelectorAll('.scroll, table')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert page.evaluate(cut) == 0
        assert page.get_by_role("heading", name="One run in detail: ").is_visible(), "whose the figures are"
        assert not page.get_by_text("Drag across a chart").is_visible()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs", "--html", "runs"], "--html runs: must end in .html, so that a browser knows what it is"),
        (["runs", "--html", "page.txt"], "--html page.txt: must end in .html, so that a browser knows what it is"),
        (["none", "--html", "page.html"], "none does not exist"),
        (
            ["runs", "--html", "page.html", "--target", "2"],
            "--target 2: must be greater than 0 and at most 1; 2 % is 0.02",
        ),
        (["empty", "--html", "page.html"], "empty is not a run, and no folder in it is one: no config.toml found"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, atoll: Command, words: list[str], told: str) -> None:
    write_run(tmp_path / "runs/a", make_rows(3))
    (tmp_path / "empty").mkdir()
    assert atoll("report", *words).refused() == told
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--html", "new/a.html", "--csv", "new/a.html"], "--csv new/a.html: is a file that --html writes"),
        (["--csv", "new/a", "--parquet", "new/../new/a"], "--parquet new/../new/a: is a file that --csv writes"),
        (["--out", "new", "--csv", "new/table.csv"], "--csv new/table.csv: is a file that --out writes"),
        (["--out", "new", "--csv", "new/spread.csv"], "--csv new/spread.csv: is a file that --out writes"),
    ],
)
def test_two_outputs_are_two_files(tmp_path: Path, atoll: Command, words: list[str], told: str) -> None:
    write_run(tmp_path / "runs/a", make_rows(3))
    assert atoll("report", "runs", *words).refused() == f"{told}; give another path"
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, atoll: Command) -> None:
    write_run(tmp_path / "runs", make_rows(3))
    (tmp_path / "file").write_text("")
    told = atoll("report", "runs", "--html", "file/page.html").refused()
    assert told == "--html file/page.html: its folder file cannot be made (File exists)"


@pytest.mark.more
def test_the_page_alone_leaves_no_folder_and_prints_the_table(tmp_path: Path, atoll: Command) -> None:
    write_run(tmp_path / "runs", make_rows(20))
    shown = atoll("report", "runs", "--html", "new/page.html", "--target", "0.5").succeeded()
    assert shown.splitlines()[-1] == "new/page.html"
    assert "To 50 %" in shown
    assert not (tmp_path / "runs/report").exists()
    assert "atoll report runs --html new/page.html --target 0.5" in (tmp_path / "new/page.html").read_text()
    atoll("report", "runs", "--html", "new/page.html", "--out", "figures").succeeded()
    assert (tmp_path / "figures/table.md").is_file()
