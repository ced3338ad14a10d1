"""Which norms of updates are usual, learned from accepted ones, so that no single update ruins a plain mean."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from statistics import median

from atoll.support.errors import RunError

Norms = tuple[tuple[float, int], ...]
"""Norms of accepted updates, each with its client."""

KEPT = 100
"""The latest accepted norms, which are remembered."""
ENOUGH, LEAST = 10, 3
"""From so many norms of so many clients on, the limit depends on those remembered alone; before on the event's too."""
TIMES = 10.0, 100.0
"""The limit is between so many times the median: honest clients differ in their samples and steps."""
DEVIATIONS = 6.0
"""Between these, the limit is so many standard deviations above the median of the norms' logarithms."""
_SHOWN = 10  # most clients that an error names
_OF_MEDIAN = 1.4826  # standard deviation of a normal distribution in median absolute deviations


def limit_of(norms: Norms) -> float:
    """Return the largest usual norm, given others; of one client's alone nothing follows.

    It is m ``exp(DEVIATIONS * s)``, where m is the median of the clients' medians, so that no client counts for more
    than one, and s is 1.4826 times the median absolute deviation of the norms' logarithms from that of m, but at least
    the first and at most the second of `TIMES`; the first with fewer norms than `ENOUGH`, whose deviation says little.
    Of two clients' norms, it is the second times the longer median.
    """
    votes, (least, most) = _votes(norms), TIMES
    if len(votes) < LEAST:
        return most * max(votes.values()) if len(votes) > 1 else math.inf
    middle, found = median(votes.values()), [norm for norm, _ in norms if 0 < norm < math.inf]
    deviation = _OF_MEDIAN * median(abs(math.log(norm / middle)) for norm in found) if len(found) >= ENOUGH else 0.0
    return middle * min(max(math.exp(min(DEVIATIONS * deviation, math.log(most))), least), most)


def are_few(norms: Norms) -> bool:
    """Return whether the limit depends on the event's norms too."""
    return len(norms) < ENOUGH or len(_votes(norms)) < LEAST


def _votes(norms: Norms) -> dict[int, float]:
    """Return the median norm of each client."""
    by = dict[int, list[float]]()
    for norm, client in norms:
        if 0 < norm < math.inf:
            by.setdefault(client, []).append(norm)
    return {client: median(found) for client, found in by.items()}


def remember(norms: Norms, accepted: Norms) -> Norms:
    """Return the norms to be remembered once more have been accepted."""
    return (*norms, *accepted)[-KEPT:] if accepted else norms


def limits_of(event: int, known: Sequence[Norms], own: Norms, name_of: Callable[[int], object]) -> list[float]:
    """Return the largest usual norm of each of an event's cohorts.

    Args:
        known: norms accepted before each cohort's start.
        own: of the event's updates, if those known to one of the cohorts `are_few`.
    """
    return [_limit_of(event, each, own, name_of) for each in known]


def _limit_of(event: int, known: Norms, own: Norms, name_of: Callable[[int], object]) -> float:
    votes, most = _votes((*known, *own)), TIMES[1]
    if len(votes) == LEAST - 1:
        short, long = sorted(votes.values())
        is_of_both = votes.keys() == _votes(own).keys()
        if long <= most * short:
            return most * long
        if len(known) < ENOUGH or not (is_of_both or votes.keys() == _votes(known).keys()):  # there may be others
            return most * (short if is_of_both else long)
        raise RunError(
            f"event {event}: updates of {_shown(votes, name_of)} are more than {most:g} times apart, and with two "
            "clients nobody can tell whose are right; the model before the event is kept. Begin the run anew with one "
            "of them, with more clients, or with faults.usual_norms = 'note'"
        )
    if len(known) <= 2 * ENOUGH <= 2 * len(known + own) and votes:
        limit = most * median(votes.values())
        if wrong := {client: norm for norm, client in known if norm > limit}:
            raise RunError(
                f"event {event}: the models are worthless, since updates of {_shown(wrong, name_of)} have counted, "
                f"when too few were known to tell that they are much longer than usual (norms up to {limit:.3g}). "
                "Begin the run anew without these clients, or with faults.max_update_norm"
            )
    return limit_of((*known, *own))


def require_usual(
    event: int, accepted: int, unusual: Mapping[int, float], limit: float, name_of: Callable[[int], object] = int
) -> None:
    """Stop if most of an event's results, and not just one or two, are refused: the limit or the model is wrong."""
    if len(unusual) < LEAST or len(unusual) <= accepted:
        return
    raise RunError(
        f"event {event}: {len(unusual)} of {len(unusual) + accepted} updates are much longer than usual (norms up to "
        f"{limit:.3g}), those of {_shown(unusual, name_of)}; the model before the event is kept. If they are right, "
        "begin a new run with model.start = this run's folder and faults.usual_norms = 'note'"
    )


def _shown(norms: Mapping[int, float], name_of: Callable[[int], object]) -> str:
    shown = ", ".join(f"{name_of(client)} ({norm:.3g})" for client, norm in islice(sorted(norms.items()), _SHOWN))
    return shown + (f" and {len(norms) - _SHOWN} more" if len(norms) > _SHOWN else "")
