"""Values, claims and verdicts in words, for both page and terminal."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import get_args

from atoll.reproduce.claims import Claim
from atoll.reproduce.evidence import ClaimNeed
from atoll.reproduce.judging import Status, Verdict
from atoll.support.estimates import Estimate

NONE = "\N{EN DASH}"
STATUSES: tuple[Status, ...] = get_args(Status)


def value_in_words(claim: Claim, value: float | None, is_lead: bool = False, half: float | None = None) -> str:
    """Return a value, or the lead of one, in the claim's unit, with half the width of its interval; a dash for None."""
    if value is None:
        return NONE
    if claim.check == "ratio":
        return f"{value:.2f} \N{MULTIPLICATION SIGN}"
    factor, digits, unit = _unit(claim, is_lead)
    number = f"{factor * value:,.{digits}f}"
    return f"{number}{unit}" if half is None else f"{number} ± {factor * half:,.{digits}f}{unit}"


def estimate_in_words(claim: Claim, found: Estimate | None, is_lead: bool = False) -> str:
    """Return a mean, or that of a lead, with its 95 % interval, or as a bound if runs missed the target."""
    if found is None:
        return NONE
    mean, below, above = value_in_words(claim, found.mean, is_lead), found.low == -math.inf, found.high == math.inf
    if below or above:
        return "unknown" if below and above else f"{'>' if above else '<'} {mean}"
    if found.low is None or found.high is None:
        return mean
    if claim.check == "ratio":
        return f"{mean} ({found.low:.2f} to {found.high:.2f})"
    half, other = found.high - found.mean, found.mean - found.low
    if not math.isclose(half, other, rel_tol=1e-6, abs_tol=1e-9):  # a target was met between two probes
        low, high = (value_in_words(claim, end, is_lead).partition(" ")[0] for end in (found.low, found.high))
        return f"{mean} ({low} to {high})"
    return value_in_words(claim, found.mean, is_lead, half)


def need_in_words(claim: Claim, need: ClaimNeed) -> str:
    """Return a condition, such as 'lead of A over B: 3.1 ± 0.4 points'; nothing for a run's own value or a ratio."""
    if claim.check not in ("first", "order", "alike"):
        return ""
    return f"{need.name}: {estimate_in_words(claim, need.interval(), is_lead=True)}"


def difference_in_words(claim: Claim, ours: float | None, stated: float) -> str:
    """Return our value less the paper's, or as a share of the paper's if that is a ratio or a count."""
    if ours is None:
        return NONE
    factor, digits, unit = _unit(claim, is_lead=True)
    if claim.check == "ratio" or claim.measure in ("reach", "stable"):
        return f"{100 * (ours / stated - 1):+.0f} %"
    return f"{factor * (ours - stated):+.{digits}f}{unit}"


def labels_of(claim: Claim) -> tuple[str, ...]:
    """Return the label of each of a verdict's values."""
    if claim.check == "lead":
        return (f"{claim.runs[0]} less {claim.runs[1]}",)
    if claim.check == "gain":
        return (*claim.runs, *(f"{label}, {claim.against}" for label in claim.runs))
    return (f"{claim.runs[1]} : {claim.runs[0]}",) if claim.check == "ratio" else claim.runs


def tolerance_in_words(claim: Claim) -> str:
    """Return the condition for a claim to hold, in words."""
    tolerance, (scale, digits, unit) = claim.tolerance, _unit(claim, is_lead=True)
    ahead = "lowest" if claim.lower_is_better else "highest"
    margin = f", and is ahead by more than {100 * claim.margin:g} %" if claim.margin else ""
    return {
        "first": f"{claim.runs[0]} has the {ahead} {_measured(claim)}{margin}",
        "order": f"the {_measured(claim)} is in this order, the {ahead} first{margin}",
        "alike": f"the {_measured(claim)} differs by at most {100 * tolerance:g} %",
        "close": f"the {_measured(claim)} is within {scale * tolerance:.{digits}f}{unit} of the paper's",
        "within": f"the {_measured(claim)} is within a factor of {1 + tolerance:g} of the paper's",
        "lead": f"the lead is within {scale * tolerance:.{digits}f}{unit} of the paper's",
        "gain": f"{claim.runs[0]} is ahead of {claim.runs[-1]} by a larger factor than on {claim.against}",
        "ratio": f"the ratio is within a factor of {1 + tolerance:g} of the paper's",
        "at-least": f"the {_measured(claim)} is at least {value_in_words(claim, claim.bound)}",
    }[claim.check]


def count(verdicts: Iterable[Verdict]) -> str:
    """Return the number of verdicts of each kind, such as '3 hold, 1 fails'; exploratory ones are counted apart."""
    first, other = Counter[Status](), Counter[Status]()
    for each in verdicts:
        (other if each.claim.exploratory else first)[each.status] += 1
    apart = f" (exploratory: {_counted(other)})" if other else ""
    return (_counted(first) or "no claims") + apart


def _counted(found: Counter[Status]) -> str:
    return ", ".join(f"{n} {each.removesuffix('s') if n > 1 else each}" for each in STATUSES if (n := found[each]))


def _measured(claim: Claim) -> str:
    column = claim.column.replace("_", " ")
    time = "virtual time" if claim.along == "virtual_time" else "round"
    reached = f"{100 * (claim.target or 0):g} %" if "accuracy" in claim.column else f"{claim.target or 0:g}"
    target = "" if claim.target is None else f"{reached} {column}"
    return {
        "last": f"last {column}",
        "best": f"best {column}",
        "mean": f"mean {column} over the rounds",
        "end": f"mean {column} of the last fifth",
        "jitter": f"range of {column} over the last half",
        "fall": f"first {column} over the last",
        "settled": f"round from which on {column} is within two points of its last",
        "reach": f"{time} of the first probe with {target}",
        "stable": f"{time} from which on all probes have {target}",
        "emd": "mean EMD",
        "emd-weighted": "mean EMD, weighted by samples",
        "emd-norm": "mean EMD as a Euclidean norm",
        "emd-norm-weighted": "mean EMD as a Euclidean norm, weighted by samples",
        "longest": "longest completion",
        "size-frequency": "rank correlation of clients and frequency",
        "size-links": "rank correlation of clients and links",
    }.get(claim.measure, "mean number of clients")


def _unit(claim: Claim, is_lead: bool = False) -> tuple[float, int, str]:
    """Return the factor, digits and unit in which a value is shown; a lead or a range of percentages is in points."""
    if claim.measure in ("reach", "stable", "settled"):
        return (1.0, 0, " s" if claim.along == "virtual_time" else " rounds")
    if claim.measure == "longest":
        return 1.0, 2, " s"
    if claim.measure.startswith("emd"):
        return 1.0, 3, ""
    if claim.measure == "fall" or claim.measure.startswith("size-"):
        return 1.0, 2, ""
    percent = " points" if is_lead or claim.check == "lead" or claim.measure == "jitter" else " %"
    return (100.0, 1, percent) if "accuracy" in claim.column else (1.0, 3, "")
