"""Whether values over seeds settle a claim, tested by Student's t.

A claim needs one or more conditions: that the mean over seeds of some quantity lies in a range. The quantity is a run's
lead over another with the same seed, so with the same data and network; a run's own value; or the logarithm of a ratio.
A claim

- holds if every 95 % interval lies in its range: wrong in at most 2.5 % of cases, however many conditions there are;
- fails if some interval lies wholly outside its range, each widened to 1 - 5 %/k for k conditions: also wrong in at
  most 2.5 %;
- is undecided otherwise, and always with fewer than three seeds.

A model changes only at events, so a target was met at some event after the last evaluation that missed it: an interval
of "rounds to" begins at the first of these. A target that a run never met counts as met no earlier than the run's end:
the interval has no bound on that side. So a run that meets a target in all seeds is ahead of one that never does; such
a run is never surely behind; and between two such runs nothing is known.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Literal

import numpy as np

from atoll.reproduce.claims import Claim
from atoll.support.estimates import Estimate, estimate

LEAST_SEEDS = 3
"""Fewer seeds settle nothing: two may agree by chance."""

_COMPARING = ("first", "order", "alike", "ratio", "lead", "gain")
_ROUNDING = 1e-9
_SURE = 0.95


@dataclass(frozen=True)
class Value:
    """The value of a run.

    Attributes:
        is_bound: whether it is only the end of a run that never met its target, so that the true value is larger.
        spacing: by how much less the true value may be, where events lie between two probes.
    """

    number: float
    is_bound: bool = False
    spacing: float = 0.0


Values = Mapping[int, Value]
"""A run's values by seed."""
Range = tuple[float, float]


@dataclass(frozen=True)
class ClaimNeed:
    """A condition of a claim: that a mean over seeds lies in a range.

    Attributes:
        numbers: one per seed.
        wanted: the range in which the mean is as claimed.
        open_below: whether the true value of a number may be lower.
        open_above: whether it may be higher.
        less: by how much the true mean may be lower, since probes are apart.
        more: by how much it may be higher.
    """

    name: str
    numbers: tuple[float, ...]
    wanted: Range
    open_below: bool = False
    open_above: bool = False
    less: float = 0.0
    more: float = 0.0

    def interval(self, confidence: float = _SURE) -> Estimate:
        """Return the mean and its interval, which is unbounded on a side where a number is only a bound."""
        found = estimate(self.numbers, confidence)
        low = None if found.low is None else found.low - self.less
        high = None if found.high is None else found.high + self.more
        return replace(found, low=-math.inf if self.open_below else low, high=math.inf if self.open_above else high)

    def is_inside(self) -> bool:
        """Return whether the interval lies in the range claimed."""
        found, (low, high) = self.interval(), self.wanted
        return found.low is not None and found.high is not None and low <= found.low and found.high <= high

    def is_outside(self, confidence: float = _SURE) -> bool:
        """Return whether the interval lies wholly outside the range claimed; a tie in all seeds does not."""
        found, low, high = self.interval(confidence), self.wanted[0] - 2 * _ROUNDING, self.wanted[1] + 2 * _ROUNDING
        return found.low is not None and found.high is not None and (found.high < low or found.low > high)


Settled = Literal["holds", "fails", "undecided"]


def settle(needs: Sequence[ClaimNeed]) -> Settled:
    """Return whether a claim's conditions hold; see the top of this module."""
    if min(len(need.numbers) for need in needs) < LEAST_SEEDS:
        return "undecided"
    if all(need.is_inside() for need in needs):
        return "holds"
    sure = 1 - (1 - _SURE) / len(needs)
    return "fails" if any(need.is_outside(sure) for need in needs) else "undecided"


def summarise(values: Values) -> Estimate:
    """Return a run's mean and 95 % interval, open above if a value is only a bound; no target is met before 0."""
    numbers = tuple(value.number for value in values.values())
    spacing = _mean_spacing(values.values())
    found = ClaimNeed("", numbers, (0, 0), open_above=_any_bound(values), less=spacing).interval()
    return replace(found, low=max(0.0, found.low)) if spacing and found.low is not None else found


def needs_of(claim: Claim, values: Sequence[Values]) -> list[ClaimNeed]:
    """Return a claim's conditions, given the values of each of its runs; none if two runs share no seed."""
    needs = list(_compare(claim, values) if claim.check in _COMPARING else _hold(claim, values))
    return needs if all(need.numbers for need in needs) else []


def _compare(claim: Claim, values: Sequence[Values]) -> Iterator[ClaimNeed]:
    """Yield the differences between runs that a claim is about, seed by seed."""
    if claim.check == "gain":
        here, there = (_factors(claim, values[low : low + 2]) for low in (0, 2))
        yield _difference("gain", here, there, (_ROUNDING, math.inf))
        return
    pairs = {
        "first": [(0, other) for other in range(1, len(values))],
        "order": list(pairwise(range(len(values)))),
        "alike": list(combinations(range(len(values)), 2)),
        "ratio": [(0, 1)],
        "lead": [(0, 1)],
    }[claim.check]
    largest = max(abs(_mean(each)) for each in values)
    for one, other in pairs:
        names = claim.runs[one], claim.runs[other]
        if claim.check == "ratio":
            middle, width = math.log(claim.stated[0]), math.log(1 + claim.tolerance) + _ROUNDING
            yield _difference("ratio", values[other], values[one], (middle - width, middle + width), is_log=True)
        elif claim.check == "lead":
            width = claim.tolerance + _ROUNDING
            wanted = (claim.stated[0] - width, claim.stated[0] + width)
            yield _difference("lead", values[one], values[other], wanted)
        elif claim.check == "alike":
            width = claim.tolerance * largest + _ROUNDING
            yield _difference(f"{names[0]} less {names[1]}", values[one], values[other], (-width, width))
        else:
            ahead, behind = (other, one) if claim.lower_is_better else (one, other)
            name = f"lead of {names[0]} over {names[1]}"
            least = claim.margin * abs(_mean(values[other])) + _ROUNDING
            yield _difference(name, values[ahead], values[behind], (least, math.inf))


def _factors(claim: Claim, values: Sequence[Values]) -> Values:
    """Return by seed the logarithm of the factor by which the first run is ahead of the second."""
    ahead, behind = values[::-1] if claim.lower_is_better else values
    pairs = {seed: (ahead[seed].number, behind[seed].number) for seed in ahead if seed in behind}
    return {seed: Value(math.log(a / b)) for seed, (a, b) in pairs.items() if a > 0 and b > 0}


def _difference(name: str, of: Values, less: Values, wanted: Range, is_log: bool = False) -> ClaimNeed:
    """Return the difference of two runs' values, or of their logarithms, for each seed that both have."""
    pairs = [(of[seed], less[seed]) for seed in of if seed in less]
    if is_log:
        pairs = [(a, b) for a, b in pairs if a.number > 0 and b.number > 0]
    return ClaimNeed(
        name=name,
        numbers=tuple(math.log(a.number / b.number) if is_log else a.number - b.number for a, b in pairs),
        wanted=wanted,
        open_below=any(b.is_bound for _, b in pairs),
        open_above=any(a.is_bound for a, _ in pairs),
        less=_mean_spacing([a for a, _ in pairs], is_log),
        more=_mean_spacing([b for _, b in pairs], is_log),
    )


def _mean_spacing(values: Iterable[Value], is_log: bool = False) -> float:
    """Return by how much the mean of the values, or of their logarithms, may be lower."""
    logs = (math.inf if each.spacing >= each.number else -math.log1p(-each.spacing / each.number) for each in values)
    found = list(logs) if is_log else [each.spacing for each in values]
    return float(np.mean(found)) if found else 0.0


def _hold(claim: Claim, values: Sequence[Values]) -> Iterator[ClaimNeed]:
    """Yield each run's own value, and the range claimed for it."""
    for number, (label, each) in enumerate(zip(claim.runs, values, strict=True)):
        if claim.check == "at-least":
            wanted = ((claim.bound or 0.0) - _ROUNDING, math.inf)
        elif claim.check == "close":
            width = claim.tolerance + _ROUNDING
            wanted = (claim.stated[number] - width, claim.stated[number] + width)
        else:
            most = 1 + claim.tolerance + _ROUNDING
            wanted = (claim.stated[number] / most, claim.stated[number] * most)
        numbers = tuple(value.number for value in each.values())
        spacing = _mean_spacing(each.values())
        yield ClaimNeed(label, numbers, wanted, open_above=_any_bound(each), less=spacing)


def _any_bound(values: Values) -> bool:
    return any(value.is_bound for value in values.values())


def _mean(values: Values) -> float:
    return float(np.mean([value.number for value in values.values()]))
