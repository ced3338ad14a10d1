"""Class counts that say little of any one sample: randomised response."""

import numpy as np

from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

LEAST_EPSILON = 1e-3  # below it a million samples tell nothing of their classes, and estimates overflow


def answer_odds(classes: int, epsilon: float) -> tuple[float, float]:
    """Return the probabilities with which a sample's answer is its own class, and any one of the others.

    p = e^epsilon / (e^epsilon + classes - 1) and q = 1 / (e^epsilon + classes - 1), so p / q = e^epsilon.

    Raises:
        InputError: fewer than two classes, or an epsilon that is not positive.

    >>> answer_odds(2, np.log(3))
    (0.75, 0.25)
    """
    if classes < 2:
        raise InputError(f"class counts: there are {classes} classes, randomised response needs at least 2")
    if not 0 < epsilon < np.inf:
        raise InputError(f"epsilon = {epsilon}: must be greater than 0 and finite")
    other = float(
        np.exp(-epsilon) / (1 + (classes - 1) * np.exp(-epsilon))
    )  # so that a large epsilon does not overflow
    return 1 - (classes - 1) * other, other


def respond(counts: Ids, epsilon: float, rng: np.random.Generator) -> Ids:
    """Return the counts of randomised answers, [classes]; their sum stays what it was.

    k-ary randomised response (Kairouz et al. 2016): each sample answers its own class with probability p, else one of
    the others, each with q (`answer_odds`), independently. Whatever is answered, any other class of a sample makes the
    answer at most e^epsilon times less likely: epsilon-local differential privacy of each label. That holds for one
    answer a sample; a node that drew anew for each question would let its noise be averaged away, so it keeps the
    first. The number of samples is not hidden. `rng` must be unknown to the server.
    """
    own, other = answer_odds(len(counts), epsilon)
    odds = np.full((len(counts), len(counts)), other)
    np.fill_diagonal(odds, own)
    return np.asarray(rng.multinomial(counts, odds).sum(axis=0), np.int64)


def estimate(responded: Ids, epsilon: float) -> Floats:
    """Return unbiased estimates of the counts behind randomised answers, ``(r_c - n q) / (p - q)``, [classes].

    They sum to n; single ones may be negative.
    """
    own, other = answer_odds(len(responded), epsilon)
    return np.asarray((responded - responded.sum() * other) / (own - other))
