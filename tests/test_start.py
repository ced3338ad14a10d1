"""What does not compute does not wait: the command line and `import atoll` leave the heavy packages alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.tiers import thinned

HEAVY = ("flwr", "matplotlib", "networkx", "pyarrow", "ray", "scipy", "sklearn", "torch")
CHECKING = ("numpy", "pydantic")  # what settings are held against, half a second, which no help page needs
COMMANDS = (
    *("cluster", "data", "data inspect", "export", "fleet", "fleet node", "new", "recipes"),
    *("plan", "report", "reproduce", "run", "schedule", "settings", "sweep", "verify", "watch"),
)
# Whose parameters say what settings there are.
CHOICES = (
    "atoll.aggregation.robust",
    "atoll.clustering.named_clusterings",
    "atoll.codecs.named_codecs",
    "atoll.data.datasets",
    "atoll.data.dealing.partition",
    "atoll.settings.experiment_file",
    "atoll.settings.plugins",
    "atoll.settings.sections",
    "atoll.local.augment",
    "atoll.local.models",
    "atoll.local.rule",
    "atoll.methods.named_methods",
    "atoll.network.topology",
)


def loaded_by(code: str, folder: Path | None = None, heavy: Iterable[str] = HEAVY) -> list[str]:
    """Run some Python in a process of its own; return the heavy packages that it has loaded at its end."""
    loaded = f"print(json.dumps(sorted(set(sys.modules) & {set(heavy)!r})), file=sys.stderr)"
    command = [sys.executable, "-c", f"import json, sys\n{code}\n{loaded}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


def said_by(code: str, folder: Path | None = None) -> str:
    """Return what some Python prints in a process of its own."""
    command = [sys.executable, "-c", f"import sys\n{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout


def loaded_by_command(words: str, folder: Path) -> list[str]:
    return loaded_by(f"from atoll.cli import main\nassert main({words.split()!r}) == 0", folder)


def loaded_by_commands(*lines: str, folder: Path | None = None, code: int = 0) -> dict[str, list[str]]:
    """Run commands with this exit code in one process; return the heavy packages that are loaded after each."""
    program = f"""
import json
from atoll.cli import main
loaded = {{}}
for line in {lines!r}:
    assert main(line.split()) == {code}, line
    if heavy := sorted(set(sys.modules) & {set(HEAVY)!r}):
        loaded[line] = heavy
print("\\n" + json.dumps(loaded))
"""
    found: dict[str, list[str]] = json.loads(said_by(program, folder).splitlines()[-1])
    return found


def test_importing_atoll_loads_nothing() -> None:
    assert loaded_by("import atoll\nassert atoll.__version__ and dir(atoll)") == []


def test_what_only_prints_loads_nothing() -> None:
    """All in one process, which names after each command what has been loaded by then."""
    assert loaded_by_commands("--help", "recipes", "recipes show quickstart") == {}


def test_no_help_page_loads_anything() -> None:
    code = "".join(f"assert main({[*words.split(), '--help']!r}) == 0\n" for words in ("", *COMMANDS))
    assert loaded_by(f"from atoll.cli import main\n{code}", heavy=(*HEAVY, *CHECKING)) == []


@pytest.mark.more
@pytest.mark.parametrize(
    ("words", "given"),
    [("atoll re", "recipes"), ("atoll run quick", "quickstart"), ("atoll run --set local.l", "local.lr=")],
)
def test_completion_answers_without_loading_anything(words: str, given: str) -> None:
    code = (
        "import contextlib, io, os\n"
        f"os.environ |= {{'_ATOLL_COMPLETE': 'complete_bash', 'COMP_WORDS': {words!r}, "
        f"'COMP_CWORD': '{len(words.split()) - 1}'}}\n"
        "from atoll.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "    main([])\n"
        f"assert {given!r} in out.getvalue().split(), out.getvalue()"
    )
    assert loaded_by(code) == []


def test_bad_input_is_told_without_loading_anything(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[local]\nlearning_rate = 0.1\n")
    lines = ("run bad.toml", "schedule bad.toml", "run no-such-recipe", "run --no-such-option")
    assert loaded_by_commands(*lines, folder=tmp_path, code=2) == {}


@pytest.mark.more
def test_what_settings_are_read_from_loads_nothing() -> None:
    """Each module alone, as if it were the first of the package to be imported, though all in one process."""
    code = f"""
import importlib
for module in {CHOICES!r}:
    for name in [name for name in sys.modules if name.startswith("atoll")]:
        del sys.modules[name]
    before = set(sys.modules)
    importlib.import_module(module)
    if heavy := (set(sys.modules) - before) & {set(HEAVY)!r}:
        print(module, "loads", *heavy)
"""
    assert said_by(code) == ""


@pytest.mark.parametrize(
    "words", thinned(["run quickstart --only FedAvg --set rounds=1 --quiet --out one", "schedule quickstart"], 0)
)
def test_what_draws_nothing_loads_no_figures_and_no_graphs(words: str, tmp_path: Path) -> None:
    loaded = loaded_by_command(words, tmp_path)
    assert "torch" in loaded
    assert not {"flwr", "matplotlib", "networkx", "ray", "scipy", "sklearn"} & set(loaded)


@pytest.mark.more
@pytest.mark.parametrize(
    "words", ["run quickstart --only FedAvg --set rounds=1 --quiet --out one", "schedule quickstart"]
)
def test_what_trains_here_loads_nothing_of_a_fleet(words: str, tmp_path: Path) -> None:
    fleet = ("atoll.fleet.agreed.messages", "atoll.fleet.server.fleet_executor", "atoll.secure.collector")
    code = f"from atoll.cli import main\nassert main({words.split()!r}) == 0"
    assert loaded_by(code, tmp_path, fleet) == []


@pytest.mark.parametrize("proximal", thinned([0.0, 0.1], 0), ids=["by hand", "by autograd"])
def test_plain_sgd_trains_without_pytorchs_compiler(proximal: float, tmp_path: Path) -> None:
    """Its import takes a second, and PyTorch's optimisers begin with it: plain SGD makes none."""
    words = ["run", "quickstart", "--quiet", "--only", "FedAvg", "--out", "one"]
    words += ["--set", "rounds=1", "--set", f"local.proximal={proximal}"]
    code = f"from atoll.cli import main\nassert main({words!r}) == 0\nassert 'torch._dynamo' not in sys.modules"
    assert "torch" in loaded_by(code, tmp_path)


def test_help_answers_at_once() -> None:
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "atoll", "--help"], capture_output=True, check=True, timeout=60)
        after = os.times()  # of the processor, which others on the machine take less from than from the clock
        spent = after.children_user - before.children_user + after.children_system - before.children_system
        seconds.append(spent)
    assert min(seconds) < 1  # about 0.3 s, of a busy core twice that; PyTorch alone takes longer
