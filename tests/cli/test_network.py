"""FedUC's experiments on the command line: clusterings with their bound, figures, schedules, runs, and bad input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import Experiment, make_runs, read_experiment
from atoll.clustering.feduc.bound import evaluate
from atoll.clustering.feduc.problem import PATTERNS
from atoll.network.network_records import write_direct
from tests.cli.conftest import Command
from tests.tiers import thinned

SMALL = """
name = "small"
rounds = 20

[data]
partition = "one-label"
size_ratio = 2
clients = 12

[model]
name = "linear"

[local]
lr = 0.1
steps = 1
batch_size = 16

[clustering]
method = "feduc"
clusters = 4
time_limit = 0.8

[network]
bandwidth_hz = 1e4
seconds_per_sample = [0.001, 0.004]

[method]
name = "hierarchical"
intra_rounds = 5
"""
SEEDS = """
[[panels]]
panel = "CenAsy"
method.pattern = "cenasy"

[[panels]]
panel = "DecSyn"
method.pattern = "decsyn"
""" + "".join(
    f"\n[[runs]]\nlabel = '{label}, seed {seed}'\nseed = {seed}\nclustering.method = '{method}'\n"
    for label, method in (("ComAw", "comaw"), ("FedUC", "feduc"))
    for seed in (0, 1)
)
OF_PLAN = {"kappa", "delta", "bound", "membership", "clusters"}
OF_CLUSTER = {"size", "emd", "completion_seconds", "limit_seconds", "psi", "links", "members"}


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    (folder / "small.toml").write_text(SMALL)
    (folder / "seeds.toml").write_text(SMALL.replace("time_limit = 0.8", "time_limit = 1.5") + SEEDS)
    (folder / "placing.py").write_text(
        "import numpy as np\n\ndef ends(population):\n    return 3 * (np.arange(len(population)) % 2)\n"
    )


def sets(*changes: str) -> list[str]:
    """Return the changes as words of a command."""
    return [word for change in changes for word in ("--set", change)]


def planned(atoll: Command, *changes: str) -> dict[str, Any]:
    """Return what `atoll cluster --json` prints."""
    (made,) = json.loads(atoll("cluster", "small.toml", "--json", *sets(*changes)).succeeded())
    return dict(made)


def experiment_of(*changes: str) -> Experiment:
    return Experiment(make_runs(read_experiment("small.toml"), changes=changes)[0])


# atoll cluster


@pytest.mark.parametrize("method", ["comaw", "dataw", "feduc", "random"])
@pytest.mark.parametrize("pattern", thinned(PATTERNS, 2))
def test_the_bound_and_each_of_its_terms_can_be_read(atoll: Command, pattern: str, method: str) -> None:
    changes = (f"method.pattern={pattern}", f"clustering.method={method}")
    made, experiment = planned(atoll, *changes), experiment_of(*changes)
    assert set(made) >= OF_PLAN
    labels = np.array(made["membership"])
    assert labels.tolist() == experiment.clustering.labels.tolist()
    bound = evaluate(experiment.plan.problem, labels)
    assert (made["kappa"], made["delta"], made["bound"]) == (bound.kappa, bound.delta, bound.bound)
    assert made["bound"] == pytest.approx(made["kappa"] * made["initial_gap"] + made["delta"])
    counts, network = experiment.population.class_counts(), experiment.conditions.networks[0]
    assert len(made["clusters"]) == 4
    for j, cluster in enumerate(made["clusters"]):
        assert set(cluster) >= OF_CLUSTER
        members = np.flatnonzero(labels == j)
        assert cluster["members"] == members.tolist()
        assert cluster["size"] == len(members)
        if len(members):
            shares = counts[members].sum(axis=0) / counts[members].sum() - counts.sum(axis=0) / counts.sum()
            assert cluster["emd"] == pytest.approx(np.abs(shares).sum())
            assert cluster["emd_norm"] == pytest.approx((shares**2).sum() ** 0.5)
        else:
            assert cluster["emd"] is None
        assert cluster["completion_seconds"] == bound.completion_seconds[j]
        assert cluster["limit_seconds"] == 0.8
        assert cluster["psi"] == bound.psi[j]
        assert cluster["links"] == len(network.neighbours[j]) == 2
        if method == "feduc":
            assert cluster["completion_seconds"] <= 0.8
    occupied = [cluster for cluster in made["clusters"] if cluster["size"]]
    for key in ("emd", "emd_norm"):
        values = [cluster[key] for cluster in occupied]
        assert made[f"mean_{key}"] == pytest.approx(np.mean(values))
        assert made[f"weighted_{key}"] == pytest.approx(sum(c["beta"] * c[key] for c in occupied))


def test_without_a_limit_there_is_none_in_the_json(atoll: Command) -> None:
    made = planned(atoll, "clustering.time_limit=")
    assert {cluster["limit_seconds"] for cluster in made["clusters"]} == {None}
    assert sorted(cluster["size"] for cluster in made["clusters"]) == [0, 0, 0, 12]  # so xi is 0
    assert made["delta"] == pytest.approx(0, abs=1e-9)


def test_a_limit_is_written_as_it_is_given(atoll: Command) -> None:
    """Beside a completion of 1.963 s, a limit of 1.9645 s is not 1.96 s."""
    for limit, written in (("1.9645", "1.9645 s"), ("1500", "1,500 s")):
        assert f"  {written}  " in atoll("cluster", "small.toml", *sets(f"clustering.time_limit={limit}")).succeeded()


def test_every_aggregator_may_have_its_own_limit(atoll: Command, folder: Path) -> None:
    limits = [0.9, 0.8, 1.2, 0.85]
    (folder / "limits.csv").write_text("0.9,0.8,1.2,0.85\n")
    made = planned(atoll, f"clustering.time_limit={limits}")
    assert [cluster["limit_seconds"] for cluster in made["clusters"]] == limits
    assert all(cluster["completion_seconds"] <= cluster["limit_seconds"] for cluster in made["clusters"])
    assert max(cluster["completion_seconds"] for cluster in made["clusters"]) > 0.9  # at the third one only
    assert planned(atoll, "clustering.time_limit=limits.csv")["membership"] == made["membership"]


def test_a_random_start_is_the_seed_s(atoll: Command) -> None:
    random = ("clustering.start=random", "clustering.time_limit=1.5")
    first, again, other = (planned(atoll, *random, f"seed={seed}") for seed in (1, 1, 2))
    assert first["membership"] == again["membership"] != other["membership"]
    assert planned(atoll, *random, "clustering.passes=9", "seed=1")["bound"] < first["bound"]


def test_frequencies_of_the_bound_alone_are_told(atoll: Command) -> None:
    done = atoll("cluster", "small.toml", *sets("clustering.frequencies=[4.0, 2.0, 1.0, 1.0]"))
    done.succeeded()
    assert "clustering.frequencies: the bound has aggregator" in done.err
    done = atoll("cluster", "small.toml", *sets("network.frequencies=[4.0, 2.0, 1.0, 1.0]"))
    done.succeeded()
    assert not done.err


def test_frequencies_can_be_given(atoll: Command) -> None:
    made = planned(atoll, "clustering.frequencies=[4.0, 2.0, 1.0, 1.0]")
    assert [cluster["psi"] for cluster in made["clusters"]] == [0.5, 0.25, 0.125, 0.125]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_refining_never_makes_the_bound_worse(atoll: Command, pattern: str) -> None:
    greedy = planned(atoll, f"method.pattern={pattern}")
    refined = planned(atoll, f"method.pattern={pattern}", "clustering.refine=true")
    assert refined["bound"] <= greedy["bound"]
    assert all(cluster["completion_seconds"] <= 0.8 for cluster in refined["clusters"])


@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
def test_the_objective_time_is_best_at_its_time(atoll: Command, pattern: str) -> None:
    words = (f"method.pattern={pattern}", "clustering.mu=0.05", "clustering.seconds=60")
    timed = replace(experiment_of(*words).plan.problem, seconds=60.0)
    bounds = {}
    for objective in ("time", "bound"):
        made = planned(atoll, *words, f"clustering.objective={objective}")
        bounds[objective] = evaluate(timed, np.array(made["membership"])).bound
        assert all(cluster["completion_seconds"] <= 0.8 for cluster in made["clusters"])
    assert bounds["time"] <= bounds["bound"]


def test_overshooting_is_shown(atoll: Command) -> None:
    made = planned(atoll, "clustering.time_limit=0.6", "clustering.overshoot=true")
    over = [c for c in made["clusters"] if c["completion_seconds"] > c["limit_seconds"]]
    assert over
    assert sum(cluster["size"] for cluster in made["clusters"]) == 12


def test_the_table(atoll: Command) -> None:
    printed = atoll("cluster", "small.toml").succeeded()
    for word in ("aggregator", "clients", "completion", "limit", "frequency", "links", "bound", "kappa", "mean EMD"):
        assert word in printed
    made = planned(atoll)
    for cluster in made["clusters"]:
        for shown in (f"{cluster['emd']:.3f}", f"{cluster['completion_seconds']:.3f} s", f"{cluster['psi']:.2%}"):
            assert shown in printed
    assert f"bound {made['bound']:.4g}" in printed


@pytest.mark.more
def test_figures_of_one_run(atoll: Command, folder: Path) -> None:
    done = atoll("cluster", "small.toml", "--plot", "one.png")
    done.succeeded()
    names = [f"one{ending}.png" for ending in ("", "-map", "-completion", "-sizes")]
    assert done.err.splitlines() == [f"wrote {name}" for name in names]
    for name in names:
        assert (folder / name).stat().st_size > 1000


@pytest.mark.more
def test_figures_of_several_runs(atoll: Command, folder: Path) -> None:
    atoll("cluster", "seeds.toml", "--plot", "all").succeeded()
    made = {path.stem for path in folder.glob("*.png")}
    assert made == {"all", "all-map", "all-completion", "all-sizes", "all-emd", "all-longest"}
    drawn = (folder / "all-emd.svg").read_text()
    for word in ("CenAsy", "DecSyn", "ComAw", "FedUC", "Mean EMD"):
        assert word in drawn
    assert "seed 0" not in drawn  # seeds are bars of one series
    runs = json.loads(atoll("cluster", "seeds.toml", "--json").succeeded())
    assert [(run["panel"], run["label"]) for run in runs][:2] == [
        ("CenAsy", "ComAw, seed 0"),
        ("CenAsy", "ComAw, seed 1"),
    ]
    assert len(runs) == 8


@pytest.mark.more
def test_a_network_of_links_has_no_map(atoll: Command, folder: Path) -> None:
    write_direct(folder / "links.csv", {str(k): 0.05 + k / 240 for k in range(12)}, 4)
    changes = sets("network.file=links.csv", "clustering.time_limit=")
    atoll("cluster", "small.toml", "--plot", "one", *changes).succeeded()
    assert {path.stem for path in folder.glob("*.png")} == {"one", "one-completion", "one-sizes"}


# atoll schedule and atoll run


@pytest.mark.parametrize("pattern", PATTERNS)
def test_schedules(atoll: Command, pattern: str) -> None:
    (made,) = json.loads(atoll("schedule", "small.toml", "--json", *sets(f"method.pattern={pattern}")).succeeded())
    assert made["events"] == len(made["rows"]) == 4
    assert made["rounds"] == 20
    assert made["virtual_seconds"] == made["rows"][-1]["seconds"]
    assert made["client_updates"] == 5 * sum(len(row["cohort"]) for row in made["rows"])
    assert {len(row["clusters"]) for row in made["rows"]} == ({4} if pattern.endswith("syn") else {1})


def test_a_gantt_chart(atoll: Command, folder: Path) -> None:
    atoll("schedule", "small.toml", "--plot", "gantt").succeeded()
    assert (folder / "gantt.png").is_file()


@pytest.mark.more
@pytest.mark.parametrize("pattern", thinned(PATTERNS, 1))
def test_runs(atoll: Command, folder: Path, pattern: str) -> None:
    done = atoll("run", "small.toml", *sets(f"method.pattern={pattern}", "run.evaluate_every=5"))
    done.succeeded()
    assert done.told == []
    rows = [json.loads(line) for line in (folder / "runs/small/metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 5, 10, 15, 20]
    assert ("cluster_accuracy" in rows[-1]) == pattern.startswith("dec")
    assert "report" in atoll("report", "runs/small").succeeded()


@pytest.mark.parametrize("changes", [["clustering.method=placing:ends"], ["clustering.method=comaw"]])
def test_a_run_warns_when_empty_aggregators_cut_the_others_off(
    atoll: Command, folder: Path, changes: list[str]
) -> None:
    """By hand, or since no client of a file is near the aggregators in the middle of a line."""
    rows = [f"{k},{1.5 + 0.3 * k + (30 if k % 2 else 0)},{3 * k + 1}" for k in range(12)]
    (folder / "clients.csv").write_text("client,x,y\n" + "\n".join(rows) + "\n")
    near = ["network.grid=[1, 4]", "network.clients_file=clients.csv", "method.pattern=decasy"]
    done = atoll("run", "small.toml", *sets(*changes, *near))
    done.succeeded()
    assert done.told[0] == "warning: aggregators whose completion is above clustering.time_limit = 0.8: 0, 3"
    assert done.told[1].startswith("warning: from round 0 on, aggregators without clients cut the others into parts")
    assert json.loads((folder / "runs/small/summary.json").read_bytes())["cluster_sizes"] == [6, 0, 0, 6]


# Bad input

REFUSED = [
    (
        ["clustering.time_limit=0.6"],
        ["clustering.time_limit = 0.6", "client 2 fits no aggregator", "0.6964 s at aggregator 1", "overshoot = true"],
    ),
    (["clustering.objective=time"], ["clustering.seconds is not set", "'time'"]),
    (["clustering.objective=time", "clustering.seconds=-1"], ["clustering.seconds = -1", "greater than 0"]),
    (
        ["clustering.objective=time", "clustering.seconds=9", "clustering.overshoot=true"],
        ["clustering.overshoot = true"],
    ),
    (["clustering.time_limit=0"], ["clustering.time_limit = 0", "greater than 0"]),
    (["clustering.time_limit=[0.8, 0.8]"], ["clustering.time_limit = [0.8, 0.8]", "2 numbers", "= 4"]),
    (["clustering.time_limit=absent.csv"], ["absent.csv"]),
    (
        ["clustering.objective=time", "clustering.seconds=9", "clustering.opening=first"],
        ["clustering.opening = 'first'", "clustering.objective = 'time'"],
    ),
    (
        ["clustering.objective=time", "clustering.seconds=9", "clustering.passes=2"],
        ["clustering.passes = 2", "clustering.objective = 'time'"],
    ),
    (["clustering.opening=nearest", "clustering.overshoot=true"], ["clustering.overshoot = true", "'nearest'"]),
    (
        ["clustering.opening=first", "clustering.clusters=16", "clustering.time_limit="],
        ["clustering.opening = 'first'", "12 clients", "clustering.clusters = 16"],
    ),
    (["network.frequencies=[1.0, 2.0]"], ["network.frequencies = [1.0, 2.0]", "clustering.clusters = 4"]),
    (["network.frequencies=transfer", "method.pattern=decsyn"], ["network.frequencies", "'decsyn'"]),
    (["clustering.mu=10"], ["clustering.mu = 10", "less than 1 / local.lr = 10"]),
    (["clustering.xi=label"], ["clustering.xi = 'label'", "'labels'"]),
    (["clustering.warmup_rounds=1"], ["clustering.warmup_rounds = 1", "clustering.xi = 'gradients'"]),
    (["rounds=21"], ["rounds = 21", "multiple"]),
    (["method.pattern=censync"], ["method.pattern = 'censync'", "'censyn'"]),
    (["method.intra_rounds=0"], ["method.intra_rounds = 0", "at least 1"]),
    (["network.grid=[2, 3]"], ["network.grid = [2, 3]", "clustering.clusters = 4"]),
    (["network.recluster_every=5"], ["network.recluster_every = 5", "needs clients that move"]),
    (["network.seconds_per_sample=-1"], ["network.seconds_per_sample = -1"]),
    (["network.topology=edges", "network.edges=[[0, 9]]"], ["network.edges", "aggregator 9", "0 to 3"]),
    (["network.clients_file=absent.csv"], ["absent.csv"]),
]


@pytest.mark.parametrize("command", ["run", "cluster"])
@pytest.mark.parametrize(("changes", "told"), REFUSED, ids=[" ".join(changes) for changes, _ in REFUSED])
def test_bad_input_of_a_network(
    atoll: Command, folder: Path, command: str, changes: list[str], told: list[str]
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    sentence = atoll(command, "small.toml", *sets(*changes)).refused()
    for words in told:
        assert words in sentence
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_graph_in_parts_is_refused_where_models_pass_along_it(atoll: Command, folder: Path, pattern: str) -> None:
    words = sets("network.topology=edges", "network.edges=[[0, 1], [2, 3]]", f"method.pattern={pattern}")
    (made,) = json.loads(atoll("cluster", "small.toml", "--json", *words).succeeded())  # no models pass in a clustering
    assert [cluster["links"] for cluster in made["clusters"]] == [1, 1, 1, 1]
    done = atoll("run", "small.toml", *words)
    if pattern.startswith("cen"):
        done.succeeded()
    else:
        assert "aggregators 0, 1 have no path to the others" in done.refused()
        assert not (folder / "runs").exists()
