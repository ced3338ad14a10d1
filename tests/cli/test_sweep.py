"""`atoll sweep`, as a user would call them."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.cli import sweep_action
from atoll.report.reading.runs import find_runs, read_run
from atoll.sweep.sweep_folder import read_note, write_note
from tests.cli.conftest import Command, Done
from tests.cli.pages import ROOT, write_files

GRID = ("sweep", "tiny.toml", "--over", "local.lr=0.1,0.2")


def untimed(folder: Path) -> list[dict[str, Any]]:
    return [
        {**json.loads(line), "wall_time": None, "crc32": None}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.more
def test_a_grid_over_seeds(atoll: Command, folder: Path) -> None:
    printed = atoll(*GRID, "--over", "seed=0..1", "--jobs", 2, "--out", "s").succeeded()
    assert "2 of 2" in printed
    assert printed.endswith("Results: s\nFigures and tables: atoll report s --out s/report\n")
    names = [f"lr={lr},seed={seed}" for lr in ("0.1", "0.2") for seed in (0, 1)]
    assert sorted(path.name for path in (folder / "s").iterdir()) == sorted(
        [*names, "experiment.json", "sweep.json", "table.csv", "table.md"]
    )
    assert list(json.loads((folder / "s/sweep.json").read_bytes())["runs"]) == names
    rows = list(csv.DictReader((folder / "s/table.csv").read_text().splitlines()))
    assert [row["local.lr"] for row in rows] == ["0.1", "0.2"]
    finals = [read_run(folder / "s" / name).rows["test_accuracy"][-1] for name in names[:2]]
    assert float(rows[0]["last_mean"]) == pytest.approx(sum(finals) / 2)
    # each run is that of `atoll run`
    atoll("run", "tiny.toml", "--set", "local.lr=0.2", "--set", "seed=1", "--out", "alone").succeeded()
    assert untimed(folder / "s/lr=0.2,seed=1") == untimed(folder / "alone")
    # the other commands take the folder as that of an experiment
    assert len(json.loads(atoll("report", "s", "--json").succeeded())) == 4
    # the command that is printed as the best runs, also where the sweep lies in a run's usual folder
    (best,) = [line for line in printed.splitlines() if line.startswith("Best: atoll ")]
    atoll(*best.split()[2:]).succeeded()
    (best,) = [line for line in atoll(*GRID).succeeded().splitlines() if line.startswith("Best: atoll ")]
    atoll(*best.split()[2:]).succeeded()


def test_a_finished_sweep_is_not_run_again_and_may_grow(atoll: Command, folder: Path) -> None:
    atoll(*GRID, "--out", "s").succeeded()
    before = (folder / "s/lr=0.1/metrics.jsonl").stat().st_mtime_ns
    done = atoll("sweep", "tiny.toml", "--over", "local.lr=0.1,0.2,0.3", "--out", "s", "--resume", "--json")
    found = json.loads(done.succeeded())
    assert [line["local.lr"] for line in found["settings"]] == [0.1, 0.2, 0.3]
    assert [line["finished"] for line in found["settings"]] == [1, 1, 1]
    assert found["failed"] == {}
    assert found["best"].startswith("atoll run tiny.toml --set local.lr=")
    assert done.err == ""
    assert (folder / "s/lr=0.1/metrics.jsonl").stat().st_mtime_ns == before


TUNED = ("--over", "local.lr=0.1..1", "--tune", "--metric", "test_loss", "--trials")


@pytest.mark.parametrize(("few", "more"), [(("--over", "seed=0"), ("--over", "seed=0,1")), ((*TUNED, 1), (*TUNED, 2))])
def test_a_sweep_does_not_go_on_with_other_data(atoll: Command, folder: Path, few: Any, more: Any) -> None:
    own = ("--set", "data.dataset=table", "--set", "data.root=own.csv", "--set", "data.target=y", "--set", "rounds=1")
    rows = "".join(f"{x},{x % 3}\n" for x in range(60))
    (folder / "own.csv").write_text("x,y\n" + rows)
    atoll("sweep", "tiny.toml", *own, *few, "--out", "s").succeeded()
    (folder / "own.csv").write_text("x,y\n" + rows.replace("2\n", "1\n"))
    told = atoll("sweep", "tiny.toml", *own, *more, "--out", "s", "--resume").refused()
    assert re.fullmatch(
        r"--resume: data.root/own.csv \(own.csv\) has changed since s/\S+ was started; undo that, or .*", told
    )
    atoll("sweep", "tiny.toml", *own, *few, "--out", "s", "--resume").succeeded()  # which shows what is there
    (folder / "own.csv").write_text("x,y\n" + rows)
    atoll("sweep", "tiny.toml", *own, *more, "--out", "s", "--resume").succeeded()


@pytest.mark.more
def test_runs_that_another_condition_stopped_go_on(atoll: Command, folder: Path) -> None:
    atoll(*GRID, "--out", "s", "--set", "run.stop_at=test_accuracy >= 0").succeeded()
    atoll(*GRID, "--out", "s", "--resume").succeeded()
    atoll(*GRID, "--out", "whole").succeeded()
    for name in ("lr=0.1", "lr=0.2"):
        assert untimed(folder / "s" / name) == untimed(folder / "whole" / name)
    assert (folder / "s/table.csv").read_text() == (folder / "whole/table.csv").read_text()


def test_a_failing_run_is_told_at_the_end(atoll: Command, folder: Path) -> None:
    done = atoll("sweep", "tiny.toml", "--over", "local.lr=1e30,0.1", "--out", "s")
    assert done.code == 1
    assert "1e+30" in done.out
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: lr=1e30: ")
    assert "not finite" in line
    assert (folder / "s/lr=0.1/summary.json").is_file()
    rows = list(csv.DictReader((folder / "s/table.csv").read_text().splitlines()))
    assert [row["finished"] for row in rows] == ["0", "1"]
    assert [row["is_best_last"] for row in rows] == ["False", "True"]


def interrupt(words: list[str], folder: Path, begun: Path) -> Done:
    """Call the command line and press Ctrl-C, which reaches all its processes, once a run has made some rows."""
    command = [sys.executable, "-m", "atoll", *words]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for _ in range(1200):
        if begun.is_file() and begun.read_bytes().count(b"\n") > 3:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    told = process.communicate(timeout=120)
    return Done(process.returncode, *told)


@pytest.mark.parametrize("given", [(), ("--metric", "test_loss"), ("--tune",), ("--tune", "--trials", "3")])
def test_the_command_to_resume_has_the_options_that_were_given(
    given: tuple[str, ...], atoll: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for carry_out in ("run_all", "search"):
        monkeypatch.setattr(sweep_action, carry_out, lambda *_: SimpleNamespace(exit_code=130))
    line = atoll("sweep", "tiny.toml", "--over", "seed=0..1", *given, "--out", "s").err.splitlines()[-1]
    assert line.partition("resume: ")[2].split() == (
        ["atoll", "sweep", "tiny.toml", "--over", "seed=0..1", "--out", "s", *given, "--resume"]
    )


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_by_the_command_that_it_prints(atoll: Command, folder: Path) -> None:
    words = ["sweep", "tiny.toml", "--set", "rounds=300", "--over", "seed=0..2", "--jobs", "2", "--out", "s"]
    done = interrupt(words, folder, folder / "s/seed=0/metrics.jsonl")
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
    line = done.err.splitlines()[-1]
    assert line.startswith("interrupted; to resume: atoll sweep tiny.toml --set rounds=300")
    assert not (folder / "s/seed=0/summary.json").exists()
    assert list((folder / "s/seed=0/checkpoint").iterdir())
    atoll(*line.partition("atoll ")[2].split()).succeeded()
    for seed in range(3):
        atoll("run", "tiny.toml", "--set", "rounds=300", "--set", f"seed={seed}", "--out", f"{seed}").succeeded()
        assert untimed(folder / f"s/seed={seed}") == untimed(folder / f"{seed}")


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_runs_behind(folder: Path, atoll: Command) -> None:
    command = [sys.executable, "-m", "atoll", "sweep", "tiny.toml", "--set", "rounds=3000", "--over", "seed=0..1"]
    process = subprocess.Popen([*command, "--out", "s"], cwd=folder, stderr=subprocess.DEVNULL)
    rows = folder / "s/seed=0/metrics.jsonl"
    while not (rows.is_file() and rows.read_bytes().count(b"\n") > 3):
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(300):
        if not (folder / "s/seed=0/.lock").exists():  # the run has ended, in order
            break
        time.sleep(0.1)
    assert not (folder / "s/seed=0/.lock").exists()
    assert not (folder / "s/seed=0/summary.json").exists()
    assert list((folder / "s/seed=0/checkpoint").iterdir())


@pytest.mark.parametrize("words", [(), ("--jobs", "2")])
def test_what_settings_do_is_told_once_and_as_a_sentence(atoll: Command, words: tuple[str, ...]) -> None:
    done = atoll(*GRID, "--out", "s", "--set", "run.client_updates=1000000", *words)
    done.succeeded()
    told = [line for line in done.err.splitlines() if "client_updates" in line]
    assert len(told) == 1, done.err
    assert told[0].startswith("warning: run.client_updates = 1e+06: rounds = ")
    assert "SettingWarning" not in done.err


def test_a_search(atoll: Command, folder: Path) -> None:
    words = ("sweep", "tiny.toml", "--tune", "--over", "local.lr=0.001..1:log", "--over", "local.optimizer=sgd,adam")
    printed = atoll(*words, "--trials", 2, "--out", "s").succeeded()
    assert "best" in printed
    assert (folder / "s/trial-001/summary.json").is_file()
    write_note(folder / "s", (read_note(folder / "s") or {}) | {"runs": {"trial-000": {}}})  # as a kill may leave it
    assert atoll(*words, "--trials", 2, "--out", "s", "--resume").succeeded()
    assert [run.folder.name for run in find_runs([folder / "s"])] == ["trial-000", "trial-001"]
    found = json.loads(atoll(*words, "--trials", 3, "--out", "s", "--resume", "--json").succeeded())
    assert [trial["trial"] for trial in found["trials"]] == [0, 1, 2]
    accuracies = [read_run(folder / "s" / f"trial-00{i}").rows["test_accuracy"][-1] for i in range(3)]
    assert [trial["value"] for trial in found["trials"]] == accuracies
    (best,) = [trial for trial in found["trials"] if trial["is_best"]]
    assert best["value"] == max(accuracies)
    assert f"--set local.lr={best['local.lr']}" in found["best"]
    refused = atoll(*words, "--metric", "test_loss", "--out", "s", "--resume").refused()
    assert refused == "--resume: s holds another search, which differs in metric; give the same options (more " + (
        "--trials are fine), or another folder"
    )


def test_a_sweep_compares_the_time_to_a_target(atoll: Command, folder: Path) -> None:
    words = (*GRID, "--target", 0.1, "--out", "s")
    printed = atoll(*words).succeeded()
    assert "virtual_time to 10 %" in printed
    assert "No mean if a seed missed it." in printed
    found = json.loads(atoll(*words, "--resume", "--json").succeeded())
    assert (found["metric"], [line["target"] for line in found["settings"]]) == ("virtual_time", [0.1, 0.1])
    assert json.loads((folder / "s/sweep.json").read_bytes())["target"] == 0.1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_job_array_of_the_page_makes_the_whole_sweep(folder: Path) -> None:
    """Its tasks at once, as Slurm would start them; then the sweep without parts, into another folder."""
    assert write_files(ROOT / "docs/sweeps.md", folder) == ["array.sbatch", "ray.sbatch"]
    script = (folder / "array.sbatch").read_text()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tasks = [
        subprocess.Popen(
            ["bash", "array.sbatch"],
            cwd=folder,
            env={**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": f"{task}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for task in (1, 2, 3)
    ]
    printed = [task.communicate(timeout=800)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0]
    assert any("Best: atoll" in text for text in printed), "who ends last has seen all"
    alone = re.sub(r"--part \S+ --jobs \S+ --out \S+", "--out whole", script)
    subprocess.run(["bash", "-c", alone], cwd=folder, env={**os.environ, "PATH": path}, check=True, capture_output=True)
    assert (folder / "sweeps/array/table.csv").read_bytes() == (folder / "whole/table.csv").read_bytes()
    notes = [json.loads((folder / place / "sweep.json").read_bytes()) for place in ("sweeps/array", "whole")]
    assert notes[0] == notes[1]
    assert not list((folder / "sweeps/array").glob(".*"))


@pytest.mark.more
def test_a_part_leaves_the_rest_and_says_so(atoll: Command, folder: Path) -> None:
    words = (*GRID, "--over", "seed=0..1", "--out", "s")
    printed = atoll(*words, "--part", "2/2").succeeded()
    assert "2 of 4 runs are not finished yet" in printed
    assert "Best: atoll" not in printed
    assert sorted(path.parent.name for path in (folder / "s").glob("*/summary.json")) == [
        "lr=0.1,seed=1",
        "lr=0.2,seed=1",
    ]
    assert "Best: atoll" in atoll(*words, "--resume").succeeded()
    told = json.loads(atoll(*words, "--part", "9/9", "--json").succeeded())
    assert [line["finished"] for line in told["settings"]] == [2, 2], "a part without runs"
    other = ("sweep", "tiny.toml", "--over", "seed=5..6", "--out", "s", "--part", "1/2")
    assert "holds another sweep, with 4 runs that this one lacks" in atoll(*other).refused()


def test_quiet_and_verbose(atoll: Command) -> None:
    assert atoll(*GRID, "--out", "a", "--quiet").told == []
    told = atoll(*GRID, "--out", "b", "-v").told
    assert [line.partition(" (")[0] for line in told if "executor" in line] == [
        f"lr={lr}: run.executor = 'auto': serial" for lr in ("0.1", "0.2")
    ]


BAD = {
    "--over local.lr": "--over 'local.lr': must have the form section.key=value,value or section.key=first..last",
    "--over local.lrr=1,2": "local.lrr: unknown, did you mean 'lr'?",
    "--over seed=4..0": "--over seed=4..0: is empty; the first number must be at most the last",
    "--over local.lr=0.1,0.10": "--over local.lr: the value 0.10 is repeated",
    "--over seed=0..1 --jobs 0": "--jobs 0: must be at least 1",
    "--over seed=0..1 --trials 3": "--trials 3: is for --tune; without that, every combination is run",
    "--over seed=0..1 --tune --trials 0": "--trials 0: must be at least 1",
    "--over seed=0..1 --tune": "--over seed: a search would pick a lucky seed",
    "--over local.lr=0.1..1": "--over local.lr=0.1..1: the range of a grid needs whole numbers",
    "--over local.lr=-1..1 --tune": "local.lr = -1: must be a finite number greater than 0",
    "--over seed=0..1 --metric accuracy": "--metric accuracy: unknown, did you mean",
    "--over seed=0..1 --metric client_score": """no run records it; add --set 'run.probes=["client_score"]'""",
    "--over seed=0..1 --out tiny.toml": "--out tiny.toml: is a file, or lies below one; give the path of a new folder",
    "--over seed=0..1 --out .": "--out .: is not empty and holds no sweep; give the path of a new folder",
    "--over clustering.clusters=2,99": "clusters=99: clustering.clusters = 99: must be at most data.clients = 6",
    "--over seed=0..1 --scale huge": "--scale huge: this experiment has no scales",
    "--over seed=0..1 --only other": "--only other: no run has this in its panel or label",
    "--over data.root=a/b,a-b": "--over: {'data.root': 'a/b'} and {'data.root': 'a-b'} have the same folder name",
    "--over run.workers=1,2": "--over run.workers: changes no result of a run",
    "--over run.workers=1..2 --tune": "--over run.workers: changes no result of a run",
    "--over seed=0..1 --metric virtual_time": "--metric virtual_time: is a cost",
    "--over seed=0..1 --metric test_loss --target 0.5": "--target 0.5: needs a cost",
    "--over seed=0..1 --part 0/2": "--part 0/2: must have the form I/N, such as 2/8, with I from 1 to N",
    "--over seed=0..1 --part 3/2": "--part 3/2: must have the form I/N",
    "--over seed=0..1 --part 2": "--part 2: must have the form I/N",
    "--over seed=0..1 --part 1/99999": "N at most 10,000",
    "--over local.lr=0.1..1 --tune --part 1/2": "--part 1/2: is for a grid",
    "--over run.executor=fleet,serial": "executor=fleet: run.executor = 'fleet': needs a fleet",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_told_before_anything_is_written(words: str, atoll: Command, folder: Path) -> None:
    before = sorted(path.name for path in folder.rglob("*"))
    assert BAD[words] in atoll("sweep", "tiny.toml", *words.split()).refused()
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_warning_is_given_once(atoll: Command) -> None:
    done = atoll("sweep", "tiny.toml", "--set", "method.name=fedavg", "--over", "clustering.clusters=2,3")
    assert done.err.count("warning: clustering.clusters = 2: no run uses it") == 1
    assert "--over clustering.clusters: changes nothing" in done.refused()


def test_what_is_varied_need_not_be_in_the_file(atoll: Command) -> None:
    words = ("--set", "privacy.trust=server", "--set", "privacy.clip=1", "--over", "privacy.noise=.5,1")
    (low, high) = json.loads(atoll("sweep", "tiny.toml", *words, "--metric", "epsilon", "--json").succeeded())[
        "settings"
    ]
    assert low["last_mean"] > high["last_mean"]
    assert high["is_best_last"]


def test_the_best_run_is_told_with_what_it_takes(atoll: Command) -> None:
    words = ("--over", "method.name=fedavg,ditto", "--set", "method.penalty=0.1", "--set", "method.fraction=1.0")
    told = atoll("sweep", "tiny.toml", *words, "--out", "s", "--json").succeeded()
    command = shlex.split(json.loads(told)["best"])
    assert command[:5] == ["atoll", "run", "tiny.toml", "--set", "method.fraction=1.0"]
    assert ("method.penalty=0.1" in command) == ("method.name=ditto" in command)
    atoll(*command[1:]).succeeded()


def test_a_search_is_of_one_run(atoll: Command) -> None:
    told = atoll("sweep", "quickstart", "--tune", "--over", "local.lr=0.01..0.1").refused()
    assert told == "--tune: the experiment has 2 runs (FedCluster, M = 10; FedAvg); choose one with --only"


def test_a_folder_of_other_runs_is_refused(atoll: Command, folder: Path) -> None:
    atoll(*GRID, "--out", "s").succeeded()
    assert "already holds a sweep; add --resume" in atoll(*GRID, "--out", "s").refused()
    told = atoll("sweep", "tiny.toml", "--over", "seed=0..1", "--out", "s", "--resume").refused()
    assert told.startswith("--resume: s holds another sweep, with 2 runs that this one lacks, such as lr=0.1")
    told = atoll(*GRID, "--set", "rounds=5", "--out", "s", "--resume").refused()
    assert told == "--resume: s/lr=0.1 was run with other settings: rounds was 2, is now 5"
    (folder / "s/lr=0.3").mkdir()
    (folder / "s/lr=0.3/notes.txt").write_text("mine")
    told = atoll("sweep", "tiny.toml", "--over", "seed=0..1", "--set", "seed=3").refused()
    assert told == "--set seed: --over gives its values; leave out one of them"
    told = atoll("sweep", "tiny.toml", "--over", "local.lr=0.1,0.2,0.3", "--out", "s", "--resume").refused()
    assert told == "--out s/lr=0.3: is not empty and is not a run's folder; give the path of a new one"
