"""SECURITY.md's table of who sees what: each method stands in the row that its declarations put it in."""

import re
from typing import Any

import pytest

from atoll import Experiment, make_runs
from atoll.methods.named_methods import METHODS
from atoll.runs.variants import with_fleet
from atoll.support.errors import InputError
from tests.cli.pages import ROOT

TABLE: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 8, "samples": 12},
    "clustering": {"clusters": 2},
    "local": {"steps": 2, "batch_size": 4},
    "model": {"name": "mlp"},
}
# What a method needs so that it runs at all: else it would be refused on a fleet for that.
OWN: dict[str, dict[str, Any]] = {
    "fedasync": {"method": {"concurrency": 4}},
    "fedbn": {"model": {"name": "tests.problems:normalised"}},
    "fedbuff": {"method": {"concurrency": 4}},
    "fednova": {"local": {"epochs": 1, "batch_size": 4}},
    "flhc": {"method": {"warmup": 1}},
    "hierarchical": {"method": {"intra_rounds": 1}},
    "hierfavg": {"method": {"intra_rounds": 1}},
}
ROWS = {
    "trains": "On a fleet",
    "keeps": "On a fleet; clients keep something",
    "measures": "On a fleet; clients' losses are told",
    "simulated": "In simulation only",
}


def run_of(name: str, executor: str) -> Experiment:
    """Return a run of the method, once it can be carried out."""
    table = TABLE | OWN.get(name, {}) | {"run": {"executor": executor}}
    (settings,) = make_runs(table | {"method": {**table.get("method", {}), "name": name}})
    experiment = Experiment(settings)
    experiment.check()
    return experiment


def row_of(name: str) -> str:
    """Return the row that a method belongs to, by what it declares."""
    run_of(name, "serial")
    try:
        method = with_fleet(run_of(name, "fleet")).method
    except InputError:
        return "simulated"
    return "measures" if method.finds_clusters else "keeps" if method.keeps_state else "trains"


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
