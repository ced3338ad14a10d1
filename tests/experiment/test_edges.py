"""Whole experiments at the edges of what settings allow: each ends with finite numbers, or is refused in a sentence."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll import (
    Dataset,
    Experiment,
    InputError,
    LocalRule,
    Population,
    Settings,
    make_runs,
    read_experiment,
    run,
    run_events,
)
from atoll.clustering.clustering import Clustering
from atoll.engine.method import Method
from atoll.evaluation.gradients import client_gradient
from atoll.executors.weighted import why_not_weighted
from atoll.experiment.cluster_waits import work_ends
from atoll.local.batches import Batches
from atoll.local.rule import sgd
from atoll.methods.papers.hierarchical import Phase, hierarchical
from atoll.network.network import Network
from atoll.runs.run_folder import Row, RunFolder
from atoll.settings.file_paths import located
from atoll.support.errors import SettingWarning
from atoll.support.seeds import generator

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": {"dataset": "digits", "clients": 8, "samples": 20},
    "model": {"name": "linear"},
    "local": {"steps": 2},
    "clustering": {"clusters": 2},
    "run": {"executor": "serial"},
}


def experiment(**sections: Any) -> Experiment:
    table = {
        name: {**BASE.get(name, {}), **each} if isinstance(each, dict) else each for name, each in sections.items()
    }
    return Experiment(make_runs(BASE | table)[0])


def losses(folder: Path, **sections: Any) -> list[float]:
    """Return the training loss of each row of a run."""
    made = experiment(**sections)
    made.check()
    return [float(each.row["train_loss"]) for each in run_events(made, folder) if each.row is not None]


def half_frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    frozen = nn.Linear(math.prod(shape), 16).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), frozen, nn.ReLU(), nn.Linear(16, classes))


def single_numbers() -> Dataset:
    inputs = np.linspace(0, 1, 200, dtype=np.float32)
    targets = (inputs > 0.5).astype(int)
    return Dataset("single", inputs, targets, inputs, targets, 2)


class Single(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(1, classes)

    def forward(self, x: Any) -> Any:
        return self.layer(x[:, None])


def single_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    assert shape == ()
    return Single(classes)


FROZEN = {"name": f"{__name__}:half_frozen"}


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "lcfed"])
def test_methods_that_change_gradients_take_frozen_layers(tmp_path: Path, method: str) -> None:
    first, *_, last = losses(tmp_path / "run", model=FROZEN, method={"name": method})
    assert last < first


@pytest.mark.parametrize("xi", ["labels", "gradients", "shares"])
@pytest.mark.parametrize("travels", ["all", "trainable"])
def test_constants_of_the_bound_are_those_of_the_layers_that_train(xi: str, travels: str) -> None:
    clustering = {"method": "feduc", "clusters": 2, "xi": xi, "mu": "estimate"}
    method, model = {"name": "hierarchical"}, {**FROZEN, "travels": travels}
    made = experiment(rounds=10, local={"steps": 1}, method=method, clustering=clustering, model=model)
    assert made.clustering.clusters == 2
    module = made.module
    gradient = client_gradient(module, Batches(made.population.data, module), made.population.indices[:5])
    assert gradient.shape == (16 * 10 + 10,)


def test_fedrc_takes_components_without_a_sample(tmp_path: Path) -> None:
    """Each client holds one label and moves far, so that one component has the least loss on all samples."""
    data = {"clients": 10, "partition": "one-label", "standardise": "none"}
    method = {"name": "fedrc", "clusters": 3, "fraction": 0.1}
    found = losses(tmp_path / "run", rounds=20, data=data, method=method, local={"steps": 10, "lr": 0.5})
    assert np.isfinite(found).all()


@pytest.mark.parametrize("method", [{"name": "scaffold"}, {"name": "flhc", "metric": "cosine", "clusters": 2}])
def test_rounds_at_rate_0_change_nothing(tmp_path: Path, method: dict[str, Any]) -> None:
    """PyTorch's PolynomialLR ends at 0; there an update is zero, and so are K eta."""
    local = {"steps": 2, "schedule": "PolynomialLR", "total_iters": 3}
    found = losses(tmp_path / "run", rounds=8, method=method, local=local)
    assert np.isfinite(found).all()
    assert found[4] == found[-1] != found[1]


def test_a_rate_may_fall_evenly_to_0(tmp_path: Path) -> None:
    """In PyTorch's sums it ends at -7e-19 or so."""
    rates = experiment(rounds=6, local={"schedule": "LinearLR", "end_factor": 0.0}).plan.rule.rates
    assert min(rates) == rates[-1] == 0.0


@pytest.mark.more
def test_krum_takes_events_that_every_client_is_late_for(tmp_path: Path) -> None:
    rows = ["from,to,up_seconds", *(f"{k},a{k % 2},{50.0 if k % 2 else 1.0}" for k in range(8))]
    (tmp_path / "links.csv").write_text("\n".join([*rows, "a0,server,1.0", "a1,server,1.0", ""]))
    method = {"name": "hierarchical", "pattern": "cenasy", "combine": "krum", "byzantine": 0}
    found = losses(
        tmp_path / "run",
        rounds=300,
        method=method,
        local={"steps": 1},
        clustering={"method": "comaw", "clusters": 2},
        network={"file": str(tmp_path / "links.csv")},
        faults={"deadline_seconds": 20.0},
    )
    assert found[-1] < found[0]


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("pattern", ["cenasy", "decsyn"])
def test_an_aggregator_may_stand_in_the_middle_of_all(tmp_path: Path, side: int, pattern: str) -> None:
    """The server is put there as well, a metre off."""
    places = [f"{side * row + column},{10 * column},{10 * row}" for row in range(side) for column in range(side)]
    (tmp_path / "a.csv").write_text("\n".join(["aggregator,x,y", *places, ""]))
    network = {"aggregators_file": str(tmp_path / "a.csv"), "topology": "ring"}
    clustering = {"method": "comaw", "clusters": side**2}
    method = {"name": "hierarchical", "pattern": pattern}
    data = {"clients": 20}
    experiment(rounds=10, data=data, local={"steps": 1}, method=method, clustering=clustering, network=network).check()


def test_single_numbers_are_standardised(tmp_path: Path) -> None:
    data = {"dataset": f"{__name__}:single_numbers", "standardise": "pool"}
    first, *_, last = losses(tmp_path / "run", rounds=10, data=data, model={"name": f"{__name__}:single_model"})
    assert last < first


NETWORKED: dict[str, Any] = {"rounds": 10, "local": {"steps": 1}, "method": {"name": "hierarchical"}}
PRIVATE = {"trust": "server", "clip": 1.0, "noise": 1.0}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"data": {"dataset": "regression", "partition": "planted"}, "clustering": {"method": "major-class"}},
        "clustering.method = 'major-class': needs data with classes",
    ),
    (
        {"data": {"dataset": "regression", "partition": "dirichlet"}},
        "data.partition = 'dirichlet': deals by class, which this data set has not; use another one, such as 'iid'",
    ),
    (
        {"method": {"weights": "equal"}, "privacy": {**PRIVATE, "samples_cap": 50}},
        "method.weights = 'equal': does not go with privacy.samples_cap = 50",
    ),
    (
        {"method": {"name": "pfedme", "weights": "samples"}},
        "method.weights = 'samples': cannot be used with method.name = 'pfedme', which weighs clients its own way",
    ),
    ({"method": {"name": "feddrift", "weights": "equal"}}, "method.weights = 'equal': cannot be used with method.name"),
    *(
        (
            {"method": {"name": name, "clusters": 2}, "travel": {"stages": ["clip"], "clip_norm": 0.1}},
            f"travel.stages = 'clip': cannot be used with method.name = '{name}'",
        )
        for name in ("fesem", "cfl")
    ),
    ({"privacy": {**PRIVATE, "quantile_noise": 3.0}}, "privacy.quantile_noise = 3: needs privacy.quantile"),
]


class Aside(nn.Module):
    """A network with a layer that it does not use."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.used, self.aside = nn.Linear(64, classes), nn.Linear(64, 1)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.used(inputs.flatten(1))


def with_aside(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Aside(classes)


def test_heterogeneity_of_a_model_with_a_layer_that_it_does_not_use(tmp_path: Path) -> None:
    made = experiment(model={"name": f"{__name__}:with_aside"}, run={"heterogeneity": True})
    (first, *_) = [each.row for each in run_events(made, tmp_path / "run") if each.row is not None]
    assert first["h_device"] >= first["h_cluster"] > 0


@pytest.mark.parametrize(("sections", "told"), REFUSED)
def test_what_has_no_meaning_is_refused(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        experiment(**sections).check()
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"seconds": 3.0}, "clustering.seconds = 3.0: has no effect with clustering.objective = 'bound'"),
        ({"mixing": 3.0}, "clustering.mixing = 3.0: has no effect with clustering.objective = 'bound'"),
        (
            {"objective": "progress", "refine": True},
            "clustering.refine = true: has no effect with clustering.objective = 'progress'",
        ),
    ],
)
def test_another_objectives_settings_are_warned_of(own: dict[str, Any], told: str) -> None:
    """They are not refused, so that objectives can be compared in one sweep."""
    with pytest.warns(SettingWarning) as caught:
        assert experiment(**NETWORKED, clustering={"method": "feduc", **own}).clustering.clusters == 2
    assert [str(each.message) for each in caught] == [told]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["0,3", "1"], "row 2 has 1 cells, but the header has 2"),
        (["0,3", "1,2,5"], "row 2 has 3 cells, but the header has 2"),
        (["0,3", "1,"], "could not convert string to float: ''"),
        (["0,nan", "1,2"], "its numbers must be finite"),
        (["0,inf", "1,2"], "its numbers must be finite"),
        (["0,1", "0,2"], "client: must be each number from 0 to 1 once"),
        (["0,1", "7,2"], "client: must be each number from 0 to 1 once"),
    ],
)
def test_attributes_of_clients_are_finite_and_of_each_once(tmp_path: Path, rows: list[str], told: str) -> None:
    (tmp_path / "c.csv").write_text("\n".join(["client,utc_offset", *rows, ""]))
    with pytest.raises(InputError, match=f"c.csv'?: {told}"):
        experiment(data={"clients": 2, "clients_file": str(tmp_path / "c.csv")}).check()


def test_attributes_of_clients_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("client,utc_offset,slots\n1,5,0;2\n0,3,\n")
    made = experiment(data={"clients": 2, "clients_file": str(tmp_path / "c.csv")}).clients.dealt.attributes
    assert made["utc_offset"].tolist() == [3.0, 5.0]
    assert made["slots"].tolist() == [[False] * 3, [True, False, True]]
    (tmp_path / "c.csv").write_text('slots\n0\n""\n')
    alone = experiment(data={"clients": 2, "clients_file": str(tmp_path / "c.csv")}).clients.dealt.attributes
    assert alone["slots"].tolist() == [[True], [False]]
    (tmp_path / "c.csv").write_text("slots,slots\n0,1\n1,0\n")
    with pytest.raises(InputError, match=r"c\.csv: has the column 'slots' twice"):
        experiment(data={"clients": 2, "clients_file": str(tmp_path / "c.csv")}).check()


def rows(made: Experiment, folder: Path, **given: Any) -> list[Row]:
    return [each.row for each in run_events(made, folder, **given) if each.row is not None]


CHOSEN = {"method": {"name": "fedavg", "fraction": 0.25, "select": "power-of-choice", "candidates": 6}}


@pytest.mark.parametrize("codec", ["none", "int8", "topk"])
def test_candidates_that_only_measure_losses_do_not_count_as_trained(tmp_path: Path, codec: str) -> None:
    """Of 8 clients 2 train in a round, as if they had been drawn uniformly."""
    ours, uniform = (
        rows(experiment(**each, travel={"codec": codec}), tmp_path / name)[-1]
        for name, each in (("chosen", CHOSEN), ("drawn", {"method": {"name": "fedavg", "fraction": 0.25}}))
    )
    assert ours["client_updates"] == uniform["client_updates"] == 6
    assert ours["bytes_up"] == uniform["bytes_up"] > 0


@pytest.mark.parametrize("slots", [None, 2])
def test_where_nothing_is_sent_a_lost_client_saves_nothing(tmp_path: Path, slots: int | None) -> None:
    (tmp_path / "c.csv").write_text("client,slots\n" + "".join(f"{k},{k % 2}\n" for k in range(8)))
    data = {"clients_file": str(tmp_path / "c.csv")} if slots else {}
    faults = {"slots_per_day": slots} if slots else {"dropout": 0.5}
    last = rows(experiment(method={"name": "local", "fraction": 1.0}, data=data, faults=faults), tmp_path / "run")[-1]
    assert last["absent" if slots else "dropped"] > 0
    assert (last["bytes_up"], last["bytes_down"]) == (0, 0)


def test_a_limit_of_updates_counts_those_that_came(tmp_path: Path) -> None:
    made = experiment(
        rounds=100, method={"name": "fedavg", "fraction": 1.0}, run={"client_updates": 60}, faults={"dropout": 0.5}
    )
    assert 56 < rows(made, tmp_path / "run")[-1]["client_updates"] <= 60


def test_a_run_that_ends_within_a_round_can_be_replayed(tmp_path: Path) -> None:
    made = experiment(method={"name": "fedcluster", "fraction": 1.0}, run={"client_updates": 12})
    first = rows(made, tmp_path / "first")
    assert 0 < made.method.schedule.rounds < 3
    again = rows(Experiment(made.settings), tmp_path / "again", schedule=tmp_path / "first/schedule.npz")
    assert [each["train_loss"] for each in again] == [each["train_loss"] for each in first]


def test_a_stopped_run_sums_up_what_happened(tmp_path: Path) -> None:
    made = experiment(
        rounds=60,
        local={"steps": 1},
        method={"name": "hierarchical", "pattern": "cenasy", "intra_rounds": 1},
        clustering={"method": "comaw", "clusters": 2},
        network={"seconds_per_sample": [0.001, 0.5]},
        run={"stop_at": "client_updates >= 5"},
    )
    rows(made, tmp_path / "run")
    summary = RunFolder(tmp_path / "run").summary()
    happened = made.method.schedule.events[: summary["events"]]
    active = [cluster for event in happened for cluster in event.active]
    assert summary["cluster_frequencies"] == [active.count(c) / len(active) for c in range(2)]
    assert summary["max_staleness"] == max(max(event.staleness) for event in happened)
    assert len(happened) < len(made.method.schedule)


@pytest.mark.parametrize("name", ["availability", "links", "limits", "nested"])
def test_a_run_goes_on_with_the_files_it_began_with(tmp_path: Path, name: str) -> None:
    def write(change: bool) -> None:
        later = "".join(f"{k},0,up\n{k},5,{'down' if change and k else 'up'}\n" for k in range(8))
        (tmp_path / "availability.csv").write_text("client,seconds,up\n" + later)
        links = "".join(f"{k},a{j},{1 + 9 * change}\n" for k in range(8) for j in range(2))
        (tmp_path / "links.csv").write_text(f"from,to,up_seconds\n{links}a0,server,1\na1,server,1\n")
        (tmp_path / "limits.csv").write_text(f"100\n{100 - 9 * change}\n")
        (tmp_path / "net.toml").write_text('links = "links.csv"\n')

    path = str(tmp_path / f"{name}.csv")
    over: dict[str, Any] = {**NETWORKED, "method": {"name": "hierarchical", "intra_rounds": 1}}
    over |= {
        "availability": {"faults": {"availability_file": path}},
        "links": {"network": {"file": path}, "clustering": {"method": "comaw"}},
        "limits": {"clustering": {"method": "feduc", "time_limit": path}},
        "nested": {"network": {"file": str(tmp_path / "net.toml")}, "clustering": {"method": "comaw"}},
    }[name]
    write(change=False)
    going = run_events(experiment(**over, run={"checkpoint_every": 1}), tmp_path / "run")
    next(each for each in going if each.events_done == 3)
    going.close()
    write(change=True)
    with pytest.raises(InputError, match=rf"{name.replace('nested', 'links')}\.csv\) has changed since"):
        rows(experiment(**over, run={"checkpoint_every": 1}), tmp_path / "run", resume=True)


def test_a_run_that_died_before_its_first_row_can_become_longer(tmp_path: Path) -> None:
    rows(experiment(rounds=1), tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    (tmp_path / "run/metrics.jsonl").write_bytes(b"")
    for file in (tmp_path / "run/checkpoint").iterdir():
        file.unlink()
    assert len(rows(experiment(rounds=4), tmp_path / "run", resume=True)) == 5


@pytest.mark.parametrize("section", [{"method": {"name": "fedem", "clusters": 3}}, {"method": {"name": "fedsoft"}}])
def test_another_methods_models_are_made_anew(section: dict[str, Any]) -> None:
    """A plan makes its experiments beside each other, with one model where they can share it."""
    alone, beside = experiment(**section), experiment(method={"name": "fedavg"}).beside(experiment(**section).settings)
    beside.check()
    assert beside.traffic.message_bytes == alone.traffic.message_bytes


def encoder(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 4))


def test_beside_another_an_encoder_is_its_own_and_drift_is_refused_where_alone() -> None:
    one = experiment(method={"name": "fmcl", "encoder": "start"})
    assert one.initial.serves(one.settings)
    assert not one.initial.serves(experiment(method={"name": "fmcl", "encoder": f"{__name__}:encoder"}).settings)
    drift = {"kind": "partition", "rounds": [1], "concepts": 2}
    drifting = experiment(rounds=3, drift=drift, method={"name": "ifca"})
    drifting.check()
    with pytest.raises(InputError, match=r"drift\.kind = 'partition': cannot be used with method\.name = 'pacfl'"):
        drifting.beside(experiment(rounds=3, drift=drift, method={"name": "pacfl"}).settings).check()


def made_of(one: Experiment) -> list[Any]:
    """Return what an experiment may share with one beside it."""
    networks, clients = one.conditions.networks, one.clients
    first = networks[0]
    speeds = None if first.frequencies is None else first.frequencies.tolist()
    sizes = one.conditions.reported.sizes.tolist()
    compute = first.compute_seconds.tolist()
    return [[*networks], first.aggregators, speeds, sizes, compute, len(clients.dealt.later), one.initial.upload_share]


ON_AIR = {"method": {"name": "hierarchical", "pattern": "cenasy"}, "network": {"frequencies": "transfer"}}
WALKING = {"network": {"metres_per_round": 5.0}}


@pytest.mark.parametrize(
    ("common", "change"),
    [
        (ON_AIR, {"method": {"name": "hierarchical", "pattern": "decasy"}}),
        (ON_AIR, {"clustering": {"clusters": 4}}),
        (WALKING, {"rounds": 6}),
        ({}, {"method": {"name": "centralized"}}),
        ({}, {"travel": {"codec": "int8"}}),
        ({}, {"faults": {"attackers": 0.2, "claimed_samples": 10.0, "attack": "none"}}),
        ({"method": {"name": "ifca"}}, {"drift": {"kind": "partition", "rounds": [1], "concepts": 2}}),
        ({}, {"network": {"seconds_per_sample": 0.5}}),
        ({"network": {"seconds_per_sample": [0.1, 0.2]}}, {"seed": 1}),
    ],
)
def test_beside_another_an_experiment_is_as_it_is_alone(common: dict[str, Any], change: dict[str, Any]) -> None:
    first, alone = experiment(**common), experiment(**common | change)
    assert made_of(first) != made_of(alone)
    assert made_of(first.beside(alone.settings)) == made_of(alone)


def test_weights_by_samples_may_be_by_what_clients_claim() -> None:
    faults = {"attackers": 0.2, "claimed_samples": 10.0, "attack": "none"}
    made = experiment(faults=faults, method={"name": "fedavg", "weights": "samples", "fraction": 1.0})
    assert max(made.method.schedule.events[0].weights) > 5 * min(made.method.schedule.events[0].weights)


@pytest.mark.parametrize("method", ["fedavg", "hierarchical"])
def test_whoever_claims_more_samples_trains_no_longer(method: str) -> None:
    """Else its claim would give an attacker away: it would miss every deadline."""
    faults = {"attackers": 0.2, "attack": "none"}
    honest, lying = (
        experiment(rounds=20, faults=faults | claim, method={"name": method}).method.schedule.events[-1].seconds
        for claim in ({}, {"claimed_samples": 100.0})
    )
    assert honest == lying


def test_without_its_empty_aggregators_a_network_s_clusters_have_one_numbering(tmp_path: Path) -> None:
    over = {"clustering": {"method": "comaw", "clusters": 9}, "method": {"name": "fedcluster"}}
    made = experiment(rounds=1, data={"clients": 4}, **over)
    result = run(made.settings, out=tmp_path / "run")
    used = sorted(set(result.clients()["cluster"].tolist()))
    assert used == list(range(len(used)))
    assert result.model(cluster=used[-1])
    summary = RunFolder(tmp_path / "run").summary()
    assert len(summary["cluster_sizes"]) == len(summary["cluster_frequencies"]) == len(used) < 9


def test_a_run_in_which_nobody_takes_part_is_refused() -> None:
    """The first event has no clients, and the limit leaves no other."""
    over = {"seed": 11, "rounds": 6, "faults": {"dropout": 0.7}, "method": {"name": "fedavg", "fraction": 0.5}}
    with pytest.raises(InputError, match=r"^rounds = 6: no event has a client; end the run later, or ease \[faults\]$"):
        experiment(**over, run={"client_updates": 1}).check()


@dataclass
class Halves:
    """A clustering that is no function, and has no hash."""

    def __call__(self, population: Population) -> list[int]:
        return [client % 2 for client in range(len(population))]


def test_an_object_without_a_hash_is_refused() -> None:
    with pytest.raises(InputError, match=r"clustering\.method: is 'Halves', whose objects have no hash; give a func"):
        Experiment(clustering=Halves())


def ordered(population: Population, order: list = ()) -> list[int]:  # type: ignore[type-arg,assignment]
    return [0] * len(population)


def test_a_bare_list_is_a_list_of_anything() -> None:
    with pytest.raises(InputError, match=r"clustering\.order = 5: must be a list$"):
        make_runs({"clustering": {"method": f"{__name__}:ordered", "order": 5}})


def phased(
    population: Population, clustering: Clustering, network: Network, phases: list[Phase], rule: LocalRule, rounds: int
) -> Method:
    return hierarchical(population, clustering, network, rule, rounds, "censyn", 2, phases)


def test_a_method_of_ones_own_with_phases_has_no_waits() -> None:
    assert work_ends(experiment(method={"name": f"{__name__}:phased"}, local={"steps": 1})) is None


def test_seeds_have_the_range_that_they_say(tmp_path: Path) -> None:
    rows(experiment(rounds=1, seed=10**15), tmp_path / "run")
    with pytest.raises(InputError, match=r"^seed = 1764000000000000000: must be at most 1e\+15$"):
        experiment(seed=1_764_000_000_000_000_000)


@pytest.mark.parametrize("setting", ["seed", "rounds", "clustering.clusters"])
def test_a_whole_number_of_more_than_64_bits_is_too_large(setting: str) -> None:
    digits = "1234567890123456789012345"  # --set takes it as text, since TOML has no such number
    with pytest.raises(InputError, match=rf"^{setting} = '{digits}': must be at most 1e\+15$"):
        make_runs(read_experiment("quickstart"), changes=[f"{setting}={digits}"])


def test_jobs_are_drawn_from_idle_clients_one_by_one() -> None:
    clients, rng = 12, generator(0, "cohort")
    made = experiment(rounds=8, data={"clients": clients}, method={"name": "fedbuff", "concurrency": 12, "buffer": 3})
    drawn: list[int] = []
    while len(drawn) < clients:
        if (client := int(rng.integers(clients))) not in drawn:
            drawn.append(client)
    first = made.method.schedule.events[0]
    assert set(first.cohort.tolist()) <= set(drawn)
    assert first.began == (0.0,) * 3


def test_a_longer_run_has_the_probes_of_one_that_was_never_shorter(tmp_path: Path) -> None:
    run = {"probes": ["trained_client_accuracy"]}
    rows(experiment(rounds=2, run=run), tmp_path / "a")
    rows(experiment(rounds=4, run=run), tmp_path / "a", resume=True)
    whole = rows(experiment(rounds=4, run=run), tmp_path / "b")
    found = RunFolder(tmp_path / "a").rows()
    assert [each["trained_client_accuracy"] for each in found] == [each["trained_client_accuracy"] for each in whole]


def test_files_are_looked_for_beside_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"model": {"start": "a.safetensors"}, "clustering": {"time_limit": "limits.csv"}}
    for name in ("a.safetensors", "limits.csv"):
        (tmp_path / name).write_text("")
    found = located(table, tmp_path)
    assert found["model"]["start"] == str(tmp_path / "a.safetensors")
    assert found["clustering"]["time_limit"] == str(tmp_path / "limits.csv")
    own = {"data": {"start": "a.safetensors"}}
    assert located(own, tmp_path) == own  # a setting of one's own data set
    assert located({"clustering": {"time_limit": 3.0}}, tmp_path) == {"clustering": {"time_limit": 3.0}}
    (tmp_path / "base").mkdir()
    named = {"data": {"tokenizer": "base"}, "model": {"path": "base"}}
    beside = str(tmp_path / "base")
    assert located(named, tmp_path) == {"data": {"tokenizer": beside}, "model": {"path": beside}}
    assert located(named, tmp_path / "else") == named  # the name of a model on the hub


PATHS: dict[str, dict[str, Any]] = {
    "data.clients_file": {},
    "data.root": {},
    "data.partition_file": {"partition": "file"},
    "data.tokenizer": {"dataset": "table", "target": "y"},
    "model.start": {},
    "model.path": {"name": "pretrained"},
    "clustering.time_limit": {},
    "network.edges": {"topology": "edges"},
    **{f"network.{key}": {} for key in ("file", "clients_file", "aggregators_file", "trace_file")},
    "faults.availability_file": {},
}


@pytest.mark.parametrize(("setting", "others"), PATHS.items())
def test_every_path_may_begin_at_home(
    setting: str, others: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    section, key = setting.split(".")
    table: dict[str, Any] = {"method": {"name": "hierarchical"}, section: {**others, key: "~/x.csv"}}
    assert getattr(Settings(**table), section).get(key) == str(tmp_path / "x.csv")


def test_a_score_that_rises_is_waited_for(tmp_path: Path) -> None:
    made = experiment(
        rounds=4, local={"lr": 0.05}, run={"probes": ["client_score"], "stop_at": "client_score patience 2"}
    )
    found = rows(made, tmp_path / "run")
    assert [each["client_score"] for each in found] == sorted(each["client_score"] for each in found)
    assert len(found) == 5


class Dropping(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x: Any) -> Any:
        return self.layer(nn.functional.dropout(x.flatten(1), 0.5, self.training))


def dropping(shape: tuple[int, ...], classes: int) -> nn.Module:
    assert math.prod(shape) == 64
    return Dropping(classes)


@pytest.mark.parametrize("executor", ["cores", "auto", "serial"])
def test_functional_dropout_draws_from_the_seed(tmp_path: Path, executor: str) -> None:
    found = []
    for state in (0, 1):
        torch.manual_seed(state)
        run = {"executor": executor}
        made = experiment(local={"steps": 1}, model={"name": f"{__name__}:dropping"}, run=run)
        found.append([each["train_loss"] for each in rows(made, tmp_path / str(state))])
    assert found[0] == found[1]


class Spectral(nn.Module):
    """A layer with complex weights, as Fourier layers have them."""

    def __init__(self, numbers: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(numbers, outputs, dtype=torch.complex64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs.to(torch.complex64) @ self.weight).real


def spectral(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Spectral(math.prod(shape), classes))


def shifted(shape: tuple[int, ...], classes: int) -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
    made.register_buffer("shift", torch.ones(classes, dtype=torch.float16))
    return made


def frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
    made[1].register_parameter("fixed", nn.Parameter(torch.ones(classes, dtype=torch.bfloat16), requires_grad=False))
    return made


class Noting(nn.Linear):
    """A layer with a state of its own beside its tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 2}

    def set_extra_state(self, state: Any) -> None:
        """Take it."""


def noting(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Noting(math.prod(shape), classes))


def marked(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.ModuleDict({"a@b": nn.Linear(math.prod(shape), classes)}))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("marked", "'1.a@b.weight' has an '@', which marks optimisers' moments; rename it"),
        ("spectral", "'1.weight' is of complex64, whose means would be wrong or inexact; make it float32"),
        ("shifted", "'shift' is of float16, whose means would be wrong or inexact; make it float32"),
        ("frozen", "'1.fixed' is of bfloat16, whose means would be wrong or inexact; make it float32"),
        ("noting", "its state '1._extra_state' is no tensor"),
    ],
)
def test_models_that_are_not_tensors_of_real_numbers_are_refused(name: str, told: str) -> None:
    with pytest.raises(InputError, match=rf"model\.name = '.*:{name}': {told}"):
        experiment(model={"name": f"{__name__}:{name}"}).check()


def test_what_stays_at_clients_may_be_of_half_precision() -> None:
    experiment(model={"name": f"{__name__}:frozen", "travels": "trainable"}).check()


@pytest.mark.parametrize("layer", [nn.LSTM(4, 4, 2, dropout=0.1), nn.MultiheadAttention(4, 2, dropout=0.1)])
def test_layers_that_drop_are_not_weighted(layer: Any) -> None:
    assert "whose output depends on the rest of the batch" in why_not_weighted(LocalRule(sgd, 0.1, 1), layer)
    layer.dropout = 0.0
    assert not why_not_weighted(LocalRule(sgd, 0.1, 1), layer)


class Centring(nn.Module):
    """A layer of one's own whose output depends on the batch: it takes off its mean."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs - inputs.mean(dim=0)


def centring(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Centring(), nn.Linear(math.prod(shape), classes))


class Tracking(nn.Module):
    """A layer of one's own that keeps the mean of what it has seen, each step's a tenth, and changes nothing."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += (inputs.mean() - self.seen) / 10
        return inputs


def tracking(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Tracking(), nn.Linear(math.prod(shape), classes))


@pytest.mark.parametrize("name", ["centring", "tracking", "dropping"])
def test_clients_are_not_weighted_together_where_their_samples_would_mix(name: str) -> None:
    model, local = {"name": f"{__name__}:{name}"}, {"steps": 1}
    with pytest.raises(InputError, match="output for a sample depends on the rest of the batch"):
        _ = experiment(local=local, model=model, run={"executor": "weighted"}).execution.choice
    assert experiment(local=local, model=model).execution.choice.name != "weighted"
    assert not experiment(local=local, model=model).execution.choice.whole
    plain = experiment(local=local, model={"name": "linear"}, run={"executor": "weighted"})
    assert plain.execution.choice.name == "weighted"
