"""Which norms of updates are usual, learned from accepted ones, so that no single update ruins a plain mean."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from statistics import median

from atoll.support.errors import RunError

Norms = tuple[tuple[float, int], ...]
"""Norms of accepted updates, each with its client."""

KEPT = 100
"""The latest accepted norms, which are remembered."""
ENOUGH = 10
"""From so many remembered norms on, the limit depends on them alone; before that on those of the event's too."""
LEAST = 3
"""With fewer norms, their median may be an attacker's."""
TIMES = 10.0, 100.0
"""The limit is between so many times the median: honest clients differ in their samples and steps."""
DEVIATIONS = 6.0
"""Between these, the limit is so many standard deviations above the median of the norms' logarithms."""
_SHOWN = 10  # most clients that an error names
_OF_MEDIAN = 1.4826  # standard deviation of a normal distribution in median absolute deviations


def limit_of(norms: Iterable[float]) -> float:
    """Return the largest usual norm, given others; of one alone nothing follows.

    It is the median times ``exp(DEVIATIONS * s)``, where s is 1.4826 times the median absolute deviation of the norms'
    logarithms, but at least the first and at most the second of `TIMES`; the first with fewer norms than `ENOUGH`,
    whose deviation says little. Of two norms, it is the second times the lesser.

    >>> limit_of([1.0, 1.0, 9e11]), limit_of([1.0, 9e11]), limit_of([9e11])
    (10.0, 100.0, inf)
    """
    found, (least, most) = [norm for norm in norms if 0 < norm < math.inf], TIMES
    if len(found) < LEAST:
        return most * min(found) if len(found) > 1 else math.inf
    middle = median(found)
    deviation = _OF_MEDIAN * median(abs(math.log(norm / middle)) for norm in found) if len(found) >= ENOUGH else 0.0
    return middle * min(max(math.exp(min(DEVIATIONS * deviation, math.log(most))), least), most)


def remember(norms: Norms, accepted: Norms) -> Norms:
    """Return the norms to be remembered once more have been accepted.

    >>> len(remember(((1.0, 3),) * 99, ((2.0, 4), (2.0, 5))))
    100
    """
    return (*norms, *accepted)[-KEPT:] if accepted else norms


def lengths(norms: Norms) -> list[float]:
    """Return the norms alone."""
    return [norm for norm, _ in norms]


def limits_of(
    event: int, known: Sequence[Norms], own: Sequence[float], name_of: Callable[[int], object]
) -> list[float]:
    """Return the largest usual norm of each of an event's cohorts.

    Args:
        known: norms accepted before each cohort's start.
        own: of the event's updates, if few are known to one of the cohorts.
    """
    for each in known:
        found = [*lengths(each), *own]
        if len(each) <= 2 * ENOUGH <= 2 * len(found):
            limit = TIMES[1] * median(found)
            if wrong := {client: norm for norm, client in each if norm > limit}:
                raise RunError(
                    f"event {event}: the models are worthless, since updates of {_shown(wrong, name_of)} have counted, "
                    f"when too few were known to tell that they are much longer than usual (norms up to {limit:.3g}). "
                    "Begin the run anew without these clients, or with faults.max_update_norm"
                )
    return [limit_of([*lengths(each), *own]) for each in known]


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
    shown = ", ".join(f"{name_of(client)} ({norm:.3g})" for client, norm in islice(norms.items(), _SHOWN))
    return shown + (f" and {len(norms) - _SHOWN} more" if len(norms) > _SHOWN else "")
