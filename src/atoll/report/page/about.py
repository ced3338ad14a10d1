"""What the page says of an experiment as a whole: its description, and where and with what it ran."""

from collections.abc import Sequence

from atoll.report.page.markup import paragraph
from atoll.report.reading.recovery import changes_of
from atoll.report.reading.runs import Run, printable
from atoll.support.untrusted import read_json

_NAMES = {"atoll": "Atoll", "torch": "PyTorch", "numpy": "NumPy"}
MOST_LETTERS = 2000
_MOST = 5


def about(runs: Sequence[Run]) -> str:
    """Return the experiments' descriptions, and a sentence for each set of versions and machine that runs had."""
    described = dict.fromkeys(printable(run.config.get("description"), MOST_LETTERS) for run in runs)
    places = dict.fromkeys(_place(run) for run in runs)
    changes = dict.fromkeys(f"{changes_of(run.config)}"[1:-1] for run in runs)
    texts = [paragraph(text) for text in [*described][:_MOST] if text]
    texts += [paragraph(f"Clients' data change at the start of round {text}.") for text in [*changes][:_MOST] if text]
    return "".join(texts + [paragraph(f"Run with {text}.", "note") for text in [*places][:_MOST] if text])


def _place(run: Run) -> str:
    """Return versions, system and device of a run; nothing if its folder does not tell."""
    try:
        found = read_json(run.folder / "environment.json", run.folder)
        packages, machine = found["packages"], found["machine"]
        versions = [f"{name} {packages[key]}" for key, name in _NAMES.items() if packages.get(key)]
        where = f"{machine['system']}, {machine['cpus']} CPUs"
        device = run.config.get("run", {}).get("device", "cpu")
        return f"{', '.join([*versions, 'Python ' + found['python']])}, on {where}, device {device}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
