"""Randomised response: class counts that reveal little about any one sample."""

import numpy as np

from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

LEAST_EPSILON = 1e-3  # below this a million samples reveal nothing about their classes, and estimates overflow


def answer_odds(classes: int, epsilon: float) -> tuple[float, float]:
    """Return the probabilities with which a sample's answer is its own class, and any one of the others.

    p = e^epsilon / (e^epsilon + classes - 1) and q = 1 / (e^epsilon + classes - 1), so p / q = e^epsilon.
    """
    if classes < 2:
        raise InputError(f"class counts: there are {classes} classes, randomised response needs at least 2")
    if not 0 < epsilon < np.inf:
        raise InputError(f"epsilon = {epsilon}: must be greater than 0 and finite")
    other = float(np.exp(-epsilon) / (1 + (classes - 1) * np.exp(-epsilon)))  # avoids overflow for a large epsilon
    return 1 - (classes - 1) * other, other


def respond(counts: Ids, epsilon: float, rng: np.random.Generator) -> Ids:
    """Return the counts of randomised answers, [classes]; their sum is unchanged.

    k-ary randomised response (Kairouz et al. 2016): each sample independently answers its own class with probability p,
    and each other class with probability q (`answer_odds`). Any other class of a sample makes an answer at most
    e^epsilon times less likely: epsilon-local differential privacy of each label. That holds for one answer per sample.
    Fresh answers to repeated questions would let the noise be averaged away, so a node keeps its first. The number of
    samples is not hidden. `rng` must be unknown to the server.
    """
    own, other = answer_odds(len(counts), epsilon)
    odds = np.full((len(counts), len(counts)), other)
    np.fill_diagonal(odds, own)
    return np.asarray(rng.multinomial(counts, odds).sum(axis=0), np.int64)


def estimate(responded: Ids, epsilon: float) -> Floats:
    """Return unbiased estimates of the counts behind randomised answers, ``(r_c - n q) / (p - q)``, [classes].

    They sum to n; some may be negative.
    """
    own, other = answer_odds(len(responded), epsilon)
    return np.asarray((responded - responded.sum() * other) / (own - other))
