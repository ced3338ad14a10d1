"""Floating-point operations of a benchmark, counted by PyTorch."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from atoll.local.batches import cross_entropy
from atoll.local.models import MODELS
from bench.work import Case

SQUARE, PRODUCTS = 2048, 3
MATRIX_PRODUCT_FLOPS = 2 * SQUARE**3 * PRODUCTS
"""Operations of one round of matrix products: `PRODUCTS` of two float32 matrices [SQUARE, SQUARE]."""


def count_flops(case: Case) -> int:
    """Return the operations of a round's matrix products and convolutions, forward and backward.

    A multiplication and an addition count as two. Everything else (activations, pooling, the optimiser) is left out, as
    usual.
    """
    with torch.device("meta"):  # shapes without numbers
        module = MODELS[case.model](case.shape, case.classes)
        inputs = torch.empty(case.batch_size, *case.shape)
        targets = torch.empty(case.batch_size, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(module(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops()) * case.steps * case.clients * case.cohorts * case.clusters
