"""`atoll watch`: it answers only for its own page, reads what is there, and lets the reader's choices stand."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.report.page_server import Watch, make_server
from atoll.report.reading.runs import read_begun
from tests.cli.conftest import Command
from tests.cli.test_page import browser, until  # noqa: F401  (the first is a fixture)
from tests.made_runs import make_rows, write_run


class Served:
    """A watch that is served by a thread, and requests to it."""

    def __init__(self, folder: Path) -> None:
        self.watch = Watch([folder])
        self.server = make_server(self.watch, "127.0.0.1", 0)
        self.port = self.server.server_port

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        try:
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()

    def state(self) -> Any:
        status, _, body = self.ask("/state")
        assert status == 200
        return json.loads(body)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "runs").mkdir()
    served = Served(tmp_path / "runs")
    thread = Thread(target=served.server.serve_forever, args=[0.05])
    thread.start()
    yield served
    served.server.shutdown()
    thread.join()
    served.server.server_close()


def settled(served: Served, summary: str) -> Any:
    """Wait until the page says so: the watch rests between readings."""
    deadline = time.monotonic() + 90  # it rests up to 60 s where reading takes long, as on a busy machine
    while (state := served.state())["summary"] != summary:
        assert time.monotonic() < deadline, state["summary"]
        time.sleep(0.05)
    return state


def test_it_waits_then_shows_runs_as_they_come_and_end(served: Served, tmp_path: Path) -> None:
    assert "Waiting for the first row" in served.state()["sections"]["results-body"]
    rows = make_rows(20)
    run = write_run(tmp_path / "runs/a", [], finished=False)
    assert served.state()["summary"] == "No run has any rows yet."
    (run / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:40])  # half-written
    state = settled(served, "1 run, 1 not finished.")
    assert "at round 0 of 20" in state["sections"]["results-body"]
    write_run(tmp_path / "runs/a", rows)
    write_run(tmp_path / "runs/b", make_rows(3))
    assert settled(served, "2 runs, all finished.")["data"]["curves"]["labels"] == ["a", "b"]


def test_panels_are_overlaid_on_demand(tmp_path: Path) -> None:
    for name in "ab":
        write_run(tmp_path / name, make_rows(3), panel=f"panel {name}", label="run")
    apart, together = (
        json.loads(Watch([tmp_path], overlay=overlay).now().body)["data"]["curves"] for overlay in (False, True)
    )
    assert [panel["title"] for panel in apart["panels"]] == ["panel a", "panel b"]
    assert len(together["panels"]) == 1
    assert together["labels"] == ["panel a, run", "panel b, run"]


def test_an_unchanged_page_is_not_sent_again(served: Served, tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", make_rows(5))
    _, headers, _ = served.ask("/state")
    assert served.ask("/state", If_None_Match=headers["ETag"])[::2] == (304, b"")
    status, headers, body = served.ask("/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) == len(served.ask("/")[2])


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    write_run(tmp_path / "good", make_rows(5))
    write_run(tmp_path / "early", [])
    broken = write_run(tmp_path / "broken", make_rows(5))
    (broken / "metrics.jsonl").write_text('{"event"\n' + (broken / "metrics.jsonl").read_text())
    (write_run(tmp_path / "odd", make_rows(5)) / "config.toml").write_text("no toml")
    runs, notices = read_begun([tmp_path])
    assert [run.label for run in runs] == ["good"]
    assert "broken/metrics.jsonl, line 1: the line is incomplete or not JSON" in notices[0]
    assert "odd/config.toml is not valid TOML" in notices[1]


@pytest.mark.parametrize("path", ["/x", "/../a", "//etc/passwd", "/state/", "/?x", "/state?x", "/config.toml", "*"])
def test_it_serves_no_other_path(served: Served, path: str) -> None:
    assert served.ask(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_takes_no_other_method(served: Served, method: str) -> None:
    assert served.ask("/state", method)[0] == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8377", 200),
        ("localhost", 200),
        ("localhost:1", 200),
        ("[::1]:8377", 200),
        ("[::1]", 200),
        ("192.168.0.7:80", 200),
        ("evil.example:8377", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
def test_names_of_others_are_refused(served: Served, host: str, status: int) -> None:
    assert served.ask("/state", Host=host)[0] == status
    assert served.ask("/", "HEAD", Host=host)[0] == status


def test_it_rests_ten_times_as_long_as_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a", make_rows(5))
    clock = iter([0.0, 3.0, 32.0, 34.0, 35.0])
    monkeypatch.setattr("atoll.report.page_server.time", SimpleNamespace(monotonic=lambda: next(clock)))
    watch = Watch([tmp_path])
    first = watch.now()  # from second 0 to 3
    write_run(tmp_path / "b", make_rows(5))
    assert watch.now() is first  # at second 32
    assert watch.now().tag != first.tag  # at second 34


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tiny.toml"], "tiny.toml is a file, or lies below one (tiny.toml); give the path of a folder"),
        ([".", "--target", "0"], "--target 0: must be greater than 0 and at most 1"),
        (
            [".", "--port", "0", "--host", "no.such.host.invalid"],
            "--host no.such.host.invalid: is not an address of this machine",
        ),
    ],
)
def test_bad_input_is_one_sentence(atoll: Command, words: list[str], told: str) -> None:
    assert atoll("watch", "--no-browser", *words).refused() == told


def test_a_port_in_use_is_one_sentence(atoll: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = atoll("watch", ".", "--no-browser", "--port", port).refused()
    assert (
        told == f"--port {port}: cannot listen on 127.0.0.1 (address already in use); give another port, or 0 for any"
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "atoll", "watch", str(tmp_path), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = re.fullmatch(r"Watching at (http://127.0.0.1:\d+/?).*\n", process.stdout.readline())
        assert address
        with urllib.request.urlopen(address[1], timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(number)
        assert process.wait(20) == code
        assert process.stderr.read() == "stopped watching; the runs go on\n"


@pytest.mark.slow
def test_new_rows_leave_the_readers_choices_alone(browser: Any, served: Served, tmp_path: Path) -> None:  # noqa: F811
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.goto(f"http://127.0.0.1:{served.port}/")
    assert page.locator("#results-body").inner_text().startswith("Waiting")
    assert not page.locator("#curves").is_visible()
    for name, rate in (("a", 5.0), ("b", 9.0)):
        write_run(tmp_path / "runs" / name, make_rows(5, rate), finished=False)
    page.locator("#charts path.curve").nth(1).wait_for(state="attached", timeout=20_000)

    page.locator("#x").select_option(label="Client updates")
    page.locator("#y1").select_option(label="Test loss")
    page.locator("#legend button").first.click()
    page.get_by_label("show settings that do not differ").check()
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    plot = "document.querySelector('#charts .plot')"
    until(page, f"{plot}.querySelectorAll('path.curve').length", 1)
    left, top, width, height = page.locator("#charts .plot").first.bounding_box().values()
    page.mouse.move(left + 0.3 * width, top + 0.3 * height)
    page.mouse.down()
    page.mouse.move(left + 0.7 * width, top + 0.7 * height, steps=4)
    page.mouse.up()
    domain = f"{plot}.querySelector('svg').dataset.x"
    zoomed = page.evaluate(domain)
    low, high = map(float, zoomed.split())
    assert 0 < high - low < 300  # of 400 client updates

    for name, rate in (("a", 5.0), ("b", 9.0), ("c", 3.0)):
        write_run(tmp_path / "runs" / name, make_rows(15, rate))
    until(page, "document.querySelectorAll('#legend button').length", 3)
    curves = f"[...{plot}.querySelectorAll('path.curve')]"
    until(page, f"{curves}[0].getAttribute('d').split(/[ML]/).length - 1", 15)
    assert page.evaluate(f"{curves}.map(curve => curve.dataset.name)") == ["b", "c"]
    assert page.evaluate(domain) == zoomed
    assert page.locator("#x").input_value() == "client_updates"
    assert page.locator("#y1").input_value() == "test_loss"
    assert page.get_by_label("show settings that do not differ").is_checked()
    assert page.get_by_role("status").inner_text() == "3 runs, all finished."
    context.close()
    assert told == []


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    watch = Watch([tmp_path / "later"])
    empty = watch.now()
    write_run(tmp_path / "later" / "a", make_rows(3))
    watch._rests_until = 0.0
    assert watch.now().tag != empty.tag
    assert b"1 run" in watch.now().body
