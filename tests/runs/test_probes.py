"""Probes of one's own: what they are given, the columns that they give, and how bad ones are refused."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Dataset, Evaluator, Experiment, InputError, Population, RunError, State, find_runs, run, run_events
from atoll.evaluation.gradients import heterogeneity
from atoll.local.models import Model
from atoll.report import page
from atoll.report.report_files import write_report
from atoll.report.tables.run_tables import rounds_to_target
from atoll.report.tables.writing import as_dicts, table_of
from atoll.runs.columns import is_built_in
from atoll.runs.probes import check_probes
from atoll.settings.validation import validate
from atoll.support.arrays import Ids
from atoll.support.errors import NotFinite
from atoll.trackers.tracker import numbers_of
from tests.fleets import open_sites
from tests.memory_fleet import MemoryFleet

TINY: dict[str, Any] = {
    "name": "tiny",
    "rounds": 2,
    "data": {"clients": 6, "samples": 8},
    "local": {"steps": 2, "batch_size": 4},
    "clustering": {"clusters": 2},
    "method": {"fraction": 0.5},
    "run": {"executor": "serial", "checkpoint_every": 1},
}
IFCA = {"name": "ifca", "clusters": 2, "fraction": 1.0}
MOVING = {
    "rounds": 4,
    "local": {"steps": 1, "batch_size": 4},
    "network": {"metres_per_round": 5.0, "recluster_every": 2},
    "clustering": {"clusters": 4, "method": "comaw"},
    "method": {"name": "hierarchical", "pattern": "decasy", "intra_rounds": 2},
}


def experiment(*probes: str, **changes: Any) -> Experiment:
    """Return a tiny experiment with probes of this file."""
    own = {"probes": [f"{__name__}:{name}" for name in probes], **changes.get("run", {})}
    return Experiment(validate({**TINY, **changes, "run": {**TINY["run"], **own}}))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def carry_out(each: Experiment, folder: Path) -> list[dict[str, Any]]:
    for _ in run_events(each, folder):
        pass
    return rows_of(folder)


def loss_again(evaluator: Evaluator, model: Model) -> float:
    return evaluator.train_loss(model)


def several(population: Population, round: int, state: State) -> dict[str, Any]:
    """Numbers of all kinds, and none."""
    return {"clients": np.int64(len(population)), "done": torch.tensor(1.5 * round), "nothing_accuracy": np.nan}


def share_of_first(labels: Ids) -> float:
    return float((labels == 0).mean())


def number_of_clusters(clustering: Any, models: tuple[Model, ...], own: int = 3) -> float:
    return clustering.clusters + len(models) + own


def drawn() -> float:
    return float(torch.rand(()) + np.random.rand())  # noqa: NPY002


def fails() -> float:
    raise ValueError("no such thing")


def soon(round: int) -> float:
    return 1 / (round - 1)


def grows(round: int) -> float:
    return float("inf") if round else 0.0


def asks(populaton: Any) -> float:
    return 0.0


def seed() -> float:
    return 0.0


def train_loss() -> float:
    return 0.0


def lists() -> list[float]:
    return [0.5]


def forgets() -> None:
    """Return nothing."""


def spaced() -> dict[str, float]:
    return {"two words": 0.0}


def truth() -> bool:
    return True


def empty() -> dict[str, float]:
    return {}


def twice() -> dict[str, float]:
    return {"share_of_first": 0.0}


def test_a_number_is_a_column_and_a_dict_is_several(tmp_path: Path) -> None:
    rows = carry_out(experiment("loss_again", "several"), tmp_path / "run")
    assert [row["loss_again"] for row in rows] == [row["train_loss"] for row in rows]
    assert [(row["clients"], row["done"], row["nothing_accuracy"]) for row in rows] == [
        (6, 0.0, None),
        (6, 1.5, None),
        (6, 3.0, None),
    ]


def ranks(population: Population) -> Ids:
    return np.arange(len(population))


def test_whole_numbers_of_each_client_are_spread_as_others_are() -> None:
    found = check_probes(experiment("ranks"))
    assert (found["ranks"], found["worst_ranks"]) == (2.5, 5.0)


def test_measuring_changes_no_bits(tmp_path: Path) -> None:
    plain = run(experiment().settings)
    probed = run(experiment("loss_again", "several", "drawn", run={"heterogeneity": True}).settings)
    assert all(torch.equal(plain.model()[name], tensor) for name, tensor in probed.model().items())


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_resumed_run_has_the_same_columns(tmp_path: Path, cut: int) -> None:
    each = experiment("loss_again", "several")
    with closing(run_events(each, tmp_path / "run")) as steps:
        for _ in range(cut + 1):
            next(steps)
    for _ in run_events(each, tmp_path / "run", resume=True):
        pass
    whole = carry_out(each, tmp_path / "whole")
    for row in (first := rows_of(tmp_path / "run")) + whole:
        del row["wall_time"], row["crc32"]
    assert first == whole


def test_labels_are_the_clusterings_or_those_that_clients_find(tmp_path: Path) -> None:
    rows = carry_out(experiment("share_of_first"), tmp_path / "given")
    assert {row["share_of_first"] for row in rows} == {0.5}
    rows = carry_out(experiment("share_of_first", method=IFCA), tmp_path / "found")
    assert [row["share_of_first"] for row in rows] == [row["cluster_clients"][0] / 6 for row in rows]
    rows = carry_out(experiment("number_of_clusters", "share_of_first", **MOVING), tmp_path / "moving")
    assert {row["number_of_clusters"] for row in rows} == {4 + 4 + 3}


def test_heterogeneity_is_a_probe_with_a_name(tmp_path: Path) -> None:
    by_name = experiment(run={"probes": ["heterogeneity"]})
    switched = experiment(run={"heterogeneity": True})
    first, second = (
        [(row["h_device"], row["h_cluster"]) for row in carry_out(each, tmp_path / str(i))]
        for i, each in enumerate((by_name, switched))
    )
    assert first == second
    (start,) = by_name.training.initial_models()
    found = heterogeneity(by_name.population, by_name.clustering, by_name.module, start)
    assert first[0] == (found.device, found.cluster)


MUST = "must return a number, an array of numbers (one for each client), or a dict of these by name"


@pytest.mark.parametrize(
    ("probe", "told"),
    [
        ("fails", "calling it failed (ValueError: no such thing, test_probes.py line"),
        (
            "asks",
            "its parameter 'populaton' is unknown, did you mean 'population'? Allowed: clustering, cycle_accuracies",
        ),
        ("train_loss", "the column 'train_loss' exists already"),
        ("seed", "the column 'seed' exists already"),
        ("lists", f"{MUST}; it returned [0.5]"),
        ("forgets", f"{MUST}; it returned None"),
        ("truth", f"{MUST}; it returned True"),
        ("empty", "must return a number, or a dict of numbers under names such as 'worst_accuracy'; it returned {}"),
        ("spaced", "it returned {'two words': 0.0}"),
        ("absent", "'absent' in 'tests.runs.test_probes' is unknown"),
    ],
)
def test_a_bad_probe_is_one_sentence_before_anything_is_written(tmp_path: Path, probe: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        carry_out(experiment(probe), tmp_path / "run")
    assert str(caught.value).startswith(f"run.probes = '{__name__}:{probe}': ")
    assert told in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_names_and_columns_come_once() -> None:
    with pytest.raises(InputError, match=r"run\.probes: names '.*:several' twice"):
        check_probes(experiment("several", "several"))
    with pytest.raises(InputError, match=r"run\.probes = '.*:twice': the column 'share_of_first' exists already"):
        check_probes(experiment("share_of_first", "twice"))
    with pytest.raises(InputError, match=r"run\.probes = 'heterogenity': unknown, did you mean 'heterogeneity'\?"):
        check_probes(experiment(run={"probes": ["heterogenity"]}))


def epsilon() -> float:
    return 0.0


def norm_limit() -> float:
    return 0.0


def perplexity() -> float:
    return 0.0


def test_columns_that_only_some_runs_have_are_taken_there() -> None:
    check_probes(experiment("norm_limit", "perplexity", "epsilon"))
    told = r"run\.probes = '.*:{0}': the column '{0}' exists already"
    with pytest.raises(InputError, match=told.format("norm_limit")):
        check_probes(experiment("norm_limit", faults={"usual_norms": "refuse"}))
    privacy = {"trust": "server", "clip": 1.0, "noise": 2.0, "epsilon": 20.0}
    with pytest.raises(InputError, match=told.format("epsilon")):
        check_probes(experiment("epsilon", privacy=privacy))
    tokens = np.zeros((12, 4), dtype=np.int64)
    texts = Dataset("letters", tokens, tokens, tokens, tokens, 0, loss="next-token")
    with pytest.raises(InputError, match=told.format("perplexity")):
        check_probes(
            Experiment(
                data={"dataset": texts, "clients": 2},
                model=Letters,
                clustering={"clusters": 2},
                run={"probes": [perplexity]},
            )
        )


class Letters(torch.nn.Module):
    """The log-probability of each token, from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(2, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed(tokens.long())[:, :, 0]


def test_the_servers_model_is_there_only_with_a_server() -> None:
    with pytest.raises(InputError, match=r":loss_again': is measured at the server's model, and method.name = 'ifca'"):
        check_probes(experiment("loss_again", method=IFCA))


def test_a_live_run_has_the_columns_of_a_simulated_one(tmp_path: Path) -> None:
    each = experiment("loss_again", "share_of_first", data={"clients": 4, "samples": 8})
    simulated = carry_out(each, tmp_path / "simulated")
    fleet = MemoryFleet(open_sites(each, tmp_path / "shards"))
    for _ in run_events(each, tmp_path / "live", fleet=fleet):
        pass
    for name in ("loss_again", "share_of_first"):
        assert [row[name] for row in rows_of(tmp_path / "live")] == [row[name] for row in simulated]


def test_a_clustering_that_changes_while_a_live_run_goes_on_is_not_offered() -> None:
    changes = {"run": {"executor": "fleet"}, "fleet": {"recluster_every": 1}}
    with pytest.raises(InputError, match=r":share_of_first': asks for 'labels', and fleet\.recluster_every = 1 "):
        check_probes(experiment("share_of_first", **changes))
    check_probes(experiment("loss_again", **changes))


@pytest.mark.parametrize(
    ("probe", "told", "kind"), [("soon", "ZeroDivisionError", RunError), ("grows", "grows is not finite", NotFinite)]
)
def test_a_probe_that_fails_on_the_way_keeps_what_there_is(
    tmp_path: Path, probe: str, told: str, kind: type[RunError]
) -> None:
    with pytest.raises(kind, match=rf"after event 1, .*{told}.*the rows before it are kept"):
        carry_out(experiment(probe), tmp_path / "run")
    assert [row["round"] for row in rows_of(tmp_path / "run")] == [0]
    assert list((tmp_path / "run/checkpoint").iterdir()), "the event that was not measured is done again"


@pytest.mark.more
def test_reports_and_trackers_know_the_columns(tmp_path: Path) -> None:
    for seed in (0, 1):
        carry_out(experiment("several", "share_of_first", seed=seed), tmp_path / f"runs/{seed}")
    carry_out(experiment(), tmp_path / "runs/without")
    runs = find_runs([tmp_path / "runs"])
    rows = rounds_to_target(runs, [2.0], "done")
    assert [row["final"] for row in as_dicts(rows)][1:] == [
        {"clients": 6.0, "done": 3.0, "nothing_accuracy": None, "share_of_first": 0.5},
        {},
    ]
    assert "| Clients | Done | Nothing accuracy | Share of first |" in table_of(rows).as_markdown()
    # It grows to 3; of a column of one's own less is better, unless its name ends in score.
    assert [reached.round for row in rows for reached in row.targets] == [0, 0, None]
    files = {file.name for file in write_report(runs, tmp_path / "report")}
    assert {"probe-done.png", "probe-share-of-first.svg", "spread.md"} <= files
    assert "probe-nothing-accuracy.png" not in files
    assert "Final share of first" in (tmp_path / "report/spread.md").read_text()
    page.write_page(runs, tmp_path / "page.html")
    assert "Share of first" in (tmp_path / "page.html").read_text()
    assert numbers_of(rows_of(tmp_path / "runs/0")[-1])["done"] == 3.0


def test_atolls_own_columns_are_known_as_such(tmp_path: Path) -> None:
    faulty = {"dropout": 0.3, "tolerate": True}
    kinds: list[dict[str, Any]] = [{"faults": faulty}, {"method": IFCA}, MOVING]
    for i, changes in enumerate(kinds):
        (last, *_) = reversed(carry_out(experiment(**changes), tmp_path / str(i)))
        assert [column for column in last if not is_built_in(column)] == []


def test_a_probe_beside_the_experiment_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("def half():\n    return 0.5\n")
    (tmp_path / "own.toml").write_text('rounds = 1\n[data]\nclients = 10\n[run]\nprobes = ["beside_it:half"]\n')
    assert run(tmp_path / "own.toml").history["half"].tolist() == [0.5, 0.5]
