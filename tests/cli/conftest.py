"""The command line, called in this process or as a process of its own, in an empty folder with a tiny experiment."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll.cli import main

TINY = """
name = "tiny"
rounds = 2

[data]
clients = 6
samples = 8

[local]
steps = 2
batch_size = 4

[clustering]
clusters = 2

[method]
fraction = 0.5
"""


@dataclass(frozen=True)
class Done:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    def refused(self, code: int = 2) -> str:
        """Return the one sentence of a command that failed with this exit code and printed nothing else."""
        assert (self.code, self.out) == (code, ""), self
        (line,) = self.told
        assert line.startswith("error: "), self.err
        assert "Traceback" not in self.err
        assert "pydantic" not in self.err
        return line.removeprefix("error: ")

    @property
    def told(self) -> list[str]:
        """The lines of standard error, without what tiny.toml sets in vain."""
        others = ("warning: data.", "warning: method.", "warning: clustering.")
        return [line for line in self.err.splitlines() if not line.startswith(others)]

    def succeeded(self) -> str:
        """Return the standard output of a command that did not fail."""
        assert self.code == 0, self
        return self.out


Command = Callable[..., Done]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty folder but for tiny.toml; forget the user's modules imported from it."""
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def atoll(capfd: pytest.CaptureFixture[str]) -> Command:
    """Call the command line in this process."""

    def call(*words: str | Path) -> Done:
        capfd.readouterr()
        code = main([str(word) for word in words])
        return Done(code, *capfd.readouterr())

    return call


@pytest.fixture
def process(tmp_path: Path) -> Command:
    """Call the command line as a process of its own."""

    def call(*words: str | Path) -> Done:
        command = [sys.executable, "-m", "atoll", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        return Done(done.returncode, done.stdout, done.stderr)

    return call
