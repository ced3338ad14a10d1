"""An attacker who knows all but one thing does no better than the claimed epsilon lets it; with half the noise it does.

The attacker sees every model that is published (by clients that trust nobody, every message) and knows every client's
data but one's: whether that one sends its updates, or zeros. It takes the likelihood ratio of the two over whole runs,
the best test there is. A test that fires with probability a where nothing is sent, and b where it is, tells that
epsilon is at least ln((b - delta) / a).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from atoll import (
    Chain,
    ClientTask,
    ClientUpdate,
    Event,
    Method,
    Serial,
    Stage,
    Trainer,
    fedavg,
    init,
    read_model,
    train,
)
from atoll.clustering.clustering import Clustering
from atoll.engine.cohorts import ClusterUpdate
from atoll.engine.stages import Release
from atoll.local.models import Model
from atoll.methods.papers.hierarchical import hierarchical
from atoll.network.network_files import matrix_network
from atoll.privacy.accounting import epsilon_of
from atoll.privacy.clipping import clip
from atoll.privacy.mechanism import Cost, Mechanism
from atoll.privacy.noise import from_seed
from atoll.privacy.private_assignment import draw_choices, respond
from atoll.privacy.private_release import make_private
from atoll.support.arrays import Floats
from tests.methods.twins import RULE
from tests.privacy.private import AGGREGATOR, CLIENT, SERVER, shape
from tests.problems import as_vector, linear_module, quadratics

pytest.importorskip("dp_accounting")

DELTA, NOISE, TARGET, SEED = 0.01, 1.6, 2, 5
CLIENTS = quadratics(clients=4)
ONE_STEP = replace(RULE, lr=0.5, steps=1)
SHAPE = shape(ONE_STEP)


class Known(Trainer):
    """Trains clients, of whom the attacked one may send what it was sent; notes what each would send."""

    sends = True

    def train(self, task: ClientTask) -> ClientUpdate:
        update = super().train(task)
        change = clip(SHAPE.difference(update.model, task.start), SERVER.clip)
        self.__dict__.setdefault("updates", {})[task.event, task.repeat, task.client] = as_vector(change)
        return update if self.sends or task.client != TARGET else replace(update, model=dict(task.start))


class Watched:
    """Notes what a private method's release publishes (`engine.stages.Release`)."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.seen: dict[tuple[int, int], Floats] = {}

    def publish(
        self, event: Event, repeat: int, sent: Mapping[int, Model], combined: Mapping[int, ClusterUpdate], *rest: Any
    ) -> dict[int, Model]:
        made = self.release.publish(event, repeat, sent, combined, *rest)
        moved = as_vector(made[0]) - as_vector(sent[0])
        self.seen[event.index, repeat] = moved * len(event.cohort)
        return made


def flat() -> Method:
    return fedavg(CLIENTS, ONE_STEP, rounds=2, fraction=1.0)


def hierarchy() -> Method:
    network = matrix_network(np.ones(4), np.ones((4, 1)))
    return hierarchical(CLIENTS, Clustering(np.zeros(4, np.int64), 1), network, ONE_STEP, 2, "censyn", intra_rounds=2)


def ratio(method: Method, mechanism: Mechanism, seed: int, sends: bool) -> float:
    """Carry out a run; return the logarithm of how much likelier it is if the attacked client sends."""
    module = linear_module()
    known = Known(module, CLIENTS, ONE_STEP, SEED)
    known.sends = sends
    private = make_private(method, mechanism, SHAPE, CLIENTS.sizes, from_seed(seed))
    (stage,) = private.stages
    assert stage.release is not None
    watched, sent = Watched(stage.release), dict[tuple[int, int], Floats]()
    private = replace(private, stages=(replace(stage, release=watched),))
    trainer = Chain(known, [_noting(stage, sent)] if mechanism.is_local else []).for_executors()
    for _ in train(private, Serial(trainer), init(private, read_model(linear_module()))):
        pass
    seen = sent if mechanism.is_local else watched.seen
    total, deviation = 0.0, mechanism.noise * mechanism.clip
    for (event, repeat), moved in seen.items():
        own = known.__dict__["updates"][event, repeat, TARGET]
        others = 0.0 if mechanism.is_local else sum(known.__dict__["updates"][event, repeat, k] for k in (0, 1, 3))
        rest = moved - others
        total += float((rest @ own - own @ own / 2) / deviation**2)
    return total


def _noting(stage: Stage, into: dict[tuple[int, int], Floats]) -> Stage:
    """Return the stage of noisy clients, which notes what the attacked one sends."""
    plain = stage.send
    assert plain is not None

    def sending(task: ClientTask, trained: ClientUpdate) -> ClientUpdate:
        update = plain(task, trained)
        if task.client == TARGET:
            into[task.event, task.repeat] = as_vector(update.model) - as_vector(task.start)
        return update

    return replace(stage, send=sending)


def least_epsilon(fired: Floats, silent: Floats) -> float:
    """Return what epsilon is at least, with 95 % confidence on either side (Clopper and Pearson 1934).

    The test's threshold is set on one half of the runs in which nothing was sent, and tried on the other.
    """
    half = len(silent) // 2
    threshold = float(np.quantile(silent[:half], 0.98))
    tried, hits = silent[half:], int((fired > threshold).sum())
    false = int((tried > threshold).sum())
    most_false = float(beta.ppf(0.95, false + 1, len(tried) - false))
    least_true = float(beta.ppf(0.05, hits, len(fired) - hits + 1)) if hits else 0.0
    return math.log(max(least_true - DELTA, 1e-9) / most_false)


def audit(method: Method, mechanism: Mechanism, runs: int) -> float:
    fired, silent = (
        np.array([ratio(method, mechanism, 2 * seed + sends, bool(sends)) for seed in range(runs // 2)])
        for sends in (1, 0)
    )
    return least_epsilon(fired, silent)


CLAIMED = epsilon_of(Cost((NOISE,)), 2, DELTA)  # each client is in two releases
TRUSTS = {"server": (flat, SERVER), "aggregator": (hierarchy, AGGREGATOR), "client": (flat, CLIENT)}


@pytest.mark.slow
@pytest.mark.parametrize("trust", TRUSTS)
def test_no_attack_beats_the_claim(trust: str) -> None:
    make, mechanism = TRUSTS[trust]
    assert audit(make(), replace(mechanism, noise=NOISE), 2000) <= CLAIMED


@pytest.mark.slow
@pytest.mark.parametrize("trust", TRUSTS)
def test_with_half_the_noise_the_attack_beats_it(trust: str) -> None:
    """So the audit can fail: what is claimed is epsilon of the whole noise."""
    make, mechanism = TRUSTS[trust]
    assert audit(make(), replace(mechanism, noise=NOISE / 2), 2000) > CLAIMED


def test_the_audit_knows_an_attack_that_needs_no_noise() -> None:
    """A few runs tell what is sent with a tenth of the noise, and no more than chance what is not."""
    method = flat()
    bold = replace(SERVER, noise=NOISE / 10)
    sent, silent = ([ratio(method, bold, seed, sends) for seed in range(10)] for sends in (True, False))
    assert min(sent) > max(silent)


def told(how: str, choice: int, epsilon: float, draws: int, seed: int) -> float:
    """Return the share of answers 0 by clients whose data speak for this cluster, of a dozen, or against it."""
    if how == "response":
        answers = respond(np.full(draws, choice), 12, epsilon, from_seed(seed), 0, np.arange(draws))
    else:
        losses = np.tile([9.0] + [-1.0] * 11 if choice else [0.0] + [9.0] * 11, (draws, 1))
        answers = draw_choices(losses, epsilon, 3.0, from_seed(seed), 0, np.arange(draws))
    return float((answers == 0).mean())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["response", "exponential"])
def test_a_choice_stays_within_its_epsilon(how: str) -> None:
    """Over 1e5 draws the odds of an answer, given data for and against it, are no more than e^epsilon apart."""
    epsilon, draws = 1.2, 100_000
    own, other = told(how, 0, epsilon, draws, 1), told(how, 1, epsilon, draws, 2)
    error = math.sqrt((1 - own) / (own * draws) + (1 - other) / (other * draws))
    assert math.log(own / other) <= epsilon + 3 * error
    assert math.log(own / other) == pytest.approx(epsilon, abs=3 * error if how == "response" else 0.15)
    weak = told(how, 0, 2 * epsilon, draws, 3) / told(how, 1, 2 * epsilon, draws, 4)
    assert math.log(weak) > epsilon + 3 * error
