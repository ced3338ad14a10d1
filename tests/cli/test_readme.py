"""The README's first screen is true: its commands and its Python run as printed, in an empty folder."""

import json
import re
from pathlib import Path

import pytest
import torch

from atoll.clustering.named_clusterings import CLUSTERINGS
from atoll.data.dealing.partition import PARTITIONS
from atoll.methods.named_methods import METHODS
from atoll.settings.experiment_file import make_runs, read_experiment
from tests.cli.pages import ROOT, blocks, commands, run_together, write_files
from tests.tiers import thinned

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all of the README's commands have run, in order."""
    place = tmp_path_factory.mktemp("readme")
    write_files(README, place)
    run_together(commands(README), place)
    return place


@pytest.mark.more
def test_the_commands_leave_what_the_readme_says(toured: Path) -> None:
    assert (toured / "runs/quickstart/report/curves-round.png").is_file()
    assert (toured / "clusters.png").is_file()


@pytest.mark.more
def test_the_figure_compares_at_equal_cost_and_fedcluster_ends_lower(toured: Path) -> None:
    rows = json.loads((toured / "runs/quickstart/report/table.json").read_text())
    loss = {row["label"]: row["final_train_loss"] for row in rows}
    assert loss["FedCluster, M = 10"] < loss["FedAvg"]
    summaries = [json.loads(path.read_text()) for path in (toured / "runs/quickstart").glob("*/summary.json")]
    updates = [summary["final"]["client_updates"] for summary in summaries]
    assert len(updates) == 2
    assert len(set(updates)) == 1


SNIPPETS = [block.text for block in blocks(README, "python") if not block.title]


@pytest.mark.parametrize("snippet", thinned(SNIPPETS, 1), ids=["run", "parts"])
def test_the_python_prints_the_same_numbers_each_time(snippet: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):  # in one process, in which the first has drawn random numbers
        exec(compile(snippet, "README.md", "exec"), {})
        torch.rand(1)
        told.append(capsys.readouterr())
    assert told[0] == told[1]
    assert re.search(r"\d\.\d", told[0].out)
    assert told[0].err == ""


def test_the_committed_figure_is_small() -> None:
    assert (ROOT / "docs/images/quickstart.png").stat().st_size < 100_000


def test_what_it_counts_and_names_is_there() -> None:
    text = " ".join(README.read_text().split())
    rates = {run.method.name: run.local.lr for run in make_runs(read_experiment("quickstart"))}
    assert (
        f"{rates['fedcluster']} for FedCluster, whose model moves ten times a round, and {rates['fedavg']} for" in text
    )
    assert "in twelve partitions" in text
    assert "eight clusterings" in text
    assert (len(PARTITIONS), len(CLUSTERINGS)) == (12, 8)
    assert [name for name in (*PARTITIONS, *METHODS) if f"`{name}`" not in text] == []


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
