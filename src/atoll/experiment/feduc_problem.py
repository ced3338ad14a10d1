"""From settings to the input of FedUC's clustering: the constants of its bound, estimated or given."""

import numpy as np
from torch import nn

from atoll.clustering.feduc.problem import BoundSettings, Pattern, PatternSettings, Problem, check
from atoll.data.population import Population
from atoll.engine.engine import init, train
from atoll.evaluation.constants import (
    class_gradient_gram,
    estimate_mu,
    estimate_smoothness,
    gradient_change,
    gradient_deviations,
    initial_gap,
    label_deviations,
)
from atoll.executors.serial import Serial
from atoll.experiment.modules import make_rule
from atoll.experiment.network_clients import NetworkClients
from atoll.local.models import Model
from atoll.local.rule import LocalRule, sgd
from atoll.local.task import ClientTask
from atoll.local.trainer import Trainer
from atoll.local.weights import read_model
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.papers.hierarchical import SYNCHRONOUS
from atoll.methods.parts.rule_requirements import refuse_epochs
from atoll.network.network import Network
from atoll.network.network_files import read_matrix
from atoll.network.transfers import pattern_transfer_seconds
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call
from atoll.settings.validation import Settings
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, reading
from atoll.support.seeds import generator

CLASS_SAMPLES = 300  # of each class, for its mean gradient
LARGE_BATCH = 10_000  # samples in the step along which mu and L are estimated


def make_problem(settings: Settings, population: Population, network: Network, module: nn.Module) -> Problem:
    """Return the input of FedUC's clustering; `module` holds w0, and is then scratch space."""
    wanted: BoundSettings = call("clustering.method", BoundSettings, dict(settings.clustering))
    refuse_epochs(make_rule(settings), "FedUC's bound, in which all clients take local.steps")
    pattern: PatternSettings = call("clustering.method", PatternSettings, dict(settings.method))
    start = read_model(module)
    samples, seed = settings.run.evaluate_samples, settings.seed
    gap = wanted.initial_gap or initial_gap(population, module, start, samples=samples, seed=seed)
    mu, smoothness = _curvature(settings, wanted, population, module, start)
    # If a round is not a local step, it counts as one merge, so any number of rounds is allowed.
    is_step = method_kind(settings).rounds_are_local_steps
    steps_a_round = 1 if is_step else pattern.intra_rounds * settings.local.steps
    problem = Problem(
        pattern=pattern.pattern,
        network=network,
        sizes=NetworkClients(settings, len(population)).samples(population.sizes).astype(float),
        deviations=_deviations(settings, wanted, population, module, start),
        limits=_limits(wanted, network.aggregators),
        steps=settings.rounds * steps_a_round,
        intra_rounds=pattern.intra_rounds,
        local_steps=settings.local.steps,
        lr=settings.local.lr * settings.local.lr_factor,
        mu=mu,
        smoothness=smoothness,
        initial_gap=gap,
        frequencies=_frequencies(wanted, network, pattern.pattern),
    )
    check(problem)
    return problem


def _curvature(
    settings: Settings, wanted: BoundSettings, population: Population, module: nn.Module, start: Model
) -> tuple[float, float]:
    """Return mu and L, given or estimated."""
    mu, smoothness = wanted.mu, wanted.smoothness
    if "estimate" in (mu, smoothness):
        change = gradient_change(population, module, start, _step_down(settings, population, module, start))
        mu = estimate_mu(change) if mu == "estimate" else mu
        smoothness = estimate_smoothness(change) if smoothness == "estimate" else smoothness
    return float(mu), float(smoothness)


def _limits(wanted: BoundSettings, aggregators: int) -> Floats:
    """Return L_j^max, [aggregators]; inf: no limit."""
    given = wanted.time_limit
    if given is None or isinstance(given, int | float):
        return np.full(aggregators, np.inf if given is None else given)
    if isinstance(given, str):
        return _read_limits(given, aggregators)
    if len(given) != aggregators:
        raise InputError(
            f"clustering.time_limit = {given}: has {len(given)} numbers; must be clustering.clusters = {aggregators}"
        )
    return np.array(given)


def _read_limits(path: str, aggregators: int) -> Floats:
    with reading("clustering.time_limit"):
        limits = read_matrix(path)
    if limits.shape not in ((aggregators,), (1, aggregators), (aggregators, 1)):
        told = f"has {' x '.join(map(str, limits.shape))} numbers; must be clustering.clusters = {aggregators}"
        raise InputError(f"clustering.time_limit = {path!r}: {told}")
    return limits.ravel()


def _frequencies(wanted: BoundSettings, network: Network, pattern: Pattern) -> Floats | None:
    """Return psi_j up to a factor; None if it follows from the clusters' speeds, or all merge at once."""
    if pattern in SYNCHRONOUS:
        return None
    if wanted.frequencies == "transfer" and network.aggregators > 1:
        return np.asarray(1 / pattern_transfer_seconds(network, pattern))
    given = [1.0] if wanted.frequencies == "transfer" else wanted.frequencies
    return network.frequencies if given is None else np.array(given)


def _deviations(
    settings: Settings, wanted: BoundSettings, population: Population, module: nn.Module, start: Model
) -> Floats:
    if wanted.xi == "gradients":
        warm = _warm_up(settings, wanted.warmup_rounds, population, module, start)
        return gradient_deviations(population, module, [start, *warm])
    if wanted.warmup_rounds:
        raise InputError(
            f"clustering.warmup_rounds = {wanted.warmup_rounds}: needs clustering.xi = 'gradients', it is {wanted.xi!r}"
        )
    if wanted.xi == "shares":
        return label_deviations(population.class_counts())
    rng = generator(settings.seed, "class gradients")
    gram = class_gradient_gram(population, module, start, CLASS_SAMPLES, rng)
    return label_deviations(population.class_counts(), gram)


def _warm_up(settings: Settings, rounds: int, population: Population, module: nn.Module, start: Model) -> list[Model]:
    """Return the models of a few rounds of FedAvg with a tenth of the clients."""
    if not rounds:
        return []
    rule = make_rule(settings)
    method = fedavg(population, rule, rounds, seed=settings.seed)
    executor = Serial(Trainer(module, population, rule, settings.seed))
    states = (step.state for step in train(method, executor, init(method, start)))
    return [state.server for state in states if state.server is not None]


def _step_down(settings: Settings, population: Population, module: nn.Module, start: Model) -> Model:
    """Return w0 after a step of SGD on a batch drawn from all clients' data: as many as they have, if not too many."""
    pooled = population.pooled()
    rule = LocalRule(
        sgd, settings.local.lr * settings.local.lr_factor, steps=1, batch_size=min(LARGE_BATCH, int(pooled.sizes[0]))
    )
    return Trainer(module, pooled, rule, settings.seed).train(ClientTask(0, 0, 0, 0, 0, start)).model
