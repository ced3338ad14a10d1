"""A run's folder may be another's: what is wrong with one run is told, bounded, and no other run suffers from it."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from atoll.cli import main
from atoll.report.page import make_content
from atoll.report.page.render import render
from atoll.report.reading.runs import find_readable, read_begun
from atoll.support.files import line_as_bytes, make_folder
from tests.made_runs import make_rows, write_run
from tests.tiers import thinned

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs pipes, devices and links")

Spoil = Callable[[Path], object]


def row(**changes: object) -> str:
    return json.dumps(make_rows(2)[1] | changes) + "\n"


def replace(file: Path, other: Path) -> None:
    file.unlink()
    file.symlink_to(other)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def sparse(file: Path) -> None:
    with open(file, "wb") as content:
        content.truncate(2**40)


def flip(file: Path) -> None:
    """Write rows with checksums, and change a digit in the third."""
    lines = list(map(line_as_bytes, make_rows(5)))
    lines[2] = lines[2].replace(b'"round": 2', b'"round": 3')
    file.write_bytes(b"".join(lines))


SPOILT: dict[str, tuple[Spoil, str]] = {
    "a number of 400 digits": (
        lambda run: (run / "metrics.jsonl").write_text(row().replace("0.5", "9" * 400)),
        "metrics.jsonl, line 1: ",
    ),
    "a number of 5,000 digits": (
        lambda run: (run / "metrics.jsonl").write_text(row().replace("0.5", "9" * 5000)),
        "metrics.jsonl, line 1: ",
    ),
    "a number in a list": (lambda run: (run / "metrics.jsonl").write_text(row(confusion=[[10**400]])), "line 1: "),
    "a number that is not finite": (
        lambda run: (run / "metrics.jsonl").write_text(row(train_loss=float("nan"))),
        "line 1: ",
    ),
    "deep JSON": (lambda run: (run / "metrics.jsonl").write_text(f'{{"x": {"[" * 10**5}\n'), "nested too deeply"),
    "deep JSON that is whole": (
        lambda run: (run / "metrics.jsonl").write_text(row(confusion=0).replace("0}", "[" * 99 + "]" * 99 + "}")),
        "nested too deeply",
    ),
    "deep TOML": (lambda run: (run / "config.toml").write_text(f"x = {'[' * 10**5}"), "nested too deeply"),
    "a long key": (lambda run: (run / "config.toml").write_text(f"{'a.' * 10**5}a = 1"), "more than 32 parts"),
    "a long quoted key": (
        lambda run: (run / "config.toml").write_text('"a \\" b" . \'c\' .' * 10**4 + "a = 1"),
        "more than 32 parts",
    ),
    "a long whole number": (lambda run: (run / "config.toml").write_text(f"seed = 1{'0' * 400}"), "more than 64 bits"),
    "much TOML": (lambda run: (run / "config.toml").write_text("#" * 2**21), "is longer than 1 MiB"),
    "many columns": (
        lambda run: (run / "metrics.jsonl").write_text("".join(row(**{f"x{i}": 1}) for i in range(300))),
        "at most 256 columns",
    ),
    "rows without end": (lambda run: sparse(run / "metrics.jsonl"), "is longer than 256 MiB"),
    "a device": (lambda run: replace(run / "metrics.jsonl", Path("/dev/zero")), "leads out of its folder"),
    "a link out": (lambda run: replace(run / "metrics.jsonl", run.parent / "good/metrics.jsonl"), "leads out of its"),
    "a link to itself": (lambda run: replace(run / "metrics.jsonl", run / "metrics.jsonl"), "cannot be read"),
    "a pipe": (lambda run: pipe(run / "metrics.jsonl"), "is not a regular file"),
    "a folder": (lambda run: folder(run / "metrics.jsonl"), "Is a directory"),
    "a digit that changed": (lambda run: flip(run / "metrics.jsonl"), "line 3: its checksum does not match"),
}


@pytest.mark.parametrize(("spoil", "told"), SPOILT.values(), ids=SPOILT)
def test_a_spoilt_run_is_named_and_left_out(spoil: Spoil, told: str, tmp_path: Path) -> None:
    write_run(tmp_path / "good", make_rows(5))
    spoil(write_run(tmp_path / "spoilt", make_rows(5)))
    began = time.monotonic()
    for runs, faults in (find_readable([tmp_path]), read_begun([tmp_path])):
        assert [run.label for run in runs] == ["good"]
        assert len(faults) == 1
        assert "spoilt" in faults[0]
        assert told in faults[0]
        assert len(faults[0]) < 600
    assert time.monotonic() - began < 5


def npz(**arrays: object) -> bytes:
    content = BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


SHOWN: dict[str, Spoil] = {
    "broken mathtext": lambda run: write_run(run, make_rows(5), label=r"$\frac{", panel=r"$\nope$", name="$x^"),
    "control characters": lambda run: write_run(run, make_rows(5), label="a\x1b]0;b\x07\x00\u202ec", name="\x01"),
    "a long label": lambda run: write_run(run, make_rows(5), label="x" * 10**5),
    "a column that leads elsewhere": lambda run: write_run(run, make_rows(5, **{"../../x": 1.0, "$\\frac{": 1.0})),
    "huge numbers": lambda run: write_run(run, make_rows(5, train_loss=1e308, virtual_time=1e300, mine=-1e308)),
    "tiny numbers": lambda run: write_run(run, make_rows(5, train_loss=5e-324, test_loss=-1e308, wall_time=-1e9)),
    "whole numbers of 63 bits": lambda run: write_run(run, make_rows(5, bytes_up=2**63 - 1, confusion=[[2**31 - 1]])),
    "changing confusion": lambda run: write_run(
        run, [*make_rows(5, confusion=[[1, 2]]), *make_rows(6, confusion=[[3]])[5:]]
    ),
    "ragged confusion": lambda run: write_run(run, make_rows(5, confusion=[[1, 2], [3]], cluster_accuracy=["x"])),
    "deep lists": lambda run: write_run(run, make_rows(5, cluster_accuracy=[[[1]]], confusion=[[[1]]])),
    "numbers of clients": lambda run: (run / "clients.json").write_text('{"a": {"values": [1e308, 1]}, "b": [1]}'),
    "deep numbers of clients": lambda run: (run / "clients.json").write_text(f'{{"a": {"[" * 10**5}'),
    "a device of clients": lambda run: (run / "clients.json").symlink_to("/dev/zero"),
    "a schedule without end": lambda run: (run / "schedule.npz").write_bytes(
        npz(active_offsets=np.array([0, 2**40]), active=np.array([0]), began=np.array([0.0]), seconds=np.array([1.0]))
    ),
    "a schedule of texts": lambda run: (run / "schedule.npz").write_bytes(
        npz(active_offsets=np.array([0, 1]), active=np.array(["a"]), began=np.array([0.0]), seconds=np.array([1.0]))
    ),
    "a schedule of a device": lambda run: (run / "schedule.npz").symlink_to("/dev/zero"),
    "an order of elsewhere": lambda run: (run.parent / "experiment.json").write_text('{"runs": ["../x", "good"]}'),
}


@pytest.mark.parametrize("spoil", thinned(SHOWN.values(), 1), ids=SHOWN)
def test_whatever_a_run_says_reports_are_made(spoil: Spoil, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminal, tables, figures and page; and nothing is written elsewhere."""
    write_run(tmp_path / "runs/good", make_rows(5))
    spoil(write_run(tmp_path / "runs/spoilt", make_rows(5)))
    before = set(tmp_path.rglob("*"))
    places = ["--out", str(tmp_path / "out"), "--html", str(tmp_path / "a.html")]
    assert main(["report", str(tmp_path / "runs"), *places]) == 0
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert not {"\x1b", "\x07", "\u202e"} & set(told.out)
    new = set(tmp_path.rglob("*")) - before - {tmp_path / "out", tmp_path / "a.html"}
    assert {path.parent for path in new} == {tmp_path / "out"}
    render(make_content(*read_begun([tmp_path / "runs"])[:1], live=True))


MANY: dict[str, Callable[[Path], object]] = {
    "runs": lambda place: [write_run(place / f"r{i}", make_rows(20)) for i in range(300)],
    "seeds": lambda place: [
        write_run(place / f"r{i}", make_rows(100), label=f"m{i % 20}", seed=i // 20) for i in range(200)
    ],
    "panels": lambda place: [write_run(place / f"r{i}", make_rows(50), panel=f"p{i}") for i in range(100)],
    "rows": lambda place: write_run(place / "r", make_rows(50_000)),
    "columns together": lambda place: [
        write_run(place / f"r{i}", make_rows(20, **{f"c{i}_{j}": 1.0 for j in range(40)})) for i in range(100)
    ],
    "numbers of clusters": lambda place: write_run(place / "r", make_rows(100, cluster_accuracy=[0.5] * 5000)),
    "numbers of clients": lambda place: (write_run(place / "r", make_rows(20)) / "clients.json").write_text(
        json.dumps({"event": 1, "round": 1, "mine": {"clients": [*range(300_000)], "values": [0.5] * 300_000}})
    ),
    "events": lambda place: (write_run(place / "r", make_rows(20)) / "schedule.npz").write_bytes(
        npz(
            active_offsets=np.arange(10**6 + 1),
            active=np.zeros(10**6, int),
            began=np.zeros(10**6),
            seconds=np.ones(10**6),
        )
    ),
    "settings": lambda place: [
        write_run(place / f"r{i}", make_rows(20), label="same", local={f"k{j}": i for j in range(200)})
        for i in range(30)
    ],
    "folders": lambda place: [
        *map(make_folder, (place / f"d{i}" for i in range(5000))),
        write_run(place / "r", make_rows(5)),
    ],
}


@pytest.mark.more
@pytest.mark.parametrize("make", MANY.values(), ids=MANY)
def test_however_much_there_is_pages_and_tables_answer_in_five_seconds(
    make: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the processor's time, since others share the machine; the table in the terminal is cut, and says so."""
    (tmp_path / "runs").mkdir()
    make(tmp_path / "runs")
    began = time.process_time()
    assert main(["report", str(tmp_path / "runs"), "--html", str(tmp_path / "a.html")]) == 0
    reported = time.process_time()
    render(make_content(*read_begun([tmp_path / "runs"])[:1], live=True))
    assert max(reported - began, time.process_time() - reported) < 5
    assert ("There is more: --out and --json have all of it." in capsys.readouterr().out) == (
        make is MANY["columns together"]
    )


ELSEWHERE: list[dict[str, dict[str, object]]] = [
    {"data": {"clients_file": "/dev/zero"}},
    {"data": {"clients_file": "PIPE"}},
    {"data": {"clients_file": "secret.csv"}},
    {"data": {"dataset": "folder", "root": "/", "partition": "natural"}},
    {"data": {"dataset": "table", "root": "secret.csv", "target": "a", "client": "b", "partition": "natural"}},
    {"network": {"clients_file": "/dev/zero.csv"}, "clustering": {"method": "comaw"}},
    {"network": {"trace_file": "secret.csv"}, "clustering": {"method": "comaw"}},
    {"network": {"topology": "edges", "edges": "secret.csv"}, "clustering": {"method": "comaw"}},
    {"network": {"file": "secret.csv"}, "clustering": {"method": "comaw"}},
    {"clustering": {"method": "feduc", "time_limit": "secret.csv"}},
    {"data": {"dataset": "packaged", "table": "chem97", "tokenizer": "secret.csv"}},
    {"data": {"clients": 20_000, "samples": 10**9}},
    {"data": {"dataset": "regression", "partition": "planted", "samples": 10**9}},
    {"data": {"dataset": "regression", "partition": "planted", "width": 10**9}},
    {"clustering": {"clusters": 10**9}},
]


@pytest.mark.more
def test_what_settings_name_is_neither_read_nor_made_at_any_size(tmp_path: Path) -> None:
    """A page draws a run's clusters and data again from its settings: in bounded memory and time, or not at all."""
    write_run(tmp_path / "good", make_rows(5))
    (tmp_path / "secret.csv").write_text("password,hunter2\n")
    os.mkfifo(tmp_path / "pipe")
    for number, sections in enumerate(ELSEWHERE):
        places = {"PIPE": str(tmp_path / "pipe"), "secret.csv": str(tmp_path / "secret.csv")}
        own = {name: {key: places.get(str(v), v) for key, v in held.items()} for name, held in sections.items()}
        write_run(tmp_path / f"run-{number}", make_rows(5), **{"data": {"dataset": "digits"}, **own})  # type: ignore[arg-type]
    script = "import sys; from atoll.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "report", str(tmp_path), "--html", str(tmp_path / "page.html")]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (2 * 2**30, 2 * 2**30))

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=limit, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "hunter2" not in page
    found = re.findall(r"not drawn: ([^\"]*)", page)
    assert len(found) == len(ELSEWHERE)
    assert all("names files" in each or "is too large for a page" in each for each in found), found
