"""Averaging the products of LoRA's factors instead of the factors."""

from collections.abc import Iterable

import torch

from atoll.aggregation.mean import Weighted, mean
from atoll.local.models import Model
from atoll.support.errors import InputError
from atoll.support.process import one_thread


def factors_of(names: Iterable[str]) -> dict[str, str]:
    """Return the names of LoRA's factors A, each with its B, as PEFT has them.

    Raises:
        InputError: there are none.
    """
    there = set(names)
    pairs = {a: a.replace("lora_A.", "lora_B.").replace("lora_embedding_A.", "lora_embedding_B.") for a in there}
    found = {a: b for a, b in sorted(pairs.items()) if a != b and b in there and "@" not in a}
    if not found:
        raise InputError("method.combine = 'lora-product': the model has no adapters that travel; model.lora adds them")
    return found


@one_thread()
def mean_of_products(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Return the mean of the models, but for LoRA's factors: those of the best approximation of the mean of ``B A``.

    All factors side by side give that mean as ``[p_1 B_1 ... p_n B_n] [A_1; ...; A_n]``, which is never multiplied out:
    the singular values of its two triangular factors' product are its own.
    """
    pairs = list(models)
    total = sum(weight for weight, _ in pairs)
    made = mean(pairs)
    for a, b in factors_of(made).items():
        left = torch.cat([weight / total * each[b].double().flatten(1) for weight, each in pairs], dim=1)
        right = torch.cat([each[a].double().flatten(1) for _, each in pairs])
        (out, upper), (into, lower) = torch.linalg.qr(left), torch.linalg.qr(right.T)
        u, sizes, v = torch.linalg.svd(upper @ lower.T, full_matrices=False)
        rank = min(len(made[a]), len(sizes))
        outer, inner = torch.zeros_like(made[b]).flatten(1), torch.zeros_like(made[a]).flatten(1)
        outer[:, :rank] = (out @ u[:, :rank] * sizes[:rank]).to(outer)
        inner[:rank] = (v[:rank] @ into.T).to(inner)
        made |= {a: inner.reshape_as(made[a]), b: outer.reshape_as(made[b])}
    return made
