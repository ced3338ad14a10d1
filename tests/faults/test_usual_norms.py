"""Norms of updates that are usual are learned, and what is far longer does not count."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import ClientTask, RunError, Trainer, cycling, init, read_model, train
from atoll.aggregation.screening import Screening
from atoll.aggregation.usual_norms import ENOUGH, KEPT, Norms, are_few, limit_of, limits_of, remember, require_usual
from atoll.engine.engine import merge
from atoll.engine.run_state import State
from atoll.engine.train_events import train_events
from atoll.runs.checkpoint import lay_out, restore
from atoll.runs.run import run_events
from atoll.runs.variants import replaying, with_fleet
from tests.faults.test_dropouts import POPULATION, RULE, TWO, bits, schedule_of, without
from tests.faults.test_dropouts import run_events as run
from tests.fleet.test_hostile import assert_replays, carry, hostile
from tests.fleets import open_sites, replying
from tests.memory_fleet import MemoryFleet
from tests.methods.test_every_method import experiment
from tests.problems import as_vector, linear_module
from tests.tiers import thinned

LEARNS = Screening(tolerate=False, usual_norms="refuse")


def limit_by_hand(norms: Sequence[float], clients: Sequence[int]) -> float:
    """The limit in NumPy, in another order of operations."""
    found, whose = np.asarray(norms), np.asarray(clients)
    votes = [np.median(found[whose == client]) for client in set(clients)]
    if len(votes) < 3:
        return float(100 * max(votes)) if len(votes) == 2 else float(np.inf)
    middle = float(np.median(votes))
    if found.size < 10:
        return 10 * middle
    logs = np.log10(found / middle)
    return float(middle * 10 ** np.clip(6 * 1.4826 * np.median(np.abs(logs)), 1.0, 2.0))


def of_own(norms: Sequence[float], first: int = 0) -> Norms:
    """Return norms, each of another client."""
    return tuple(zip(norms, range(first, first + len(norms)), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_the_limit_is_that_by_hand(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for count in (0, 1, 2, 3, 4, 9, 100):
        norms = np.exp(rng.normal(0, seed / 2, count)).tolist()
        for many in (1, 2, 3, 100):
            clients = rng.integers(many, size=count).tolist()
            found = tuple(zip(norms, clients, strict=True))
            assert limit_of(found) == pytest.approx(limit_by_hand(norms, clients), rel=1e-9)
            nothing = of_own([0.0, float("inf"), float("nan")], 1000)
            assert limit_of((*found, *nothing)) == limit_of(found)


@pytest.mark.parametrize("evil", [1e-300, 1e-3, 1e3, 1e11, 1e300])
def test_a_minority_cannot_move_the_limit_beyond_what_honest_clients_differ_by(evil: float) -> None:
    honest = np.exp(np.random.default_rng(0).normal(0, 0.3, 60)).tolist()
    assert 8 < limit_of((*of_own(honest), *of_own([evil] * 40, 60))) < 150
    one = ((evil, 99),) * 90  # one that trains much more often than the others
    assert 8 < limit_of((*of_own(honest[:10]), *one)) < 150
    assert 8 < limit_of((*of_own(honest[:3]), *one[:6])) < 150


def test_the_latest_norms_are_remembered() -> None:
    many = tuple((float(norm), norm) for norm in range(90))
    assert remember(many, many[:20]) == (*many[10:], *many[:20])
    assert len(remember(many, many)) == KEPT


def test_what_counted_too_early_stops_the_run_once_it_is_known() -> None:
    """Of one update nobody knows whether it is too long; of ten, one that was accepted before the others."""
    honest = tuple((1.0 + client / 10, client) for client in range(8))
    found = partial(limits_of, 3, name_of=lambda client: f"client {client}")
    early = ((9e11, 5), *honest)
    with pytest.raises(RunError, match=r"^event 3: .* of client 5 \(9e\+11\) have counted, .* up to 130\)"):
        found([honest, early], ((1.0, 8),))
    assert found([early], ()) == [limit_of(early)]  # nine are too few to accuse anybody
    late = early * 3  # after so many, usual norms may have shrunk
    assert found([late], ((1.0, 8),)) == [limit_of((*late, (1.0, 8)))]
    assert found([((60.0, 5), *honest)], ((1.0, 8),))[0] < 20, "honest norms may shrink"


@pytest.mark.parametrize("evil", [1e-9, 9e11])
def test_of_two_clients_none_decides(evil: float) -> None:
    """In one event the longer is refused while there may be others; after ten updates the run stops."""
    found, pair = partial(limits_of, 3, name_of=lambda client: f"client {client}"), ((evil, 0), (1.0, 1))
    assert found([()], pair) == [100 * min(evil, 1.0)]
    assert found([()], ((1.0, 0), (100.0, 1))) == [100 * 100.0]  # so far apart they may be
    assert found([((evil, 0),) * 10], ((1.0, 1),)) == [100 * max(evil, 1.0)]  # the second to come is not refused
    for known in (((evil, 0),) * 10, ((1.0, 1),) * 10, pair * 5):
        with pytest.raises(RunError, match=r"^event 3: updates of client \d .* and with two clients nobody can tell"):
            found([known], pair)
    with pytest.raises(RunError, match="with two clients nobody can tell"):
        found([pair * 5], pair[:1])  # both are known, whoever trains now
    assert found([((2.0, 0), (1.0, 1)) * 5], ((evil, 0), (1.0, 1))) == [200.0]  # who was usual before is known
    assert are_few(pair * 50)
    assert not are_few((*pair * 5, (1.0, 2)))


@pytest.mark.parametrize("cores", thinned([False, True], 1))
def test_a_run_with_far_results_is_the_run_without_those_clients(cores: bool) -> None:
    schedule, broken = schedule_of("cycling"), [1, 4]
    found = run(schedule, dict.fromkeys(broken, "far"), LEARNS, cores)
    assert bits(found) == bits(run(without(schedule, broken), {}, Screening(), cores))
    count = np.cumsum([np.isin(event.cohort, broken).sum() for event in schedule.events])
    assert [state.refused.get("unusual", 0) for state in found] == count.tolist()
    assert count[-1] > 3


def test_honest_runs_lose_nobody_and_norms_are_those_of_the_updates() -> None:
    schedule = schedule_of("cycling")
    found, plain = run(schedule, {}, LEARNS), run(schedule, {}, Screening())
    assert bits(found) == bits(plain)
    assert not found[-1].refused
    module = linear_module(seed=2)
    trainer, start = Trainer(module, POPULATION, RULE, seed=7), read_model(module)
    first = schedule.events[0]
    trained = [trainer.train(ClientTask(0, 0, 0, first.active[0], k, start)).model for k in first.cohort.tolist()]
    assert [client for _, client in found[0].norms] == first.cohort.tolist()
    assert [norm for norm, _ in found[0].norms] == pytest.approx(
        [float(np.linalg.norm(as_vector(m) - as_vector(start))) for m in trained]
    )


def states(pattern: str, one_by_one: bool) -> list[State]:
    settings = (
        "faults.usual_norms=refuse",
        "faults.attackers=0.2",
        "faults.attack=noise",
        "faults.attack_strength=1e4",
    )
    found = experiment("hierarchical", f"method.pattern={pattern}", "rounds=24", *settings)
    method, executor = found.method, found.execution.make_executor()
    state = init(method, *found.training.initial_models())
    if not one_by_one:
        return [step.state for step in train(method, executor, state)]
    after = []
    for event in method.schedule.events:
        models, layout = lay_out(state)  # as if the run were resumed before each event
        tensors = {f"{number}/{name}": own for number, model in enumerate(models) for name, own in model.items()}
        resumed = restore(layout, tensors)
        (trained,) = train_events(method, executor, resumed, [event])
        state = merge(method, resumed, trained).state
        after.append(state)
    return after


@pytest.mark.parametrize("pattern", ["censyn", "cenasy", "decsyn", "decasy"])
def test_limits_do_not_depend_on_which_events_are_trained_together_or_where_a_run_resumes(pattern: str) -> None:
    together, alone = states(pattern, False), states(pattern, True)
    assert bits(together) == bits(alone)
    assert [(each.norms, each.usual, each.refused) for each in together] == [
        (each.norms, each.usual, each.refused) for each in alone
    ]
    assert together[-1].refused["unusual"] > 0


def test_if_most_of_an_event_is_unusual_the_run_stops_and_names_the_clients() -> None:
    schedule = cycling(POPULATION, TWO, 3, order="fixed")
    done = sum(len(event.cohort) for event in schedule.events[:4])
    assert done >= ENOUGH
    late = {schedule.events[4].index}
    with pytest.raises(RunError, match=r"event 4: 4 of 4 updates are much longer than usual .* of client \d \(\d"):
        run(schedule, dict.fromkeys(range(8), "far"), LEARNS, during=late)
    noted = run(schedule, dict.fromkeys(range(8), "far"), replace(LEARNS, usual_norms="note"), during=late)
    assert not noted[-1].refused
    require_usual(0, 2, {1: 5.0, 2: 5.0}, 1.0)  # two may be attackers
    require_usual(0, 3, {1: 5.0, 2: 5.0, 3: 5.0}, 1.0)
    with pytest.raises(RunError, match="and 2 more; the model before the event is kept"):
        require_usual(0, 3, dict.fromkeys(range(12), 5.0), 1.0)


def test_a_largest_norm_that_refuses_everybody_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    made = experiment("fedavg", "method.fraction=1.0", "faults.max_update_norm=1e-9", "run.evaluate_every=1")
    with pytest.raises(
        RunError, match=r"^after event 0, .*: all 8 results are longer than faults.max_update_norm = 1e-09$"
    ):
        list(run_events(made, tmp_path / "run"))


@pytest.mark.parametrize("far", [3, 4])
def test_on_a_fleet_it_ends_the_run_only_if_nobody_was_accepted(far: int, tmp_path: Path) -> None:
    made = hostile(faults={"max_update_norm": 5.0}, rounds=1)
    moved = replying(lambda head, model: (head, {key: own + 1e4 for key, own in model.items()}))
    fleet = MemoryFleet(open_sites(made, tmp_path / "data"), {f"node-{place}": moved for place in range(far)})
    if far == 4:
        with pytest.raises(RunError, match=r"all 4 results are longer than faults.max_update_norm = 5"):
            carry(made, fleet, tmp_path / "live")
        return
    rows, _ = carry(made, fleet, tmp_path / "live")
    assert (rows[-1]["client_updates"], rows[-1]["refused_too_large"]) == (1, 3)


@pytest.mark.parametrize("times", [30.0, 9e11])
@pytest.mark.parametrize("name", thinned(["fedavg", "fedcluster", "censyn", "cenasy", "ifca"]))
def test_by_default_a_fleet_refuses_what_would_ruin_the_mean_and_replays_say_the_same(
    name: str, times: float, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"name": name, "fraction": 1.0} | ({"clusters": 2} if name == "ifca" else {})
    if name in ("censyn", "cenasy"):
        how = {"name": "hierarchical", "pattern": name, "intra_rounds": 1}
    made = hostile(method=how)
    assert made.settings.faults.usual_norms is None
    honest, _ = carry(made, MemoryFleet(open_sites(made, tmp_path / "data")), tmp_path / "honest")
    far = replying(lambda head, model: (head, {key: own + times for key, own in model.items()}))
    fleet = MemoryFleet(open_sites(made, tmp_path / "data"), {"node-1": far})
    rows, told = carry(made, fleet, tmp_path / "live")
    assert rows[-1]["refused_unusual"] == rows[-1]["client_updates"] / 3
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.5 * (rows[0]["train_loss"] - honest[-1]["train_loss"])
    assert any("node 'node-1': 1 refused or missing (unusual 1)" in sentence for sentence in told)
    assert 0 < rows[-1]["norm_limit"] < 100
    assert_replays(made, tmp_path)
    again = replaying(with_fleet(made), tmp_path / "replay" / "schedule.npz")
    assert again.settings.faults.usual_norms == "note", "a replay's schedule says whose results count, too"


@pytest.mark.more
@pytest.mark.parametrize("name", thinned(["scaffold", "cfl-mgd"], 1))
def test_what_travels_beside_the_model_is_refused_too(name: str, tmp_path: Path) -> None:
    """Moments and control variates far from the others' would ruin the next start, and all honest updates with it."""
    method = {"name": name, "fraction": 1.0} | ({"clusters": 1} if name == "cfl-mgd" else {})
    made = hostile(method=method, rounds=8, data={"clients": 6, "samples": 60}, local={"steps": 5, "lr": 0.1})
    honest, _ = carry(made, MemoryFleet(open_sites(made, tmp_path / "data")), tmp_path / "honest")
    assert honest[-1]["client_updates"] == 48
    far = replying(lambda head, model: (head, {key: own + 1e4 * ("@" in key) for key, own in model.items()}))
    fleet = MemoryFleet(open_sites(made, tmp_path / "data"), {"node-1": far})
    rows, _ = carry(made, fleet, tmp_path / "live")
    assert (rows[-1]["refused_unusual"], rows[-1]["client_updates"]) == (8, 40)
    assert rows[-1]["train_loss"] < honest[-1]["train_loss"] + 0.2 * (rows[0]["train_loss"] - honest[-1]["train_loss"])
    if name == "cfl-mgd":  # SCAFFOLD's clients keep a state, which in a replay is at the server
        assert_replays(made, tmp_path)


@pytest.mark.parametrize("importance", thinned([5.0, 0.0, -1.6], 1))
def test_an_importance_that_is_no_share_is_refused(importance: float, tmp_path: Path) -> None:
    made = hostile(method={"name": "fedsoft", "clusters": 2, "fraction": 1.0}, data={"clients": 6, "samples": 40})
    told = torch.full((2,), importance)
    false = replying(lambda head, model: (head, model | {"importance": told}))
    fleet = MemoryFleet(open_sites(made, tmp_path / "data"), {"node-1": false})
    rows, _ = carry(made, fleet, tmp_path / "live")
    assert rows[-1]["refused_wrong_form"] == made.settings.rounds
    assert rows[-1]["client_updates"] == 5 * made.settings.rounds
