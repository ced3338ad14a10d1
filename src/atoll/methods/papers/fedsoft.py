"""FedSoft: each client's own model, pulled toward the centres that its data come from (Ruan and Joe-Wong 2022)."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.local.rule import LocalRule
from atoll.methods.papers.fedavg import fedavg
from atoll.methods.parts.checking import checked
from atoll.methods.parts.rule_requirements import refuse_proximal
from atoll.methods.parts.together import require_components
from atoll.schedules.clock import Clock
from atoll.support.limits import NotNegative, Positive, Share

if TYPE_CHECKING:
    from torch import nn


@checked
def fedsoft(
    population: Population,
    rule: LocalRule,
    rounds: int,
    module: "nn.Module",
    clusters: Positive = 3,
    penalty: NotNegative = 0.1,
    least_importance: Share = 0.0001,
    fraction: Share = 0.1,
    clock: Clock | None = None,
    seed: int = 0,
) -> Method:
    """FedSoft: each client trains one model of its own, and so helps all centres that its data come from.

    Ruan and Joe-Wong 2022, "FedSoft: soft clustered federated learning with proximal local updating", Algorithm 1.
    Client k counts the share of its samples on which each centre c_s has the least loss, ``u_ks = max(n_ks / n_k,
    sigma)``, and takes the rule's steps from its own last model on ``f_k(w) + lambda / 2 * sum_s u_ks ||w - c_s||^2``.
    Then ``c_s <- sum_k v_sk w_k``, with ``v_sk = u_ks n_k / sum over the cohort``. The paper draws clients for each
    centre with probabilities v_sk; a cohort of a fixed size, drawn uniformly and weighted by v_sk as in its code
    without selection, has the same expectation. Importances are estimated in each of a client's rounds (tau = 1).
    S models go down, and one up.

    Args:
        module: a client's model and the centres, as `own_and_centres` makes them.
        clusters: number of centres, S.
        penalty: weight of the pull toward the centres, lambda.
        least_importance: the least u_ks, sigma.

    Raises:
        InputError: more centres than clients, or the module is not made of so many.
    """
    refuse_proximal(rule, told := "method.name = 'fedsoft'")
    require_components(module, clusters, len(population))
    from atoll.local.weights import read_model  # late: reading settings needs no PyTorch
    from atoll.methods.parts.soft_clusters import OWN, OwnModelUp, SoftTrainer, average_by_importance

    initial = {name: each for name, each in read_model(module).items() if name.startswith(OWN)}
    trainer, stage = partial(SoftTrainer, penalty=penalty, least=least_importance), OwnModelUp(initial).stage(told)
    method = fedavg(population, rule, rounds, fraction, clock, seed)
    return replace(method, trainer=trainer, combine=average_by_importance, stays=tuple(initial), stages=(stage,))
