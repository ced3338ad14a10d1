"""SECURITY.md's table of who sees what: each method stands in the row that its declarations put it in."""

import re

import pytest

from atoll import Experiment, make_runs
from atoll.methods.table import METHODS
from atoll.runs.variants import with_fleet
from atoll.support.errors import InputError
from tests.cli.pages import ROOT

TABLE = {
    "rounds": 4,
    "data": {"clients": 8, "samples": 12},
    "clustering": {"clusters": 2},
    "local": {"steps": 2, "batch_size": 4},
    "model": {"name": "mlp"},
}
OWN = {"fedbuff": {"concurrency": 4}, "hierarchical": {"intra_rounds": 1}, "hierfavg": {"intra_rounds": 1}}
ROWS = {"trains": "On a fleet", "measures": "On a fleet, clients' losses too", "simulated": "In simulation only"}


def row_of(name: str) -> str:
    """Return the row that a method belongs to, by what it declares."""
    table = {**TABLE, "run": {"executor": "fleet"}, "method": {"name": name, **OWN.get(name, {})}}
    (settings,) = make_runs(table)
    try:
        experiment = Experiment(settings)
        experiment.check()
        method = with_fleet(experiment).method
    except InputError:
        return "simulated"
    return "measures" if method.finds_clusters else "trains"


def told() -> dict[str, str]:
    """Return the row of each method in SECURITY.md."""
    rows = re.findall(r"^\| (.+?) \| ((?:`[\w-]+`(?:, )?)+) \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    titles = {title: row for row, title in ROWS.items()}
    return {
        name: titles[title] for title, names in rows if title in titles for name in re.findall(r"`([\w-]+)`", names)
    }


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_a_method_stands_where_it_belongs(name: str) -> None:
    assert told()[name] == row_of(name)


def test_no_other_method_is_named() -> None:
    assert sorted(told()) == sorted(METHODS)
