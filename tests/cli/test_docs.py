"""The documentation is true: its code runs, it names every command and setting, and it builds without a warning."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import atoll.cli  # noqa: F401  (registers the commands)
from atoll.cli.common import app
from atoll.settings import Settings
from tests.cli.pages import ROOT, blocks, commands, shell, write_files

DOCS = ROOT / "docs"

# All command lines in one process, since starting PyTorch takes longer than these commands do.
ONE_PROCESS = """
import shlex, sys
from atoll.cli import main
for line in sys.argv[1:]:
    if code := main(shlex.split(line)[1:]):
        raise SystemExit(f"{line}: exit code {code}")
"""


def run_together(lines: list[str], folder: Path) -> str:
    command = [sys.executable, "-c", ONE_PROCESS, *lines]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_on_the_extending_page_runs(tmp_path: Path) -> None:
    names = write_files(DOCS / "extending.md", tmp_path)
    experiments = [name for name in names if name.endswith(".toml")]
    assert len(experiments) == 9
    run_together([f"atoll run {name}" for name in experiments], tmp_path)
    for name in experiments:
        assert (tmp_path / "runs" / name.removesuffix(".toml") / "summary.json").is_file()


def test_the_experiment_on_the_settings_page_is_valid(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(blocks_of("settings.md", "toml"))
    rows = run_together(["atoll schedule mine.toml --scale small --set data.dataset=digits"], tmp_path)
    assert "M = 20" in rows


@pytest.mark.slow
def test_the_five_minutes_of_the_start_page(tmp_path: Path) -> None:
    shell("\n".join(commands(DOCS / "index.md")), tmp_path)
    assert (tmp_path / "runs/orders/curves-round.png").is_file()
    assert (tmp_path / "gantt.png").is_file()


def test_the_examples_on_the_command_line_page_run(tmp_path: Path) -> None:
    lines = [line.partition(" > ")[0] for line in commands(DOCS / "cli.md") if " fetch " not in line]
    assert len(lines) >= 7
    run_together(lines, tmp_path)


def test_the_command_line_page_names_every_command_and_option() -> None:
    text = (DOCS / "cli.md").read_text()
    root = typer.main.get_command(app)
    missing = [name for name in names_of(root, ("atoll",)) if name not in text]
    assert missing == []


def names_of(command: Any, path: tuple[str, ...]) -> list[str]:
    """Return a command's full name and its options, and those of the commands below it."""
    names = [" ".join(path)]
    names += [option for p in command.params for option in p.opts if option.startswith("--") and option != "--help"]
    below = getattr(command, "commands", {})
    return names + [name for key, each in below.items() for name in names_of(each, (*path, key))]


def test_the_site_builds_and_shows_every_setting_and_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site/settings/index.html").read_text().replace("[", "").replace("]", "")
    for name, field in Settings.model_fields.items():
        inside = getattr(field.annotation, "model_fields", {})
        assert [key for key in (name, *inside) if f"<code>{key}</code>" not in page] == []
    assert list((tmp_path / "site").rglob("*.py")) == []
    for file in (tmp_path / "site").rglob("*.html"):
        assert 'src="http' not in file.read_text(), f"{file.name} fetches something from the network"


def test_the_python_page_shows_every_module() -> None:
    text = (DOCS / "api.md").read_text()
    package = ROOT / "src/atoll"
    modules = [file.stem for file in package.glob("*.py") if not file.stem.startswith("_")]
    modules += [file.parent.name for file in package.glob("*/__init__.py")]
    hidden = {"cli", "recipes"}  # the command line has a page of its own
    assert [name for name in modules if f"\n::: atoll.{name}\n" not in text and name not in hidden] == []


def blocks_of(page: str, language: str) -> str:
    return "\n".join(block.text for block in blocks(DOCS / page, language))
