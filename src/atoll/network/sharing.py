"""Links that several send over at once, at max-min fair rates: none can have more without a slower one having less."""

import math
from dataclasses import dataclass

import numpy as np

from atoll.support.arrays import Floats, Mask

_ROUNDING = 1e-12  # by which two senders who are done at once may seem apart


@dataclass(frozen=True, eq=False)
class Sharing:
    """Links that are shared; without them, clients of an aggregator send one after the other (FedUC).

    Attributes:
        up_seconds: in which what an aggregator's clients send it through has carried one update, 0 where nothing limits
            them together, [aggregators].
        down_seconds: the same for a model that the aggregator sends one of them, [aggregators].
        crosses: which links on the way to the server each aggregator's model crosses, [links, aggregators].
        trunk_up_seconds: in which each of these has carried a model up, [links].
        trunk_down_seconds: the same down, [links].
    """

    up_seconds: Floats
    down_seconds: Floats
    crosses: Mask
    trunk_up_seconds: Floats
    trunk_down_seconds: Floats


def fair_rates(limits: Floats, crosses: Mask, capacities: Floats) -> Floats:
    """Return each sender's max-min fair rate, by progressive filling, [senders].

    All rates rise together; a sender stops at its own limit, or when a link that it crosses is full.

    Args:
        limits: each sender's own, which may be inf if a link limits it, [senders].
        crosses: which links it crosses, [links, senders].
        capacities: of the links, [links].

    >>> fair_rates(np.array([1.0, 5.0, 9.0]), np.ones((1, 3), bool), np.array([9.0]))
    array([1., 4., 4.])
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
    """Return when each of some senders is done, while all share links max-min fairly, [senders].

    Args:
        begins: when each begins to send, [senders].
        alone: seconds that it sends if nobody else does, [senders].
        crosses: which links it crosses, [links, senders].
        carries: seconds in which each link carries what one of them sends, at most `alone` of who crosses it, [links].
    """
    ends = begins + alone
    now, left = -math.inf, np.ones(len(begins))
    crosses, capacities = crosses[carries > 0], 1 / carries[carries > 0]
    open_ = crosses.any(axis=0) & (alone > 0)  # the others meet nobody
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
