"""Every pair of stages, with every method: it runs, to the same bits on every executor, or is refused with both names.

A method that is added to its table is tested here without being named; a stage is, once it is in `STAGES`.
"""

import importlib.util
import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from atoll import ClientTask, Experiment, InputError, RunError, State, init, train
from atoll.engine.cohorts import Executor
from atoll.methods.named_methods import METHODS
from tests.clusters import nodes
from tests.fleets import join, open_sites
from tests.memory_fleet import MemoryFleet
from tests.methods.running import equal
from tests.methods.test_every_method import experiment
from tests.tiers import thinned

pytest.importorskip("dp_accounting")

PRIVACY = ("privacy.clip=1.0", "privacy.noise=0.5", "privacy.delta=1e-3")
STAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "stays": (('model.travels=["*[12].*"]',), "model.travels"),
    "attack": (("faults.attackers=0.25",), "faults.attackers"),
    "noise": (("privacy.trust=client", "privacy.identity_epsilon=2.0", *PRIVACY), "privacy.trust"),
    "clip": (('travel.stages=["clip"]', "travel.clip_norm=0.1"), "travel.stages"),
    "own": (('travel.stages=["tests.engine.own_stage:sign"]',), "travel.stages"),
    "codec": (("travel.codec=int8",), "travel.codec"),
    "codec that forgets": (("travel.codec=topk", "travel.feedback=false"), "travel.codec"),
    "masks": (("secure.sums=true", "secure.least_nodes=2", "method.fraction=1.0"), "secure"),
    "trusted server": (("privacy.trust=server", "privacy.count_noise=0.5", *PRIVACY), "privacy.trust"),
}
ONE_SETTING = ({"noise", "trusted server"}, {"codec", "codec that forgets"})
PAIRS = [pair for pair in combinations(STAGES, 2) if set(pair) not in ONE_SETTING]
FIRST = [pair for pair in PAIRS if "codec" in pair or pair in (("stays", "attack"), ("masks", "trusted server"))]
"""Pairs that are enough to see that a method goes with stages at all."""


def made(method: str, pair: tuple[str, str], *more: str) -> Experiment | str:
    """Return a method with a pair of stages, or the sentence that refuses it."""
    changes = [change for stage in pair for change in STAGES[stage][0]]
    if pair == ("clip", "own"):
        changes.append('travel.stages=["clip", "tests.engine.own_stage:sign"]')
    if "fraction" in "".join(changes) and method not in ("fedavg", "fedcluster", "ifca"):
        changes.remove("method.fraction=1.0")
    try:
        found = experiment(method, "model.name=tests.engine.own_stage:layered", *changes, *more)
        found.check()
    except InputError as error:
        return str(error)
    return found


def names_both(sentence: str, pair: tuple[str, str]) -> bool:
    """Return whether a refusal names a stage, and the stage or setting that it cannot be used with."""
    told = [STAGES[stage][1] for stage in pair]
    others = ("method.", "local.", "model.", "run.", "faults.", "clustering.")
    return any(
        name in sentence and (other in sentence or any(each in sentence.replace(name, "", 1) for each in others))
        for name, other in (told, told[::-1])
    )


def carry(found: Experiment, state: State | None = None, executor: Executor | None = None) -> list[State]:
    """Return the state after each event, from a state or from the start."""
    executor = executor or found.execution.make_executor()
    try:
        begun = init(found.method, *found.training.initial_models()) if state is None else state
        return [step.state for step in train(found.method, executor, begun)]
    finally:
        executor.close()


def bits(one: State, other: State) -> bool:
    """Return whether two states are bit-identical."""
    models = zip((*one.starts, *one.published), (*other.starts, *other.published), strict=True)
    kept = one.clients.keys() == other.clients.keys() and all(
        equal(dict(each), dict(other.clients[client])) for client, each in one.clients.items()
    )
    return kept and all(equal(dict(own), dict(theirs)) for own, theirs in models)


def compare(method: str, pairs: list[tuple[str, str]], *executors: str) -> list[str]:
    """Return what is wrong with a method's pairs of stages."""
    wrong = []
    for pair in pairs:
        found = made(method, pair, "run.executor=serial")
        if isinstance(found, str):
            wrong += [] if names_both(found, pair) and "\n" not in found else [f"{method}, {pair}: {found}"]
            continue
        try:
            states = carry(found)
        except RunError as error:
            wrong.append(f"{method}, {pair}: {error}")
            continue
        half = states[len(states) // 2]
        if half is not states[-1] and not bits(carry(found, half)[-1], states[-1]):
            wrong.append(f"{method}, {pair}: resumed, it differs")
        for executor in executors:
            other = made(method, pair, f"run.executor={executor}", "run.workers=2")
            assert not isinstance(other, str), other
            if not bits(carry(other)[-1], states[-1]):
                wrong.append(f"{method}, {pair}: {executor} differs from serial")
    return wrong


FEW = ("fedavg", "ifca", "scaffold")
"""Methods of different kinds: plain, with clusters that clients find, with a trainer and a state of its own."""


@pytest.mark.more
@pytest.mark.parametrize("method", thinned(FEW, 1))
def test_pairs_with_a_codec_run_or_are_refused_with_both_names(method: str) -> None:
    assert compare(method, FIRST) == []


@pytest.mark.more
@pytest.mark.parametrize("method", METHODS)
def test_every_pair_runs_and_resumes_or_is_refused_with_both_names(method: str) -> None:
    assert compare(method, PAIRS) == []


@pytest.mark.more
@pytest.mark.parametrize("method", FEW)
def test_every_pair_runs_on_workers_to_the_bits_of_serial(method: str) -> None:
    assert compare(method, PAIRS, "cores") == []


@pytest.mark.slow
@pytest.mark.parametrize("method", [method for method in METHODS if method not in FEW])
def test_so_it_does_with_every_other_method(method: str) -> None:
    assert compare(method, PAIRS, "cores") == []


def test_pairs_that_go_together_do() -> None:
    """FedAvg: so that refusing everything would be seen."""
    together = [pair for pair in PAIRS if not isinstance(made("fedavg", pair), str)]
    assert len(together) == 21, together


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the package ray is not installed")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with nodes(2) as started:
        yield started.address


@pytest.mark.slow
@pytest.mark.timeout(900)  # joining a cluster takes seconds, for each pair
@pytest.mark.parametrize("method", ["fedavg", "fedcluster", "cfl-mgd", "scaffold"])
def test_every_pair_runs_on_ray_to_the_same_bits(method: str, ray_address: str) -> None:
    ran = 0
    for pair in PAIRS:
        one = made(method, pair, "run.executor=serial")
        if isinstance(one, str):
            continue
        other = made(method, pair, "run.executor=ray", f"run.address={ray_address}", "run.workers=2")
        assert not isinstance(other, str), other
        assert bits(carry(one)[-1], carry(other)[-1]), f"{method}, {pair}: ray differs from serial"
        ran += 1
    assert ran > 4


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleets")


@pytest.mark.more
@pytest.mark.parametrize("method", ["fedavg", "fedcluster"])
def test_every_pair_runs_on_a_fleet_to_the_bits_of_simulation(method: str, places: Path) -> None:
    """Without noise, which on a fleet is the system's. Clients of a fleet attack as they like, not as settings say."""
    ran = 0
    for pair in PAIRS:
        changes = ("privacy.noise=0.0",) if {"noise", "trusted server"} & {*pair} else ()
        one = made(method, pair, *changes, "run.executor=serial")
        if isinstance(one, str) or {"attack", "masks"} & {*pair}:  # masks on a fleet: tests/secure
            continue
        other = made(method, pair, *changes, "run.executor=fleet")
        assert not isinstance(other, str), other
        place = places / f"{method}-{'-'.join(pair)}"
        executor = join(other, MemoryFleet(open_sites(other, place)))
        simulated, real = carry(one), carry(other, executor=executor)
        assert executor.refused == {}, (pair, executor.refused)
        for each, theirs in zip(simulated, real, strict=True):
            assert equal(each.server, theirs.server), pair
        ran += 1
    assert ran > 8


def test_a_stage_of_ones_own_is_the_twin_by_hand() -> None:
    """The signs of one client's updates, and what they lose, followed for three events by hand."""
    found = made("fedavg", ("own", "attack"), "faults.attackers=0", "run.executor=serial")
    assert not isinstance(found, str)
    plain = made("fedavg", ("attack", "attack"), "faults.attackers=0", "run.executor=serial")
    assert not isinstance(plain, str)
    trainer = found.training.trainer()
    (start,) = found.training.initial_models()
    bare = plain.training.trainer()
    lost = {name: 0.0 * own for name, own in start.items()}
    state = None
    for event in range(3):
        trained = bare.train(ClientTask(event, event, 0, 0, 1, start)).model
        update = trainer.train(ClientTask(event, event, 0, 0, 1, start, state=state))
        state = update.state
        for name, own in trained.items():
            wanted = own - start[name] + lost[name]
            sent = wanted.abs().mean() * (2.0 * (wanted > 0) - 1)
            assert update.model[name].equal(start[name] + sent)
            lost[name] = wanted - sent


def test_a_stage_with_a_server_half_alone_is_carried_out() -> None:
    """As a fleet does."""
    stage = 'travel.stages=["tests.engine.own_stage:back"]'
    found = experiment("fedavg", stage)
    (start,) = found.training.initial_models()
    server = carry(found)[-1].server
    assert server is not None
    assert all(own.allclose(start[name], rtol=1e-6) for name, own in server.items())
    with pytest.raises(InputError, match=r"weighted': travel.stages = 'tests.* changes each client's update"):
        experiment("fedavg", stage, "run.executor=weighted").check()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            ['travel.stages=["clip", "clip"]'],
            "travel.stages = ['clip', 'clip']: names 'clip' twice; each may come once",
        ),
        (['travel.stages=["clib"]'], "travel.stages = 'clib': unknown, did you mean 'clip'?"),
        (["travel.stages=clip"], "travel.stages = 'clip': must be a list"),
        (
            ['travel.stages=["tests.engine.own_stage:sign", "clip"]'],
            "travel.stages = 'clip': cannot be used with travel.stages = 'tests.engine.own_stage:sign': "
            "an earlier stage sends something other than a model",
        ),
        (['travel.stages=["tests.engine.own_stage:boastful"]'], "its client half sends"),
        (['travel.stages=["tests.engine.own_stage:halved"]'], "its server half returns"),
        (
            ['travel.stages=["tests.engine.own_stage:forgetful"]'],
            "its client half says keeps_state = True, but returned no state",
        ),
        (['travel.stages=["tests.engine.own_stage:no_stage"]'], "must return an atoll.Stage, it returned 'int'"),
        (
            ['travel.stages=["tests.engine.own_stage:sign"]', "run.executor=stacked"],
            "run.executor = 'stacked': travel.stages = 'tests.engine.own_stage:sign' changes each client's update",
        ),
        (["travel.clip_norm=1.0"], "travel.clip_norm: is taken by travel.stages = 'clip'"),
        (['travel.stages=["clip"]', "travel.clip_norm=0"], "travel.clip_norm = 0: must be"),
    ],
)
def test_bad_stages_are_told_before_anything_is_written(changes: list[str], told: str) -> None:
    with pytest.raises(InputError) as refused:
        experiment("fedavg", *changes).check()
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
