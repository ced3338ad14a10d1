"""Links over which several send at once, at max-min fair rates: none can rise unless a slower one falls."""

import math
from dataclasses import dataclass

import numpy as np

from atoll.support.arrays import Floats, Mask

_ROUNDING = 1e-12  # the times of two senders that finish together may differ by this much


@dataclass(frozen=True, eq=False)
class Sharing:
    """Links that are shared; without them, an aggregator's clients send one after the other (FedUC).

    Attributes:
        up_seconds: for one update to pass the link shared by an aggregator's clients, 0 if there is none,
            [aggregators].
        down_seconds: the same for a model sent to one of them, [aggregators].
        crosses: which links on the way to the server each aggregator's model crosses, [links, aggregators].
        trunk_up_seconds: for a model to pass up each of these, [links].
        trunk_down_seconds: the same down, [links].
    """

    up_seconds: Floats
    down_seconds: Floats
    crosses: Mask
    trunk_up_seconds: Floats
    trunk_down_seconds: Floats


def fair_rates(limits: Floats, crosses: Mask, capacities: Floats) -> Floats:
    """Return each sender's max-min fair rate, by progressive filling, [senders].

    All rates rise together; a sender's rate stops at its own limit, possibly inf if it crosses a link, or when a link
    that it crosses, [links, senders], is full.
    """
    rates = np.where(crosses.any(axis=0), 0.0, limits)
    rising, left = crosses.any(axis=0), capacities.astype(float)
    while rising.any():
        many = (crosses & rising).sum(axis=1)
        shares = np.divide(left, many, out=np.full(len(left), math.inf), where=many > 0)
        level = max(float(shares.min()), 0.0)
        stopping = rising & (limits <= level)
        if stopping.any():
            rates[stopping] = limits[stopping]
        else:  # the fullest link is full
            stopping = rising & crosses[int(shares.argmin())]
            rates[stopping] = level
        left -= crosses[:, stopping] @ rates[stopping]
        rising &= ~stopping
    return rates


def finish_seconds(begins: Floats, alone: Floats, crosses: Mask, carries: Floats) -> Floats:
    """Return when each sender is done if all share the links max-min fairly, [senders].

    Each needs the seconds `alone` if no other sends. `crosses` says which links it crosses, [links, senders]; its data
    pass a link in the seconds `carries` [links], at most the `alone` of those that cross it.
    """
    ends = begins + alone
    now, left = -math.inf, np.ones(len(begins))
    crosses, capacities = crosses[carries > 0], 1 / carries[carries > 0]
    open_ = crosses.any(axis=0) & (alone > 0)  # the others share nothing
    while open_.any():
        going = np.flatnonzero(open_ & (begins <= now))
        step = float(begins[open_ & (begins > now)].min(initial=math.inf)) - now  # until the next one begins
        if len(going):
            rates = fair_rates(1 / alone[going], crosses[:, going], capacities)
            needed = left[going] / rates
            step = min(step, float(needed.min()))
            left[going] -= rates * step
            done = going[needed <= step * (1 + _ROUNDING)]
            ends[done], open_[done] = now + step, False
        now = now + step if len(going) else float(begins[open_ & (begins > now)].min())
    return ends


def side_by_side(begins: Floats, alone: Floats, carries: float) -> Floats:
    """Return `finish_seconds` of senders that all share one link, [senders]."""
    return finish_seconds(begins, alone, np.ones((1, len(begins)), bool), np.array([carries]))
