"""IFCA and CFL-MGD against a slow twin written by hand in NumPy from Algorithm 1, and their reductions to the bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from atoll import InputError, LocalRule, Method, Population, Serial, Step, Trainer, fedavg, init, make_population, train
from atoll.aggregation.mean import share_layers
from atoll.local.models import Model
from atoll.local.rule import sgd
from atoll.local.weights import read_model
from atoll.methods.papers.cfl_mgd import cfl_mgd
from atoll.methods.papers.ifca import Option, choose_start, first_layers, ifca
from atoll.support.arrays import Floats
from atoll.support.seeds import generator
from tests.problems import as_vector, classification, linear_module, network, quadratics

SEED = 5
POPULATION = quadratics(clients=7)
LR, STEPS, BATCH = 0.05, 3, 4


def loss(w: Floats, client: int, rows: Any = None) -> float:
    own = POPULATION.samples(client) if rows is None else rows
    x, y = POPULATION.data.inputs[own], POPULATION.data.targets[own]
    return float(np.mean((x @ w - y) ** 2) / 2)


def gradient(w: Floats, rows: Any) -> Floats:
    x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
    return x.T @ (x @ w - y) / len(y)


def twin(
    chi: list[Floats],
    rounds: int,
    fraction: float,
    beta: float,
    option: Option,
    steps: int,
    decay: float = 1.0,
    mu: float = 0.0,
    parts: int = 0,
) -> tuple[list[Floats], list[list[int]]]:
    chi, u = [w.copy() for w in chi], [np.zeros(3) for _ in chi]
    chosen = []
    for t in range(rounds):
        size = max(1, round(fraction * 7))
        m_t = np.arange(7)
        if size < 7:
            m_t = np.sort(generator(SEED, "cohort", t).choice(7, size, replace=False))
        picks, results = [], []
        for i in m_t:
            own = POPULATION.samples(int(i))
            mine, theirs = own, own
            if parts:
                order = generator(SEED, "resample", int(i)).permutation(len(own))
                pieces = np.array_split(own[order], parts)
                mine, theirs = pieces[2 * t], pieces[2 * t + 1]
            p = int(np.argmin([loss(w, int(i), mine) for w in chi]))
            w, v = chi[p].copy(), u[p].copy()
            batches = generator(SEED, "batches", t, 0, int(i)).integers(len(theirs), size=(steps, BATCH))
            for h in range(steps):
                v = beta * v + gradient(w, theirs[batches[h]]) + mu * (w - chi[p])
                w = w - LR * decay**t * v
            picks.append(p)
            results.append((w, v))
        for p in range(len(chi)):
            mine_ = [k for k, pick in enumerate(picks) if pick == p]
            if not mine_:
                continue
            n = [POPULATION.sizes[m_t[k]] if option == "models" else 1 for k in mine_]
            if option == "models":
                chi[p] = np.average([results[k][0] for k in mine_], axis=0, weights=n)
            else:
                chi[p] = chi[p] - LR * decay**t / len(m_t) * sum(results[k][1] for k in mine_)
            u[p] = np.average([results[k][1] for k in mine_], axis=0, weights=n)
        chosen.append(picks)
    return chi, chosen


def steps_of(method: Method, initial: list[Model], population: Population = POPULATION) -> list[Step]:
    module = linear_module()
    return list(train(method, Serial(Trainer(module, population, method.rule, SEED)), init(method, *initial)))


def starts(count: int) -> list[Model]:
    models = [read_model(linear_module(seed=s)) for s in range(count)]
    return [{name: 3 * tensor for name, tensor in model.items()} for model in models]  # far enough apart


CASES = {
    "ifca": {"beta": 0.0, "option": "models", "steps": STEPS},
    "cfl-mgd": {"beta": 0.9, "option": "models", "steps": STEPS},
    "cfl-mgd, gradients": {"beta": 0.9, "option": "gradients", "steps": 1},
    "ifca, gradients": {"beta": 0.0, "option": "gradients", "steps": 1},
    "decaying": {"beta": 0.5, "option": "models", "steps": STEPS, "decay": 0.9},
    "proximal": {"beta": 0.5, "option": "models", "steps": STEPS, "mu": 0.3},
}


@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("case", CASES)
def test_equals_its_twin(case: str, fraction: float, clusters: int) -> None:
    wanted: dict[str, Any] = CASES[case]
    initial = starts(clusters)
    expected, chosen = twin([as_vector(m) for m in initial], 4, fraction, **wanted)
    rule = LocalRule(sgd, LR, wanted["steps"], BATCH, wanted.get("mu", 0.0), wanted.get("decay", 1.0))
    method = cfl_mgd(POPULATION, rule, 4, clusters, wanted["beta"], wanted["option"], fraction, seed=SEED)
    found = steps_of(method, initial)
    assert [step.clusters.tolist() for step in found] == chosen
    for ours, by_hand in zip(found[-1].state.starts, expected, strict=True):
        np.testing.assert_allclose(as_vector(ours), by_hand, rtol=0, atol=1e-10)
    if clusters == 3:
        assert len(np.unique(chosen)) > 1  # clients did differ in their choice


def test_resampling_uses_another_part_for_identity_and_for_training_in_every_round() -> None:
    initial = starts(2)
    expected, chosen = twin([as_vector(m) for m in initial], 3, 1.0, 0.9, "models", STEPS, parts=6)
    rule = LocalRule(sgd, LR, STEPS, BATCH)
    found = steps_of(cfl_mgd(POPULATION, rule, 3, 2, 0.9, fraction=1.0, resample=True, seed=SEED), initial)
    assert [step.clusters.tolist() for step in found] == chosen
    for ours, by_hand in zip(found[-1].state.starts, expected, strict=True):
        np.testing.assert_allclose(as_vector(ours), by_hand, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("option", "steps"), [("models", STEPS), ("gradients", 1)])
def test_without_momentum_it_is_ifca_to_the_bit(option: Option, steps: int) -> None:
    rule = LocalRule(sgd, LR, steps, BATCH)
    ours = steps_of(cfl_mgd(POPULATION, rule, 4, 3, 0.0, option, 0.6, seed=SEED), starts(3))
    theirs = steps_of(ifca(POPULATION, rule, 4, 3, option, 0.6, seed=SEED), starts(3))
    for one, other in zip(ours[-1].state.starts, theirs[-1].state.starts, strict=True):
        assert as_vector(one).tobytes() == as_vector(other).tobytes()


def test_one_cluster_without_momentum_is_fedavg_to_the_bit() -> None:
    rule = LocalRule(sgd, LR, STEPS, BATCH)
    ours = steps_of(cfl_mgd(POPULATION, rule, 4, 1, 0.0, fraction=0.6, seed=SEED), starts(1))
    theirs = steps_of(fedavg(POPULATION, rule, 4, 0.6, seed=SEED), starts(1))
    server = theirs[-1].state.server
    assert server is not None
    assert as_vector(ours[-1].state.starts[0]).tobytes() == as_vector(server).tobytes()


def test_one_cluster_gradients_is_fedavg_with_one_step_to_the_bit() -> None:
    even = make_population(POPULATION.data, [POPULATION.samples(k)[:8] for k in range(7)])
    rule = LocalRule(sgd, LR, 1, BATCH)
    ours = steps_of(cfl_mgd(even, rule, 4, 1, 0.0, "gradients", 0.6, seed=SEED), starts(1), even)
    fedavg_method = fedavg(even, rule, 4, 0.6, seed=SEED)
    unit = tuple(replace(e, weights=np.ones(len(e.cohort))) for e in fedavg_method.schedule.events)
    method = replace(fedavg_method, schedule=replace(fedavg_method.schedule, events=unit))
    server = steps_of(method, starts(1), even)[-1].state.server
    assert server is not None
    assert as_vector(ours[-1].state.starts[0]).tobytes() == as_vector(server).tobytes()


def test_a_client_is_sent_the_models_of_all_clusters_and_sends_one() -> None:
    (event,) = ifca(POPULATION, LocalRule(sgd, LR, STEPS, BATCH), 1, 3, fraction=1.0, seed=SEED).schedule.events
    assert (event.models_down, event.models_up) == (3 * len(event.cohort), len(event.cohort))


@pytest.mark.more
def test_of_several_starts_the_one_with_the_least_losses_after_some_rounds_is_taken() -> None:
    rule, rng = LocalRule(sgd, LR, STEPS, BATCH), np.random.default_rng(0)
    method = ifca(POPULATION, rule, 9, 2, fraction=1.0, seed=SEED, restarts=5, restart_rounds=2)
    executor = Serial(Trainer(linear_module(), POPULATION, rule, SEED))

    def draw() -> tuple[Model, ...]:
        return tuple({name: each * float(rng.normal()) for name, each in model.items()} for model in starts(2))

    taken = []
    for _ in range(12):
        candidates = [draw() for _ in range(5)]
        after = [twin([as_vector(model) for model in each], 2, 1.0, 0.0, "models", STEPS)[0] for each in candidates]
        least = [np.mean([min(loss(w, client) for w in models) for client in range(7)]) for models in after]
        taken.append(choose_start(method, executor, candidates, 7))
        assert taken[-1] == np.argmin(least)
    assert len(set(taken)) > 2


def test_not_all_layers_may_be_shared() -> None:
    layers = sum(1 for each in network().children() if [*each.parameters()])
    assert len(first_layers(network(), layers - 1)) == 2 * (layers - 1)
    with pytest.raises(InputError, match="must be less than the model's"):
        first_layers(network(), layers)


def test_a_cluster_that_nobody_picks_keeps_its_model_and_momentum() -> None:
    initial = [*starts(2), {"0.weight": starts(1)[0]["0.weight"] * 0 + 1e6}]
    found = steps_of(cfl_mgd(POPULATION, LocalRule(sgd, LR, STEPS, BATCH), 3, 3, fraction=1.0, seed=SEED), initial)
    assert all(2 not in step.clusters for step in found)
    assert found[-1].state.starts[2] is initial[2]


def test_ties_go_to_the_lowest_cluster() -> None:
    same = starts(1) * 3
    step = steps_of(ifca(POPULATION, LocalRule(sgd, LR, 1, BATCH), 1, 3, fraction=1.0, seed=SEED), same)[0]
    assert step.clusters.tolist() == [0] * 7


def test_shared_layers_are_the_mean_over_clusters_and_equal_in_all() -> None:
    one, two, three = (read_model(network(seed=s)) for s in range(3))
    shared = share_layers([one, two, three], ["0.weight"], {0: 1.0, 2: 3.0})
    expected = (one["0.weight"] + 3 * three["0.weight"]) / 4
    for before, after in zip((one, two, three), shared, strict=True):
        np.testing.assert_allclose(after["0.weight"].numpy(), expected.numpy(), atol=1e-12)
        assert after["2.weight"] is before["2.weight"]


def test_with_gradients_shared_layers_take_the_steps_of_all_clusters() -> None:
    """``theta <- theta - (eta / m) sum_i g_i`` over all m clients, whichever cluster they chose (IFCA, Sec. 4)."""
    clients, rule, name = classification(clients=9), LocalRule(sgd, LR, 1, BATCH), "0.weight"
    first = read_model(network(seed=0))
    initial = [read_model(network(seed=s)) | {name: first[name]} for s in range(3)]
    plain = ifca(clients, rule, 1, 3, fraction=1.0, seed=SEED, option="gradients")

    def published(method: Method) -> list[Model]:
        (step,) = train(method, Serial(Trainer(network(), clients, rule, SEED)), init(method, *initial))
        return list(step.state.published)

    apart, shared = published(plain), published(replace(plain, shared=(name,)))
    moved = sum((each[name] - first[name] for each in apart), torch.zeros_like(first[name]))
    assert sum(not torch.equal(each[name], first[name]) for each in apart) > 1, "several clusters were chosen"
    for each in shared:
        np.testing.assert_allclose(each[name].numpy(), (first[name] + moved).numpy(), atol=1e-12)


def test_with_gradients_a_cluster_without_clients_adds_no_step_to_shared_layers() -> None:
    name = "0.weight"
    start, stepped, idle = ({name: torch.tensor(value)} for value in (1.0, 3.0, 50.0))
    for shared in share_layers([idle, stepped], [name], {1: 2.0}, [start, start]):
        assert shared[name].item() == 3.0


def test_shared_layers_without_a_model_are_refused() -> None:
    methods: tuple[Any, ...] = ifca, cfl_mgd
    for make in methods:
        with pytest.raises(InputError, match=r"^method\.shared_layers = 1: needs the argument `module`"):
            make(POPULATION, LocalRule(sgd, LR, STEPS, BATCH), 2, 2, shared_layers=1)


def test_the_engine_shares_layers_after_every_event() -> None:
    module_starts = starts(2)
    method = ifca(POPULATION, LocalRule(sgd, LR, STEPS, BATCH), 2, 2, fraction=1.0, seed=SEED)
    for step in steps_of(replace(method, shared=("0.weight",)), module_starts):
        first, second = (as_vector(model) for model in step.state.starts)
        assert first.tobytes() == second.tobytes()
