"""FedAvg on part of the model, with the rest kept at each client: FedBN, FedPer and FedRep."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.staying import keep_at_clients
from atoll.schedules.clock import Clock
from atoll.support.errors import InputError
from atoll.support.limits import Count, Positive, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def fedbn(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedBN: FedAvg of everything but normalisation layers, which stay at the clients.

    Li et al. 2021, Algorithm 1: ``w_l <- sum_k p_k w_l,k`` for every layer l except batch normalisation. Here PyTorch's
    other normalisation layers stay too, and so do batch normalisation's running statistics.

    Args:
        module: the initial model.

    Raises:
        InputError: the model has no normalisation layers.
    """
    from atoll.local.travel import norms  # late: reading settings needs no PyTorch

    names, told = norms(module), "method.name = 'fedbn'"
    if not names:
        raise InputError(f"{told}: the model has no normalisation layer with parameters, so nothing would stay")
    return _keep_part(fedavg(population, rule, rounds, fraction, clock, seed), names, module, told)


@checked
def fedper(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    personal_layers: Count = 1,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedPer: FedAvg of the base layers; the last layers, the head, stay at the clients.

    Arivazhagan et al. 2019: a client trains the base together with its own head of K_P layers.

    Args:
        personal_layers: number of last layers with parameters kept at the clients, K_P; 0 is FedAvg.

    Raises:
        InputError: no layer would be communicated.
    """
    names, told = head_of(module, personal_layers), f"method.personal_layers = {personal_layers}"
    return _keep_part(fedavg(population, rule, rounds, fraction, clock, seed), names, module, told)


@checked
def fedrep(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    personal_layers: Positive = 1,
    body_steps: Positive = 1,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedRep: a client trains its own head on the body that it received, then the body below that head.

    Collins et al. 2021, Algorithm 1, has tau steps for the head and one for the body; here tau = `rule.steps` -
    `body_steps`, so that the number of local steps is the same as in other methods.

    Args:
        personal_layers: number of last layers with parameters kept at the clients, the head.
        body_steps: number of final local steps that train the body; the earlier ones train the head.

    Raises:
        InputError: no layer would be communicated, or no local step is left for the head.
    """
    from atoll.methods.parts.personal_trainer import HeadFirstTrainer  # late: reading settings needs no PyTorch

    if body_steps >= (least := rule.steps_of(int(population.sizes.min()))):
        raise InputError(
            f"method.body_steps = {body_steps}: must be less than a client's local steps, which may be {least}; the "
            "others train the head"
        )
    names, told = head_of(module, personal_layers), f"method.personal_layers = {personal_layers}"
    method = fedavg(population, rule, rounds, fraction, clock, seed)
    method = replace(method, trainer=partial(HeadFirstTrainer, head=names, body_steps=body_steps))
    return _keep_part(method, names, module, told)


def head_of(module: "nn.Module", layers: int, setting: str = "personal_layers") -> tuple[str, ...]:
    """Return the names of the tensors of the last layers that have parameters; some layer must be left."""
    from atoll.local.travel import cut_before, layers_of

    if layers >= (most := len(layers_of(module))):
        raise InputError(f"method.{setting} = {layers}: must be less than the model's {most} layers with parameters")
    return cut_before(module, most - layers)[1]


def _keep_part(method: Method, names: tuple[str, ...], module: "nn.Module", told: str) -> Method:
    """Return the method with these tensors kept at the clients; if there are any, training must change some."""
    from atoll.local.travel import frozen

    if names and set(names) <= set(frozen(module)):
        raise InputError(
            f"{told}: the layers that would stay, such as {names[0]!r}, are frozen, so this would be FedAvg"
        )
    return keep_at_clients(method, names, module, told)
