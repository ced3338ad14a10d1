"""`atoll schedule --privacy`: what a schedule spends, before anything is trained."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.pages import ROOT, commands

pytest.importorskip("dp_accounting")

PRIVATE = ("--set", "privacy.trust=server", "--set", "privacy.clip=1", "--set", "privacy.noise=2")


def test_epsilon_of_each_cluster_and_of_the_worst_client(atoll: Command) -> None:
    told = atoll("schedule", "tiny.toml", "--privacy", *PRIVATE).succeeded()
    assert "worst client: " in told
    assert "(zero-out, trust = server)" in told
    (spent,) = json.loads(atoll("schedule", "tiny.toml", "--privacy", "--json", *PRIVATE).succeeded())
    assert spent["epsilon"] == max(row["epsilon"] for row in spent["clusters"])
    assert spent["over_rounds"]["epsilon"][-1] == spent["epsilon"]
    assert spent["events"] == spent["events_planned"]
    assert f"{spent['epsilon']:.3f}" in told


def test_a_budget_is_told_of(atoll: Command) -> None:
    done = atoll("schedule", "tiny.toml", "--privacy", "--json", *PRIVATE, "--set", "privacy.epsilon=2.1")
    (spent,) = json.loads(done.succeeded())
    assert spent["events"] < spent["events_planned"]
    assert "privacy.epsilon = 2.1: is spent after event" in done.err


def test_without_privacy_there_is_nothing_to_show(atoll: Command) -> None:
    assert "privacy.trust = 'none' protects nothing" in atoll("schedule", "tiny.toml", "--privacy").refused()


def test_without_noise_epsilon_is_not_finite(atoll: Command) -> None:
    free = (*PRIVATE, "--set", "privacy.noise=0")
    (spent,) = json.loads(atoll("schedule", "tiny.toml", "--privacy", "--json", *free).succeeded())
    assert spent["epsilon"] is None
    assert "inf" in atoll("schedule", "tiny.toml", "--privacy", *free).succeeded()


@pytest.mark.more
def test_the_command_on_the_page_on_privacy_runs_and_its_json_is_documented(atoll: Command, folder: Path) -> None:
    (line,) = (line for line in commands(ROOT / "docs/privacy.md") if line.startswith("atoll schedule"))
    words = line.split()[1:]
    assert "worst client: " in atoll(*words).succeeded()
    assert (folder / "spending.png").is_file()
    spent, *_ = json.loads(atoll(*words, "--json").succeeded())
    form = next(row for row in (ROOT / "docs/cli.md").read_text().splitlines() if row.startswith("| `schedule --priv"))
    assert set(re.findall(r"`(\w+)`", form)) == set(spent)
