"""Private methods equal their slow twins: clipped updates, fixed denominators, noise once where trust ends."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll import (
    Cores,
    Executor,
    LocalRule,
    Method,
    Serial,
    Stacked,
    State,
    fedavg,
    fedavgm,
    fedcluster,
    ifca,
    init,
    read_model,
    train,
)
from atoll.clustering.clustering import Clustering
from atoll.fleet.node.noise_added import Hidden
from atoll.local.rule import sgd
from atoll.methods.papers.cfl_mgd import cfl_mgd
from atoll.methods.papers.hierarchical import hierarchical
from atoll.network.network_files import matrix_network
from atoll.privacy.clipping import CLIP, SumOfUpdates, clip
from atoll.privacy.mechanism import Mechanism
from atoll.privacy.noise import from_seed
from atoll.privacy.private_assignment import draw_choices, respond
from atoll.privacy.private_release import make_private
from atoll.schedules.events import Event
from atoll.support.arrays import Floats, Ids
from tests.methods.running import SEED, states_of, trainer_of
from tests.methods.twins import LR, POPULATION, RULE, START, gradients
from tests.privacy.private import AGGREGATOR, CLIENT, SERVER, private, run, shape
from tests.problems import as_vector, linear_module, quadratics
from tests.tiers import thinned

THREE = Clustering(np.array([0, 1, 2, 0, 1, 2, 0, 1]), 3)


def clipped(update: Floats, longest: float = 0.7) -> Floats:
    return update * min(1.0, longest / float(np.linalg.norm(update)))


def trained(event: Event, client: int, w: Floats, lr: float = LR) -> Floats:
    """Take the client's local steps by hand."""
    after = w.copy()
    for gradient in gradients(event, client):
        after = after - lr * 0.9**event.round * gradient(after)
    return after


def drawn(purpose: str, *key: int) -> Floats:
    return from_seed(SEED)(purpose, *key)(3)


def server(state: State) -> Floats:
    assert state.server is not None
    return as_vector(state.server)


def test_fedcluster_with_a_trusted_server() -> None:
    """``W <- W + (sum of clipped updates + z C N(0, 1)) / m``, m counting the cohort, one draw an event."""
    method = private(fedcluster(POPULATION, THREE, RULE, rounds=2, fraction=0.7, seed=2), SERVER)
    w = START
    for event, state in zip(method.schedule.events, run(method), strict=True):
        total = sum((clipped(trained(event, k, w) - w) for k in event.cohort.tolist()), np.zeros(3))
        noise = 1.3 * 0.7 * drawn("privacy", event.index, 0, event.active[0])
        w = w + (total + noise) / len(event.cohort)
        assert server(state) == pytest.approx(w, abs=1e-12)


def test_who_does_not_come_does_not_change_what_is_divided_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """The divisor is the planned cohort's weight; by the weight of those that came, it would tell of them."""
    plan = private(fedcluster(POPULATION, THREE, RULE, rounds=2, fraction=1.0, seed=2), SERVER)

    def without_the_first(event: Event, starts: object, executor: object) -> Ids:  # a node that does not answer
        assert event.clusters is not None
        return np.concatenate([[-1], event.clusters[1:]])

    w = START
    monkeypatch.setattr(Method, "assigned_by", staticmethod(without_the_first))
    for event, state in zip(plan.schedule.events, run(plan), strict=True):
        total = sum((clipped(trained(event, k, w) - w) for k in event.cohort[1:].tolist()), np.zeros(3))
        w = w + (total + 1.3 * 0.7 * drawn("privacy", event.index, 0, event.active[0])) / len(event.cohort)
        assert server(state) == pytest.approx(w, abs=1e-12)


def test_clients_that_trust_nobody() -> None:
    """Each adds noise of its own; the server divides by the cohort."""
    method = private(fedavg(POPULATION, RULE, rounds=3, fraction=0.5, seed=2), CLIENT)
    w = START
    for event, state in zip(method.schedule.events, run(method), strict=True):
        total = np.zeros(3)
        for k in event.cohort.tolist():
            total += clipped(trained(event, k, w) - w) + 1.3 * 0.7 * drawn("client privacy", event.index, 0, k)
        w = w + total / len(event.cohort)
        assert server(state) == pytest.approx(w, abs=1e-12)


def test_weights_are_capped() -> None:
    """A client weighs min(samples, cap) / cap, and the sum of these is what a sum is divided by."""
    method = private(fedavg(POPULATION, RULE, rounds=1, fraction=1.0), SERVER, samples_cap=9, noise=0.0)
    (event,), (state,) = method.schedule.events, run(method)
    weights = np.minimum(POPULATION.sizes / 9, 1)
    assert 0 < weights.min() < weights.max() == 1
    total = sum((weights[k] * clipped(trained(event, k, START) - START) for k in event.cohort.tolist()), np.zeros(3))
    assert server(state) == pytest.approx(START + total / weights.sum(), abs=1e-12)


def test_each_average_of_an_aggregator_has_noise_and_merges_have_none() -> None:
    """T' = 2 averages a work; (7) merges what is public then."""
    network = matrix_network(np.ones(8), np.ones((8, 3)))
    plain = hierarchical(POPULATION, THREE, network, replace(RULE, steps=4), 8, "censyn", intra_rounds=2)
    method = private(plain, AGGREGATOR)
    (event,), (state,) = method.schedule.events, run(method)
    made = []
    for cluster in range(3):
        w = START
        for repeat in range(2):
            total, own = np.zeros(3), event.cohort[THREE.labels[event.cohort] == cluster]
            for k in own.tolist():
                total += clipped(_after(event, k, w, repeat) - w)
            w = w + (total + 1.3 * 0.7 * drawn("privacy", 0, repeat, cluster)) / len(own)
        made.append(w)
    samples = np.bincount(THREE.labels, POPULATION.sizes)
    assert server(state) == pytest.approx(np.average(made, axis=0, weights=samples), abs=1e-12)


def _after(event: Event, client: int, w: Floats, repeat: int) -> Floats:
    """Take the local steps of an intra-cluster round by hand."""
    from atoll import Trainer
    from atoll.local.task import ClientTask

    draws = Trainer(linear_module(), POPULATION, RULE, SEED)
    for rows in draws.draw_rows(ClientTask(event.index, event.round, repeat, 0, client, {})):
        x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
        w = w - LR * 0.9**event.round * (x.T @ (x @ w - y) / len(y))
    return w


@pytest.mark.parametrize("option", ["models", "gradients"])
def test_ifca_hides_the_choice_in_one_noise_over_all_blocks(option: str) -> None:
    """Clusters that nobody chose move by noise alone; means are over noisy counts, gradients over the cohort."""
    rule = replace(RULE, steps=1)
    method = private(
        ifca(POPULATION, rule, rounds=2, clusters=3, option=option, fraction=0.6, seed=2),  # type: ignore[arg-type]
        *(SERVER,),
        count_noise=0.5,
        least_clients=2.0,
    )
    models = [START] * 3
    for event, state in zip(method.schedule.events, run(method), strict=True):
        chosen = [_best(models, k) for k in event.cohort.tolist()]
        counts = np.array([chosen.count(c) for c in range(3)]) + 0.5 * drawn("privacy counts", event.index, 0)
        sums = [1.3 * 0.7 * drawn("privacy", event.index, 0, c) for c in range(3)]
        for k, c in zip(event.cohort.tolist(), chosen, strict=True):
            step = trained_once(event, k, models[c])
            sums[c] = sums[c] + clipped(step - models[c])
        over = np.maximum(counts, 2.0) if option == "models" else np.full(3, float(len(event.cohort)))
        models = [w + total / n for w, total, n in zip(models, sums, over, strict=True)]
        assert [as_vector(each) for each in state.starts] == [pytest.approx(w, abs=1e-12) for w in models]
    assert len({chosen.count(c) for c in range(3)}) > 1


@pytest.mark.parametrize("option", ["models", "gradients"])
def test_where_nobody_takes_part_nothing_is_released(option: str) -> None:
    """Else the models of clusters that clients choose would move by noise alone, over a cohort of none."""
    plain = ifca(POPULATION, replace(RULE, steps=1), rounds=2, clusters=3, option=option, seed=2)  # type: ignore[arg-type]
    method = private(plain, SERVER, count_noise=0.5)
    events, nobody = method.schedule.events, np.zeros(0, np.int64)
    gone = replace(events[0], cohort=nobody, weights=np.zeros(0))
    before, after = run(replace(method, schedule=replace(method.schedule, events=(gone, events[1]))))
    assert [as_vector(each).tolist() for each in before.starts] == [START.tolist()] * 3
    assert [as_vector(each).tolist() for each in after.starts] != [START.tolist()] * 3


def trained_once(event: Event, client: int, w: Floats) -> Floats:
    (gradient,) = gradients(event, client, steps=1)
    return np.asarray(w - LR * 0.9**event.round * gradient(w))


def _best(models: list[Floats], client: int) -> int:
    rows = POPULATION.samples(client)
    x, y = POPULATION.data.inputs[rows], POPULATION.data.targets[rows]
    return int(np.argmin([np.square(x @ w - y).mean() for w in models]))


def test_momentum_is_clipped_with_the_model() -> None:
    """CFL-MGD: (change of chi, eta * change of u) is one vector; u is divided by the noisy count, chi by the cohort."""
    beta, rule = 0.5, replace(RULE, steps=1, lr_decay=1.0)
    plain = cfl_mgd(POPULATION, rule, rounds=3, clusters=1, beta=beta, option="gradients", fraction=0.5, seed=2)
    method = private(plain, SERVER, count_noise=0.3)
    chi, u = START, np.zeros(3)
    for event, state in zip(method.schedule.events, run(method), strict=True):
        total = np.zeros(6)
        for k in event.cohort.tolist():
            (gradient,) = gradients(event, k, steps=1)
            momentum = beta * u + gradient(chi)
            total += clipped(np.concatenate([-LR * momentum, LR * (momentum - u)]))
        total += 1.3 * 0.7 * from_seed(SEED)("privacy", event.index, 0, 0)(6)
        count = max(1.0, len(event.cohort) + 0.3 * float(from_seed(SEED)("privacy counts", event.index, 0)(1)[0]))
        chi, u = chi + total[:3] / len(event.cohort), u + total[3:] / LR / count
        (model,) = state.starts
        assert as_vector(model) == pytest.approx(chi, abs=1e-12)
        assert model["0.weight@momentum_buffer"].numpy().ravel() == pytest.approx(u, abs=1e-10)


def test_the_clip_moves_to_a_noisy_quantile() -> None:
    """Andrew et al. 2021: ``C <- C exp(-eta (b - gamma))``, b the noisy share of updates no longer than C."""
    plain = fedcluster(POPULATION, THREE, RULE, rounds=3, fraction=1.0, seed=2)
    method = private(plain, SERVER, quantile=0.6, quantile_noise=0.4, quantile_rate=0.5)
    w, longest, seen = START, 0.7, []
    for event, state in zip(method.schedule.events, run(method), strict=True):
        updates = [trained(event, k, w) - w for k in event.cohort.tolist()]
        key = event.index, 0, event.active[0]
        total = sum((clipped(each, longest) for each in updates), 1.3 * longest * drawn("privacy", *key))
        w = w + total / len(updates)
        fitting = sum(0.5 if np.linalg.norm(each) <= longest else -0.5 for each in updates)
        share = (fitting + 0.4 * float(from_seed(SEED)("privacy quantile", *key)(1)[0])) / len(updates) + 0.5
        longest *= np.exp(-0.5 * (share - 0.6))
        assert server(state) == pytest.approx(w, abs=1e-12)
        assert state.server is not None
        assert float(state.server[CLIP]) == pytest.approx(longest, abs=1e-12)
        seen.append(longest)
    assert len(set(seen)) == len(seen)


def test_a_clip_that_adapts_needs_noisy_counts_where_models_do_not() -> None:
    """Gradients are divided by the cohort, but the share of unclipped updates by the noisy count, which is paid for."""
    plain = ifca(POPULATION, replace(RULE, steps=1), rounds=1, clusters=3, option="gradients", fraction=0.6, seed=2)
    method = private(plain, SERVER, count_noise=0.5, quantile=0.6, quantile_noise=0.4, quantile_rate=0.5)
    (event,), (state,) = method.schedule.events, run(method)
    chosen = [_best([START] * 3, k) for k in event.cohort.tolist()]
    counts = np.array([chosen.count(c) for c in range(3)]) + 0.5 * drawn("privacy counts", event.index, 0)
    for c, (model, count) in enumerate(zip(state.starts, np.maximum(counts, 1.0).tolist(), strict=True)):
        own = [k for k, cluster in zip(event.cohort.tolist(), chosen, strict=True) if cluster == c]
        updates = [trained_once(event, k, START) - START for k in own]
        fitting = sum(0.5 if np.linalg.norm(each) <= 0.7 else -0.5 for each in updates)
        fitting += 0.4 * float(from_seed(SEED)("privacy quantile", event.index, 0, c)(1)[0])
        assert float(model[CLIP]) == pytest.approx(0.7 * np.exp(-0.5 * (fitting / count + 0.5 - 0.6)), abs=1e-12)
    (stage,) = method.stages
    assert stage.cost is not None
    assert stage.cost.gaussians == (1.3, 0.5, 2 * 0.4)


def test_a_client_moves_the_count_of_unclipped_updates_by_half() -> None:
    """Zeros, which stand for a client that is left out, count as nothing: neither as clipped nor as not."""
    add_up, start = SumOfUpdates(shape(RULE), 1.0, adapts=True), read_model(linear_module())
    far, near, broken = ({name: own + by for name, own in start.items()} for by in (9.0, 1e-3, np.nan))
    counts = [float(add_up([(1.0, each)], start, 1.0)[CLIP]) for each in (start, far, near, broken)]
    assert counts == [0.0, -0.5, 0.5, 0.0]


@pytest.mark.parametrize("rate", [50.0, 1e300])
def test_a_clip_never_leaves_what_can_be_computed_with(rate: float) -> None:
    plain = fedcluster(POPULATION, THREE, RULE, rounds=2, fraction=1.0, seed=2)
    states = run(private(plain, SERVER, noise=0.0, quantile=0.5, quantile_noise=100.0, quantile_rate=rate))
    clips = [float(state.server[CLIP]) for state in states if state.server is not None]
    assert all(0.7e-6 * 0.999 <= each <= 0.7e6 * 1.001 for each in clips)
    assert max(clips) > 100 * min(clips), "they did move"


def test_without_noise_and_clipping_it_is_the_plain_method() -> None:
    """Up to rounding, with all clients alike."""
    from atoll.methods.parts.equal_clients import weigh_equally

    plain = weigh_equally(fedavgm(POPULATION, RULE, rounds=4, fraction=0.5, seed=2))
    theirs = run(private(plain, SERVER, noise=0.0, clip=1e9))
    for one, other in zip(run(plain), theirs, strict=True):
        assert server(one) == pytest.approx(server(other), abs=1e-12)


class Sparing(nn.Sequential):
    """A layer, and a parameter of which nothing depends: it has no gradient, and so no moment."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 1, bias=False))
        self.spare = nn.Parameter(torch.ones(2))


@pytest.mark.parametrize("mechanism", [SERVER, CLIENT])
def test_a_parameter_without_a_gradient_has_a_moment_of_zero(mechanism: Mechanism) -> None:
    module, other, rule = Sparing().double(), Sparing().double(), replace(RULE, steps=1)
    other.load_state_dict(module.state_dict())
    plain = cfl_mgd(POPULATION, rule, rounds=3, clusters=1, beta=0.5, option="gradients", fraction=0.5, seed=2)
    wanted = replace(mechanism, noise=0.0, clip=1e9, count_noise=1e-12, identity_epsilon=1.0)
    method = make_private(plain, wanted, shape(plain.rule, module), POPULATION.sizes, from_seed(SEED))
    theirs = states_of(method, Serial(trainer_of(method, module, POPULATION)), module)
    ours = states_of(plain, Serial(trainer_of(plain, other, POPULATION)), other)
    for mine, its in ((one.starts[0], two.starts[0]) for one, two in zip(ours, theirs, strict=True)):
        assert not its["spare@momentum_buffer"].any()
        assert all(tensor.numpy() == pytest.approx(its[name].numpy(), abs=1e-9) for name, tensor in mine.items())


def test_who_sends_nonsense_counts_as_nothing() -> None:
    """An update that is not finite is zeros, and none is longer than the clip."""
    for bad in (float("nan"), float("inf")):
        assert not clip({"w": torch.tensor([bad, 1.0], dtype=torch.float64)}, 1.0)["w"].any()
    long = clip({"w": torch.full((4,), 1e200, dtype=torch.float64)}, 0.5)["w"]
    assert float(long.norm()) == pytest.approx(0.5) or not long.any()
    short = {"w": torch.tensor([0.3, 0.4], dtype=torch.float64)}
    assert clip(short, 0.5)["w"].tolist() == pytest.approx([0.3, 0.4])
    assert clip({"w": torch.zeros(2, dtype=torch.float64)}, 0.5)["w"].tolist() == [0, 0]


def test_losses_are_not_told() -> None:
    for mechanism in (SERVER, CLIENT):
        method = private(fedavg(POPULATION, RULE, rounds=2, fraction=0.5), mechanism)
        module = linear_module()
        executor = Serial(trainer_of(method, module, POPULATION))
        assert [step.loss for step in train(method, executor, init(method, read_model(module)))] == [None, None]


def _fedcluster(rule: LocalRule) -> Method:
    return fedcluster(POPULATION, THREE, rule, rounds=2, fraction=0.7, seed=2)


def _ifca(rule: LocalRule) -> Method:
    return ifca(POPULATION, rule, rounds=2, clusters=3, fraction=0.6, seed=2)


@pytest.mark.parametrize("make", thinned([_fedcluster, _ifca], 2))
@pytest.mark.parametrize("mechanism", [SERVER, CLIENT], ids=["server", "client"])
def test_executors_agree_to_the_bit(make: Callable[[LocalRule], Method], mechanism: object) -> None:
    extra = {"count_noise": 0.5} if mechanism is SERVER else {"identity_epsilon": 1.0}
    method = private(make(RULE), mechanism, **extra)  # type: ignore[arg-type]
    expected = run(method)
    trainer = trainer_of(method, linear_module(), POPULATION)
    with closing(Cores(trainer, 2, model_bytes=1000)) as cores:
        for ours, theirs in zip(run(method, executor=cores), expected, strict=True):
            assert all(a["0.weight"].equal(b["0.weight"]) for a, b in zip(ours.starts, theirs.starts, strict=True))


def test_stacks_agree_to_rounding() -> None:
    method = private(_fedcluster(RULE), SERVER)
    stacked: Executor = Stacked(trainer_of(method, linear_module(), POPULATION))
    for one, other in zip(run(method, executor=stacked), run(method), strict=True):
        assert server(one) == pytest.approx(server(other), abs=1e-10)


def test_noise_of_a_mean_against_clients_noise_is_the_cohort() -> None:
    """At equal epsilon the aggregator's mean has the variance of the clients' over the size of the cohort."""
    wide, module = quadratics(clients=8, width=20_000), linear_module(width=20_000)
    rule = LocalRule(sgd, 1e-12, 1, batch_size=2)  # nobody moves, so only noise does
    one, network = Clustering(np.zeros(8, np.int64), 1), matrix_network(np.ones(8), np.ones((8, 1)))
    plain = hierarchical(wide, one, network, rule, 1, "censyn", intra_rounds=1)
    variances = []
    for mechanism in (CLIENT, AGGREGATOR):
        method = make_private(plain, mechanism, shape(rule, linear_module(width=20_000)), wide.sizes, from_seed(SEED))
        (state,) = states_of(method, Serial(trainer_of(method, linear_module(width=20_000), wide)), module)
        variances.append(float((server(state) - as_vector(read_model(module))).var()))
    assert variances[0] / variances[1] == pytest.approx(8, rel=0.05)
    assert variances[0] == pytest.approx((1.3 * 0.7) ** 2 / 8, rel=0.05)


def partly_frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with a frozen layer and a buffer of floats, which no client sends."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, classes))
    module.get_submodule("1").requires_grad_(False)
    module.register_buffer("scale", torch.ones(1))
    return module


@pytest.mark.parametrize("trust", ["server", "client"])
def test_what_is_frozen_stays_as_it_was(trust: str) -> None:
    table = {"rounds": 1, "data": {"clients": 4, "samples": 20}, "local": {"steps": 1}, "method": {"name": "fedavg"}}
    privacy = {"trust": trust, "clip": 1.0, "noise": 1.0}
    result = atoll.run(table, model={"name": partly_frozen}, privacy=privacy, run={"executor": "serial"})
    assert result.model()["scale"].tolist() == [1.0]
    assert np.isfinite(result.history["test_loss"]).all()


def test_a_loss_of_minus_infinity_is_no_good_loss() -> None:
    told = draw_choices(np.tile([-np.inf, 0.5], (50, 1)), 50.0, 3.0, from_seed(SEED), 0, np.arange(50))
    assert told.tolist() == [1] * 50
    assert Hidden(noise=1e-9, most_samples=9, most_loss=3.0).losses(np.array([-np.inf])) == pytest.approx([3.0])


def test_losses_above_the_most_count_as_the_most() -> None:
    """Whatever a client's losses, no choice becomes more than e^epsilon likelier."""
    wild, tame = (np.tile([high, 0.0], (400, 1)) for high in (1e9, 3.0))
    chosen, as_chosen = (draw_choices(each, 1.0, 3.0, from_seed(SEED), 0, np.arange(400)) for each in (wild, tame))
    assert chosen.tolist() == as_chosen.tolist()
    assert 0.25 < (chosen == 0).mean() < 0.5  # 1 / (1 + sqrt(e)) = 0.38


def test_a_client_without_a_choice_tells_one_that_is_drawn() -> None:
    """Evenly, however seldom others' choices are replaced: its silence would tell that it has no finite loss."""
    told = respond(np.array([-1] * 400 + [2] * 400), 4, 60.0, from_seed(SEED), 0, np.arange(800))
    assert np.bincount(told[:400], minlength=4).min() > 70
    assert told[400:].tolist() == [2] * 400
