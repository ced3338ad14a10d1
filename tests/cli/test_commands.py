"""Every command and option: what they print, in text and in JSON, and what they write."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from atoll.cli import app
from atoll.cli.common import option_words
from tests.cli.conftest import TINY, Command
from tests.cli.pages import ROOT

OPTIONS = {
    "benchmark": [
        "[SUITE]...",
        *("--methods", "--budget", "--updates", "--trials", "--seeds", "--scale", "--out", "--results", "--run"),
        *("--jobs", "--json", "--quiet"),
    ],
    "cluster": ["EXPERIMENT", "--set", "--scale", "--only", "--json", "--plot", "--width", "--ids"],
    "new": ["DIR"],
    "export": ["RUN", "--format", "--out", "--cluster", "--json"],
    "plan": [
        *("EXPERIMENT", "--seconds", "--bytes", "--target", "--over", "--set", "--scale", "--only", "--metric"),
        *("--seeds", "--from", "--race", "--out", "--resume", "--json", "--quiet", "--verbose"),
    ],
    "report": [
        *("DIR...", "--out", "--html", "--target", "--stable", "--width", "--overlay", "--against"),
        *("--baseline", "--band", "--json", "--csv", "--parquet"),
    ],
    "reproduce": [
        "PAPER|FIGURE",
        "--scale",
        "--seeds",
        "--out",
        "--evidence",
        "--run",
        "--only",
        "--jobs",
        "--device",
        "--json",
        "--quiet",
        "--verbose",
    ],
    "run": [
        *("EXPERIMENT", "--set", "--scale", "--only", "--out", "--resume", "--overwrite", "--schedule", "--json"),
        *("--quiet", "--verbose"),
    ],
    "settings": ["[SECTION|CHOICE]", "--json"],
    "schedule": ["EXPERIMENT", "--set", "--scale", "--only", "--json", "--plot", "--width", "--privacy"],
    "sweep": [
        "EXPERIMENT",
        "--over",
        "--set",
        "--scale",
        "--only",
        "--jobs",
        "--out",
        "--metric",
        "--target",
        "--resume",
        "--part",
        "--tune",
        "--trials",
        "--json",
        "--quiet",
        "--verbose",
    ],
    "verify": ["[DIR]", "--json"],
    "watch": ["DIR...", "--port", "--host", "--browser", "--target", "--overlay"],
    "data": [],
    "data list": ["--root", "--json"],
    "data fetch": ["NAME", "--root"],
    "data split": ["EXPERIMENT", "--out", "--set", "--scale", "--only"],
    "data inspect": ["EXPERIMENT", "--set", "--scale", "--only", "--json", "--plot", "--width", "--write"],
    "fleet": [],
    "fleet init": ["--nodes", "--host", "[DIR]", "--listen", "--port", "--days", "--max-mib"],
    "fleet renew": ["--config", "--days"],
    "fleet revoke": ["NODE", "--config"],
    "fleet rotate": ["NODE", "--config"],
    "fleet up": ["EXPERIMENT", "--nodes", "--set", "--scale", "--only", "--out", "--resume", "--overwrite"],
    "fleet server": [
        "EXPERIMENT",
        "--config",
        "--set",
        "--scale",
        "--only",
        "--out",
        "--resume",
        "--overwrite",
        "--metrics",
    ],
    "fleet node": [
        "EXPERIMENT",
        "--config",
        "--data",
        "--client",
        "--set",
        "--scale",
        "--only",
        "--class-counts",
        "--epsilon",
        "--utc-offset",
        "--slot",
    ],
    "fleet status": ["--config", "--out", "--watch", "--json"],
    "recipes": ["--json"],
    "recipes show": ["NAME"],
}


def parameters(command: Any) -> list[str]:
    """Return a command's arguments and options by the names that a user types."""
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    return [p.opts[0] if p.param_type_name == "option" else p.metavar or p.name.upper() for p in shown]


def test_commands_and_options_are_frozen() -> None:
    """Scripts depend on these names: taking one away, or renaming it, needs an entry in the changelog."""
    found = {}

    def walk(name: str, command: Any) -> None:
        if name:
            found[name] = parameters(command)
        for below, inner in getattr(command, "commands", {}).items():
            walk(f"{name} {below}".strip(), inner)

    walk("", typer.main.get_command(app))
    assert found == OPTIONS


@pytest.mark.parametrize("command", ["", *OPTIONS])
def test_help_has_an_example(atoll: Command, command: str) -> None:
    printed = atoll(*command.split(), "--help").succeeded()
    assert "Example: atoll " in printed
    for option in OPTIONS.get(command, []):
        assert option in printed


def test_without_a_command_help_is_shown(process: Command, atoll: Command) -> None:
    assert "Example: atoll run quickstart" in process().succeeded()
    assert "Example: atoll data list" in atoll("data").succeeded()


def test_run(process: Command, folder: Path) -> None:
    done = process("run", "tiny.toml", "--set", "local.lr=0.01")
    assert "tiny" in done.succeeded()
    assert done.out.endswith("Results: runs/tiny\n")
    assert done.err == ""
    run = folder / "runs" / "tiny"
    assert tomllib.loads((run / "config.toml").read_text())["local"]["lr"] == 0.01
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["event"] for row in rows] == [0, 2, 4]
    assert [row["round"] for row in rows] == [0, 1, 2]
    least = "event round virtual_time wall_time train_loss test_loss test_accuracy client_updates bytes_up bytes_down"
    assert set(least.split()) <= set(rows[0])
    assert json.loads((run / "summary.json").read_bytes())["final"] | {"crc32": rows[-1]["crc32"]} == rows[-1]
    assert json.loads((run / "environment.json").read_bytes())["seed"] == 0


def test_run_as_json(atoll: Command) -> None:
    done = atoll("run", "tiny.toml", "--json")
    (row,) = json.loads(done.succeeded())
    assert row["label"] == "tiny"
    assert done.err == ""


def test_resolved_settings_give_the_same_run(atoll: Command, folder: Path) -> None:
    atoll("run", "tiny.toml", "--out", "a").succeeded()
    atoll("run", "a/config.toml", "--out", "b").succeeded()
    assert (folder / "a/config.toml").read_text() == (folder / "b/config.toml").read_text()


@pytest.mark.more
def test_run_of_several(atoll: Command, folder: Path) -> None:
    text = TINY + "\n[[runs]]\nlabel = 'a, 1'\npanel = 'left'\n[[runs]]\nlabel = '../b'\nmethod.name = 'fedavg'\n"
    (folder / "two.toml").write_text(text)
    printed = atoll("run", "two.toml", "--out", "both").succeeded()
    assert "Figures and table: both/report\nResults: both\n" in printed
    assert json.loads((folder / "both/experiment.json").read_bytes()) == {"runs": ["left-a-1", "b"]}
    assert sorted(path.name for path in (folder / "both").iterdir()) == ["b", "experiment.json", "left-a-1", "report"]
    assert (folder / "both/report/curves-round.png").is_file()
    assert "--resume" in atoll("run", "two.toml", "--out", "both").refused()
    atoll("run", "two.toml", "--out", "both", "--overwrite").succeeded()
    assert len(json.loads(atoll("report", "both", "--json").succeeded())) == 2


def test_recipes(atoll: Command) -> None:
    rows = json.loads(atoll("recipes", "--json").succeeded())
    names = [row["name"] for row in rows]
    assert {"quickstart", "fedcluster-mnist"} <= set(names)
    printed = atoll("recipes").succeeded()
    for name in names:
        assert name in printed
        assert tomllib.loads(atoll("recipes", "show", name).succeeded())["name"] == name


def test_cluster(atoll: Command, folder: Path) -> None:
    (made,) = json.loads(atoll("cluster", "tiny.toml", "--json").succeeded())
    assert [cluster["size"] for cluster in made["clusters"]] == [3, 3]
    assert sorted(made["membership"]) == [0, 0, 0, 1, 1, 1]
    done = atoll("cluster", "tiny.toml", "--plot", "clusters.png")
    assert "EMD" in done.succeeded()
    assert "UTC hour" not in done.out
    assert "UTC hour" in atoll("cluster", "tiny.toml", "--set", "clustering.method=timezone").succeeded()
    assert done.err == "wrote clusters.png\n"
    assert (folder / "clusters.png").read_bytes().startswith(b"\x89PNG")
    atoll("cluster", "tiny.toml", "--plot", "made/in/x").succeeded()
    assert (folder / "made/in/x.png").is_file()
    assert "its folder tiny.toml cannot be made" in atoll("cluster", "tiny.toml", "--plot", "tiny.toml/x").refused()


def test_schedule(atoll: Command, folder: Path) -> None:
    (made,) = json.loads(atoll("schedule", "tiny.toml", "--json").succeeded())
    assert made["events"] == len(made["rows"]) == 4
    assert made["client_updates"] == sum(len(row["cohort"]) for row in made["rows"]) == 8
    assert made["max_updates_per_client_round"] == 1
    assert made["frequencies"] == [0.5, 0.5]
    printed = atoll("schedule", "tiny.toml", "--plot", "gantt").succeeded()
    assert "client updates" in printed
    assert (folder / "gantt.svg").is_file()
    small = atoll("schedule", "tiny.toml", "--set", "model.name=linear").succeeded()
    assert "kB up" in small
    assert " 0.0" not in small
    assert "MB up" in atoll("schedule", "quickstart", "--only", "FedAvg").succeeded()
    several = json.loads(atoll("schedule", "quickstart", "--json", "--set", "rounds=1").succeeded())
    assert [len(each["rows"]) for each in several] == [10, 1]


@pytest.mark.more
def test_report(atoll: Command, folder: Path) -> None:
    atoll("run", "tiny.toml", "--out", "a").succeeded()
    atoll("run", "tiny.toml", "--out", "b", "--set", "label=second").succeeded()
    printed = atoll("report", "a", "b", "--out", "both", "--target", "0.05").succeeded()
    assert "second" in printed
    assert "both/table.json" in printed
    assert [row["label"] for row in json.loads(atoll("report", "a", "b", "--json").succeeded())] == ["tiny", "second"]
    assert (folder / "a" / "report" / "table.md").is_file()
    written = atoll("report", "a", "b", "--csv", "out/all.csv", "--parquet", "all.parquet").succeeded()
    assert "out/all.csv" in written
    assert "report/table.md" not in written
    assert (folder / "out/all.csv").read_text().startswith("run,panel,folder,")
    assert "does not exist" in atoll("report", "nowhere").refused()
    assert "is a file" in atoll("report", "a", "--out", "tiny.toml").refused()
    assert (
        "must be a folder; for one file, give --html page.html" in atoll("report", "a", "--out", "page.html").refused()
    )
    for words in ("report a --out", "reproduce quickstart --out", "data split tiny.toml --out"):
        assert "is a file, or lies below one" in atoll(*words.split(), "tiny.toml/below").refused()


def test_data(atoll: Command, folder: Path) -> None:
    (folder / "empty").mkdir()
    assert json.loads(atoll("data", "list", "--root", "empty", "--json").succeeded()) == {
        "digits": "built in",
        "regression": "built in",
        "sea": "built in",
        **dict.fromkeys(("mnist", "fashion-mnist", "emnist", "cifar10", "cifar100")),
    }
    assert "atoll data fetch mnist" in atoll("data", "list", "--root", "empty").succeeded()
    assert atoll("data", "fetch", "digits").succeeded() == "digits: 1437 training and 360 test samples, built in\n"
    (made,) = json.loads(atoll("data", "inspect", "tiny.toml", "--json").succeeded())
    assert made["samples"] == [8] * 6
    assert [sum(row) for row in made["class_counts"]] == [8] * 6
    assert "share of each class" in atoll("data", "inspect", "tiny.toml", "--plot", "shares").succeeded()
    assert (folder / "shares.png").is_file()
    assert "(the first 20; --json prints all)" in atoll("data", "inspect", "quickstart").succeeded()


def test_classes_of_a_table_have_their_names(atoll: Command, folder: Path) -> None:
    rows = [f"{clinic},{age},{'ill' if clinic else 'well'}" for clinic in range(2) for age in range(8)]
    (folder / "clinics.csv").write_text("\n".join(["clinic,age,state", *rows]))
    table = ["dataset=table", "root=clinics.csv", "target=state", "client=clinic", "partition=natural", "clients=2"]
    words = [word for setting in table for word in ("--set", f"data.{setting}")]
    (folder / "clinics.toml").write_text('clustering = { method = "planted", clusters = 1 }')
    shown = atoll("cluster", "clinics.toml", *words).succeeded()
    assert re.search(r"ill \((50|100)%\)", shown)


def test_a_run_takes_a_written_partition(atoll: Command, folder: Path) -> None:
    atoll("data", "inspect", "tiny.toml", "--write", "new/held.npz").succeeded()
    taken = TINY.replace("samples = 8", 'partition = "file"\npartition_file = "new/held.npz"')
    (folder / "taken.toml").write_text(taken)
    found = []
    for name in ("tiny", "taken"):
        atoll("run", f"{name}.toml", "--out", name).succeeded()
        rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        found.append([{key: value for key, value in row.items() if key not in ("wall_time", "crc32")} for row in rows])
    assert found[0] == found[1]


def test_json_of_what_clients_hold_is_alone_on_standard_output(atoll: Command, folder: Path) -> None:
    (held,) = json.loads(atoll("data", "inspect", "tiny.toml", "--json", "--write", "held.npz").succeeded())
    assert held["clients"] == len(held["samples"])
    assert (folder / "held.npz").is_file()


@pytest.mark.more
def test_what_clients_hold_is_shown_of_each_run(atoll: Command, folder: Path) -> None:
    runs = "".join(f'[[runs]]\nlabel = "{label}"\ndata.samples = {n}\n' for label, n in (("a", 8), ("b", 8), ("c", 9)))
    (folder / "several.toml").write_text(TINY + runs)
    printed = atoll("data", "inspect", "several.toml", "--plot", "shares").succeeded()
    assert [
        line for line in printed.splitlines() if line in ("tiny, a; tiny, b", "tiny, c") or "6 clients" in line
    ] == [
        "tiny, a; tiny, b",
        "6 clients, 48 samples (8 to 8 per client) from a pool of 1437",
        "tiny, c",
        "6 clients, 54 samples (9 to 9 per client) from a pool of 1437",
    ]
    shown = json.loads(atoll("data", "inspect", "several.toml", "--json").succeeded())
    assert [(run["label"], run["samples"][0]) for run in shown] == [("a", 8), ("b", 8), ("c", 9)]


def test_scale(atoll: Command, folder: Path) -> None:
    (folder / "scaled.toml").write_text(TINY + "\n[scales.small]\nrounds = 1\n")
    sizes = [
        json.loads(atoll("schedule", "scaled.toml", "--json", *words).succeeded())[0]["rounds"]
        for words in ((), ("--scale", "paper"), ("--scale", "small"), ("--scale", "small", "--set", "rounds=3"))
    ]
    assert sizes == [2, 2, 1, 3]


def test_only_some_of_several_runs(atoll: Command, folder: Path) -> None:
    (folder / "several.toml").write_text(
        (folder / "tiny.toml").read_text()
        + '\n[[panels]]\npanel = "A"\n\n[[panels]]\npanel = "B"\n\n[[runs]]\nlabel = "one"\n\n[[runs]]\nlabel = "two"\n'
        + '\n[[runs]]\nlabel = "two, too"\n'
    )
    atoll("run", "several.toml", "--only", "B, two", "--out", "out").succeeded()
    assert [place.parent.name for place in sorted((folder / "out").rglob("summary.json"))] == ["out"]
    shown = json.loads(atoll("schedule", "several.toml", "--only", "A", "--json").succeeded())
    assert [run["panel"] + run["label"] for run in shown] == ["Aone", "Atwo", "Atwo, too"]
    sentence = atoll("run", "several.toml", "--only", "three").refused()
    titles = "A, one; A, two; A, two, too; B, one; B, two; B, two, too"
    assert sentence == f"--only three: no run has this in its panel or label; they are {titles}"
    told = atoll("run", "tiny.toml", "--only", "one").refused()
    assert told == "--only one: no run has this in its panel or label; they are empty"


def documented(command: str) -> tuple[str, set[str]]:
    """Return the form and the keys that the documentation says a command's JSON has."""
    table = (ROOT / "docs/cli.md").read_text().partition("## What `--json` prints")[2]
    row = next(line for line in table.splitlines() if line.startswith("|") and f"`{command}`" in line.split("|")[1])
    _, _, form, keys, _ = row.split("|")
    return form.split()[1], set(re.findall(r"`(\w+)`", keys.partition("(")[0] + keys.partition(")")[2]))


@pytest.mark.more
def test_what_json_prints_is_documented(atoll: Command) -> None:
    atoll("run", "tiny.toml", "--out", "a").succeeded()
    words = {
        "run": ("run", "tiny.toml", "--out", "b"),
        "report": ("report", "a"),
        "schedule": ("schedule", "tiny.toml"),
        "cluster": ("cluster", "tiny.toml"),
        "recipes": ("recipes",),
        "data inspect": ("data", "inspect", "tiny.toml"),
        "export": ("export", "a"),
        "sweep": ("sweep", "tiny.toml", "--over", "seed=0..1"),
    }
    for command, line in words.items():
        made = json.loads(atoll(*line, "--json").succeeded())
        form, keys = documented(command)
        assert form == ("list," if isinstance(made, list) else "object" if command == "sweep" else form)
        first = made[0] if isinstance(made, list) else made
        assert keys <= set(first), command
        for part in {"rows", "clusters"} & set(first):
            assert documented(part)[1] <= set(first[part][0]), part


def test_json_has_one_form_however_many_runs_there_are(atoll: Command) -> None:
    for command in ("schedule", "cluster"):
        for only in ("FedAvg", "Fed"):
            printed = atoll(command, "quickstart", "--set", "rounds=1", "--only", only, "--json").succeeded()
            assert [list(each)[:2] for each in json.loads(printed)] == [["label", "panel"]] * (1 + (only == "Fed"))


LABELLED = """
[[runs]]
label = "FedAvg [iid] :smile:"
[[runs]]
label = "A [/b] mu"
local.lr = 0.2
"""


@pytest.mark.more
def test_brackets_in_a_label_are_text(atoll: Command) -> None:
    Path("labels.toml").write_text(Path("tiny.toml").read_text() + LABELLED)
    for command in ("cluster", "schedule"):
        shown = atoll(command, "labels.toml").succeeded()
        assert {"[iid]", ":smile:", "[/b]"} <= set(shown.split())
    atoll("run", "labels.toml", "--out", "runs").succeeded()
    assert "A [/b] mu" in atoll("report", "runs", "--csv", "all.csv").succeeded()


@pytest.mark.more
def test_of_several_runs_a_warning_names_its_own(atoll: Command) -> None:
    Path("labels.toml").write_text(Path("tiny.toml").read_text() + LABELLED)
    done = atoll("run", "labels.toml", "--out", "runs", "--set", "run.executor=cores", "--set", "run.workers=99")
    done.succeeded()
    told = [line.partition("run.workers")[0] for line in done.err.splitlines() if "run.workers = 99" in line]
    assert told == ["warning: FedAvg [iid] :smile:: ", "warning: A [/b] mu: "]


def test_commands_that_are_printed_can_be_given_back(atoll: Command) -> None:
    assert option_words(("--bytes", 123456789.0), ("--target", 0.8512345)) == [
        *("--bytes", "123456789", "--target", "0.8512345")
    ]
    shown = atoll("new", "my exp's").succeeded()
    _, command = shown.split("Run it: ")
    run, test = command.strip().split("; test it: ")
    assert shlex.split(run) == ["atoll", "run", "my exp's/experiment.toml"]
    assert shlex.split(test) == ["pytest", "my exp's"]


def test_a_report_refuses_what_only_a_folder_has_and_counts_a_run_once(atoll: Command) -> None:
    atoll("run", "tiny.toml", "--out", "runs/a").succeeded()
    for option, value in (("--against", "local.lr"), ("--width", "column")):
        told = atoll("report", "runs", "--html", "page.html", option, value).refused()
        assert told == f"{option}: is for a folder's figures and tables; give --out as well"
    for options in (("--baseline", "b"), ("--band", "spread"), ("--html", "page.html", "--band", "spread")):
        told = atoll("report", "runs", "--csv", "all.csv", "--json", *options).refused()
        assert told == f"{options[-2]}: is for a folder's figures and tables; give --out as well"
    Path("runs/latest").symlink_to("a")
    done = atoll("report", "runs", "--csv", "all.csv")
    done.succeeded()
    assert "left out" not in done.err
    Path("runs/experiment.json").write_text('{"runs": ["a", "b", "c"]}')
    done = atoll("report", "runs", "runs", "--html", "page.html")
    done.succeeded()
    told = "eft out: 2 of the 3 runs have no rows yet: runs/b, runs/c"
    assert f"warning: l{told}" in " ".join(done.err.split())
    assert f"L{told}" in Path("page.html").read_text()
    shutil.copytree("runs/a", "runs/b")
    Path("runs/b/metrics.jsonl").write_text("{}]\n")
    lines = atoll("report", "runs", "runs", "--html", "page.html").err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("warning: left out: runs/b/metrics.jsonl, line 1: ")
    assert lines[1] == "warning: left out: 1 of the 3 runs have no rows yet: runs/c"


def test_a_sweep_says_that_its_runs_lack_the_metric(atoll: Command) -> None:
    done = atoll("sweep", "tiny.toml", "--over", "local.lr=0.1,0.2", "--metric", "ari", "--jobs", "1")
    assert done.err.count("its rows have no ari") == 2
