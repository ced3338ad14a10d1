"""`atoll plan`: from a file to a chosen plan and its page, and what is told where there is none."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.cli.test_page import CHROMIUM, browser  # noqa: F401  (a fixture)
from tests.planner.test_measured import HIERARCHY, fleet_run
from tests.tiers import thinned

FILE = """
name = "site"
rounds = 20

[data]
partition = "one-label"
clients = 10

[model]
name = "linear"

[local]
lr = 0.1
steps = 1
batch_size = 16

[clustering]
method = "comaw"
clusters = 4

[network]
seconds_per_sample = [0.01, 0.03]
bandwidth_hz = 3e5

[method]
name = "hierarchical"
intra_rounds = 2

[run]
executor = "serial"
evaluate_samples = 100
virtual_seconds = 60.0
"""
PLAN = ("plan", "site.toml", "--over", "clustering.method=comaw,dataw", "--over", "method.intra_rounds=2")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a site and its plan."""
    from atoll.cli import main

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "site.toml").write_text(FILE)
        assert main([*PLAN, "--target", "0.4", "--seeds", "2", "--out", "plan", "--quiet"]) == 0
    return folder


@pytest.mark.more
def test_the_chosen_file_runs(site: Path, atoll: Command, folder: Path) -> None:
    chosen = tomllib.loads((site / "plan/experiment.toml").read_text())
    told = json.loads((site / "plan/plan.json").read_text())
    first = told["plans"][0]
    assert chosen["label"] == first["plan"]
    assert chosen["method"]["pattern"] == first["values"]["method.pattern"]
    assert chosen["run"]["virtual_seconds"] == 60.0
    assert "evaluate_every" not in first["values"]
    shown = json.loads(atoll("schedule", str(site / "plan/experiment.toml"), "--json").succeeded())
    assert shown[0]["events"] == first["schedule"]["events"]
    assert shown[0]["bytes_up"] == sum(hop["up"] for hop in first["schedule"]["hops"])


@pytest.mark.more
def test_a_run_of_the_race_is_one_of_atoll_run(site: Path, atoll: Command, folder: Path) -> None:
    """To the bit: the plan's seconds to the target are those of its own file."""
    first = json.loads((site / "plan/plan.json").read_text())["plans"][0]
    atoll("run", str(site / "plan/experiment.toml"), "--out", "run", "--quiet").succeeded()
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    column = "mean_cluster_accuracy" if first["values"]["method.pattern"].startswith("dec") else "test_accuracy"
    raced = (site / first["folder"] / "seed-0/metrics.jsonl").read_text().splitlines()
    by_event = {row["event"]: row for row in rows}
    shared = [row for row in map(json.loads, raced) if row["event"] in by_event]
    assert len(shared) > 2
    assert all(row[column] == by_event[row["event"]][column] for row in shared)


def test_the_page_needs_nothing_else(site: Path) -> None:
    page = (site / "plan/index.html").read_text()
    assert "connect-src" not in page
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", page)
    assert "is first: 40.0 % after" in page


@pytest.mark.parametrize("width", thinned([1200, 390], 1))
def test_the_page_is_drawn(site: Path, browser: Any, width: int) -> None:  # noqa: F811
    """Map, first events and curves; another pattern shows another plan, or why it was dropped."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark")
    page, told = context.new_page(), list[str]()
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url))
    address = (site / "plan/index.html").as_uri()
    page.goto(address)
    for figure in ("curves", "map", "gantt"):
        page.locator(f"#{figure}").scroll_into_view_if_needed()
        page.locator(f"#{figure} svg").wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    before = page.locator("#shown").inner_text()
    choices = page.locator("#axes select").first
    other = page.evaluate("s => [...s.options].map(o => o.value).find(v => v !== s.value)", choices.element_handle())
    choices.select_option(other)
    assert page.locator("#shown").inner_text() != before
    context.close()
    assert set(told) == {address}


@pytest.mark.more
def test_a_slider_goes_from_the_least_number_to_the_greatest(site: Path, browser: Any, tmp_path: Path) -> None:  # noqa: F811
    """Also where the best plan, whose value comes first, has another one."""
    text = (site / "plan/index.html").read_text()
    varied = re.sub(r'"texts": ?\["2"\]', '"texts":["10","2","5"]', text)
    assert varied != text
    (tmp_path / "page.html").write_text(varied)
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    slider = page.locator("#axes input[type=range]")
    assert slider.input_value() == "0"
    slider.fill("2")
    assert page.locator("#axes output[for='axis-method.intra_rounds']").inner_text() == "10"
    page.close()


def test_another_plan_is_not_continued(site: Path, atoll: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site)
    other = ("--bytes", "1e9", "--target", "0.4", "--seeds", "2", "--out", "plan", "--resume")
    refused = atoll(*PLAN, *other).refused()
    assert refused.startswith("--resume: plan holds another plan, which differs in bytes; give the same options again")


def test_how_many_plans_are_worth_a_race(atoll: Command, folder: Path) -> None:
    (folder / "site.toml").write_text(FILE)
    done = atoll(*PLAN, "--over", "method.pattern=censyn", "--no-race")
    assert re.search(r"plans scored by their schedules: 2, in .* s; worth a race: [12]$", done.err, re.MULTILINE)


def test_schedules_alone_write_nothing(atoll: Command, folder: Path) -> None:
    (folder / "site.toml").write_text(FILE)
    printed = atoll(*PLAN, "--no-race").succeeded()
    assert "merges" in printed
    assert not (folder / "plans").exists()
    refused = atoll(*PLAN, "--no-race", "--out", "scores").refused()
    assert refused == "--out: --no-race trains and writes nothing; leave out one of them"
    refused = atoll(*PLAN, "--no-race", "--resume").refused()
    assert refused == "--resume: --no-race trains and writes nothing; leave out one of them"
    refused = atoll(*PLAN, "--no-race", "--seeds", "2").refused()
    assert refused == "--seeds: --no-race trains and writes nothing; leave out one of them"
    told = json.loads(atoll(*PLAN, "--no-race", "--json").succeeded())
    assert told["plans"][0]["schedule"]["events"] > 0
    assert told["dropped"]


def test_schedules_of_measured_clients_write_nothing_either(atoll: Command, folder: Path) -> None:
    """The files of a plan made before name its clients, and would change it."""
    fleet_run(folder / "run", HIERARCHY)
    varied = ("--over", "clustering.method=comaw,dataw", "--over", "method.intra_rounds=3")
    assert "merges" in atoll("plan", "run/config.toml", "--from", "run", *varied, "--no-race").succeeded()
    assert not (folder / "plans").exists()


def test_what_is_refused_leaves_no_folder(atoll: Command, folder: Path) -> None:
    (folder / "site.toml").write_text(FILE)
    assert "no plan's first event fits" in atoll(*PLAN, "--seconds", "0.5").refused()
    assert not (folder / "plans").exists()


def test_a_target_that_no_plan_reaches(atoll: Command, folder: Path) -> None:
    (folder / "site.toml").write_text(FILE)
    over = ("--over", "method.pattern=censyn,cenasy", "--seconds", "10", "--seeds", "1")
    done = atoll(*PLAN, *over, "--target", "0.99", "--out", "plan", "--quiet")
    assert done.code == 1
    assert "error: --target 0.99: no plan reaches it within the budget; the closest: " in done.err
    assert str(Path("plan/index.html")) in done.err
    assert not (folder / "plan/experiment.toml").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--seconds", "0"), "--seconds 0: must be a positive number"),
        (("--bytes", "-5"), "--bytes -5: must be a positive number"),
        (("--metric", "test_los"), "--metric test_los: unknown, did you mean 'test_loss'?"),
        (("--metric", "bytes"), "--metric bytes: unknown. Allowed: ari, h_cluster, h_device, local_loss, mean"),
        (
            ("--metric", "virtual_time", "--target", "9"),
            "--metric virtual_time: is a cost; plans are judged by what is learned, such as test_accuracy",
        ),
        (("--target", "80"), "--target 80: must be greater than 0 and at most 1"),
        (("--seeds", "0"), "--seeds 0: must be at least 1"),
        (("--seconds", "0.5"), "--seconds 0.5: no plan's first event fits"),
        (("--bytes", "5"), "--bytes 5: no plan's first event fits; for example, "),
        (("--over", "method.pattern=cenasy", "--over", "method.pattern=censyn"), "is given twice"),
        (("--over", "seed=0..2"), "--over seed: the race would pick a lucky seed; fix one with --set seed=..."),
        (("--over", "method.patern=censyn"), "method.patern: unknown, did you mean 'pattern'?"),
        (("--set", "network.file=u.csv"), "network.file"),
    ],
)
def test_bad_input(options: tuple[str, ...], told: str, atoll: Command, folder: Path) -> None:
    (folder / "site.toml").write_text(FILE)
    assert told in atoll(*PLAN, *options, "--out", "plan").refused()
    assert not (folder / "plan").exists()


LINKS = """from,to,up_mbps,down_mbps
anna,north,5,20
ben,north,5,20
carl,south,5,20
north,server,50,50
south,server,50,50
north,south,50,50
"""
SITES = "client,seconds_per_sample\nanna,0.01\nben,0.02\ncarl,0.01\n"
TRACE = "client,seconds,up\nanna,0,up\nben,0,up\ncarl,99,up\n"


@pytest.mark.parametrize(
    ("words", "instead", "told"),
    [
        (
            "anna,north,5",
            "anna,north,0",
            "links.csv: row 1: 'up_mbps' is '0'; it must be a finite number greater than 0",
        ),
        ("ben,north,5", "ben,north,", "links.csv: row 2: has neither of 'up_mbps' and 'up_seconds'"),
        ("anna,0.01", "anna,0", "sites.csv: row 1: 'seconds_per_sample' is '0'"),
        ("carl,south,5,20\n", "", "links.csv: client 'carl' has no link to an aggregator"),
        ("ben,north", "bne,north", "links.csv: client 'ben' has no link to an aggregator"),
        ("ben,north,5,20\n", "ben,north,5,20\nbne,south,5,20\n", "links.csv: row 3: unknown id 'bne'"),
        ("ben,0,up", "bne,0,up", "trace.csv: row 2: unknown client 'bne'"),
        ("south,server,50,50\nnorth,south,50,50\n", "", "aggregator 'south' has no path to 'server'"),
        ("carl,99", "carl,9", "trace.csv': ends at 9 s, but plans are for 60 s; set --seconds 9"),
    ],
)
def test_files_that_make_no_plan(words: str, instead: str, told: str, atoll: Command, folder: Path) -> None:
    assert sum(text.count(words) for text in (LINKS, SITES, TRACE)) == 1
    for name, text in (("links.csv", LINKS), ("sites.csv", SITES), ("trace.csv", TRACE)):
        (folder / name).write_text(text.replace(words, instead))
    small = FILE.replace("clients = 10", "clients = 3").replace("clusters = 4", "clusters = 2")
    network = 'clients_file = "sites.csv"\nfile = "links.csv"\n[faults]\navailability_file = "trace.csv"'
    (folder / "site.toml").write_text(small.replace("seconds_per_sample = [0.01, 0.03]\nbandwidth_hz = 3e5", network))
    over = ("--over", "method.pattern=censyn,cenasy")
    assert told in atoll(*PLAN, *over, "--out", "plan").refused()
    assert not (folder / "plan").exists()


def write_site(folder: Path, **words: str) -> None:
    """Write an experiment of three clients and the files of its network, each with these words in place of others."""
    for name, text in (("links.csv", LINKS), ("sites.csv", SITES)):
        for word, instead in words.items():
            text = text.replace(word, instead)
        (folder / name).write_text(text)
    small = FILE.replace("clients = 10", "clients = 3").replace("clusters = 4", "clusters = 2")
    files = 'clients_file = "sites.csv"\nfile = "links.csv"'
    (folder / "site.toml").write_text(small.replace("seconds_per_sample = [0.01, 0.03]\nbandwidth_hz = 3e5", files))


def test_patterns_that_the_network_does_not_allow_are_told_unasked(atoll: Command, folder: Path) -> None:
    write_site(folder, server="dc-paris")
    done = atoll(*PLAN, "--over", "method.pattern=censyn,cenasy,decsyn", "--no-race")
    assert "4 cannot be carried out: network.file: links.csv: no aggregator's link leads to 'server'" in done.err
    assert done.code == 0


def test_a_fault_of_a_file_is_told_once(atoll: Command, folder: Path) -> None:
    write_site(folder, seconds_per_sample="seconds_per_picture")
    refused = atoll(*PLAN, "--no-race").refused()
    told = "network.clients_file: sites.csv: row 1: unknown column 'seconds_per_picture'; allowed are "
    assert refused.startswith(told)


@pytest.mark.more
def test_one_run_is_planned(atoll: Command) -> None:
    assert "atoll plan: the experiment has 12 runs (CenSyn, ComAw; " in atoll("plan", "feduc-digits").refused()
