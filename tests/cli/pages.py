"""Reading documentation pages: their fenced blocks, and running what they say."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title (a file name, or empty) and its text."""

    language: str
    title: str
    text: str


def blocks(page: Path, language: str = "", under: str = "") -> list[Block]:
    """Return the fenced blocks of a page, or of one section, in order; of one language or of all."""
    text = page.read_text()
    if under:
        (text,) = (part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(f"{under}\n"))
    found = [Block(*(part or "" for part in match.groups())) for match in _FENCE.finditer(text)]
    return [block for block in found if language in ("", block.language)]


def write_files(page: Path, folder: Path) -> list[str]:
    """Write the blocks that have a file's name as their title; return the names."""
    titled = [block for block in blocks(page) if block.title]
    for block in titled:
        (folder / block.title).write_text(block.text)
    return [block.title for block in titled]


def commands(page: Path) -> list[str]:
    """Return the `atoll` command lines of a page's sh blocks; make, pip and git are left to the reader."""
    lines = [line for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [line for line in lines if line.startswith("atoll ")]


def shell(command: str, folder: Path, seconds: float = 240) -> str:
    """Run a command line in a folder, with this environment's `atoll` and `python`; return what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


# All command lines in one process, since starting PyTorch takes longer than these commands do.
ONE_PROCESS = """
import shlex, sys
from atoll.cli import (main)
for line in sys.argv[1:]:
    if code := main(shlex.split(line, comments=True)[1:]):
        raise SystemExit(f"{line}: exit code {code}")
"""


def run_together(lines: list[str], folder: Path, seconds: float = 240) -> str:
    """Run `atoll` command lines in a folder, one after the other; return what they print."""
    command = [sys.executable, "-c", ONE_PROCESS, *lines]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
