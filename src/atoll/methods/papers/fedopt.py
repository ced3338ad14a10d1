"""FedAvg with an optimiser on the server: FedAvgM, FedAdagrad, FedAdam and FedYogi.

Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification";
Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2. Delta is the mean of a cohort's updates, weighted
by samples; the server treats -Delta as a gradient.

The rules are exactly the paper's: no bias correction, tau outside the root, and the second moment starts at tau^2, the
least that the paper allows. Tensors that are not parameters, such as running means, are averaged.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature, getdoc, signature
from typing import Any

from atoll.engine.method import Method
from atoll.engine.server_rule import ServerRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.server_optimizers import (
    Adaptive,
    HeavyBall,
    add_square,
    buffers_of,
    move_to_square,
    step_to_square,
)
from atoll.support.limits import BelowOne, PositiveFloat

_MODULE = Parameter("module", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation="nn.Module | None")
_MODULE_TOLD = "the model, to tell parameters from buffers; None: all tensors are parameters."


def _fedavg_with(rule_of: Callable[..., ServerRule]) -> Callable[..., Method]:
    """Return FedAvg with this server rule; the rule's arguments come before `fraction`, and `module` comes last."""
    _, *own = signature(rule_of).parameters.values()
    common = [*signature(fedavg).parameters.values()]

    @wraps(rule_of)
    def make(*given: Any, **named: Any) -> Method:
        bound = arguments.bind(*given, **named)
        bound.apply_defaults()
        asked = bound.arguments
        rule = rule_of(buffers_of(asked.pop("module")), **{each.name: asked.pop(each.name) for each in own})
        return replace(fedavg(**asked), server_rule=rule)

    arguments = make.__signature__ = Signature([*common[:3], *own, *common[3:], _MODULE])  # type: ignore[attr-defined]
    make.__doc__ = f"{getdoc(rule_of)}\n\nArgs:\n    module: {_MODULE_TOLD}"
    return checked(make)


@_fedavg_with
def fedavgm(buffers: frozenset[str], server_lr: PositiveFloat = 1.0, momentum: BelowOne = 0.9) -> ServerRule:
    """FedAvgM: ``u <- momentum * u + Delta; x <- x + server_lr * u``.

    Hsu et al. 2019. With momentum 0 and server_lr 1 this is bit-identical to FedAvg.
    """
    return HeavyBall(server_lr, momentum, buffers)


@_fedavg_with
def fedadagrad(
    buffers: frozenset[str], server_lr: PositiveFloat = 0.01, beta1: BelowOne = 0.0, tau: PositiveFloat = 0.001
) -> ServerRule:
    """FedAdagrad: ``m <- beta1 m + (1 - beta1) Delta; v <- v + Delta^2; x <- x + server_lr m / (sqrt(v) + tau)``.

    Reddi et al. 2021.
    """
    return Adaptive(server_lr, beta1, 0.0, tau, add_square, buffers)


@_fedavg_with
def fedadam(
    buffers: frozenset[str],
    server_lr: PositiveFloat = 0.01,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    tau: PositiveFloat = 0.001,
) -> ServerRule:
    """FedAdam: FedAdagrad with ``v <- beta2 v + (1 - beta2) Delta^2``.

    Reddi et al. 2021. With beta1 = beta2 = 0 and server_lr = tau far above all Delta, it is bit-identical to FedAvg.
    """
    return Adaptive(server_lr, beta1, beta2, tau, move_to_square, buffers)


@_fedavg_with
def fedyogi(
    buffers: frozenset[str],
    server_lr: PositiveFloat = 0.01,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    tau: PositiveFloat = 0.001,
) -> ServerRule:
    """FedYogi: FedAdagrad with ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``.

    Reddi et al. 2021.
    """
    return Adaptive(server_lr, beta1, beta2, tau, step_to_square, buffers)
