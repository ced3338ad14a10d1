"""Whether claims hold, judged from run folders alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from atoll.report.figures.plans import Plans
from atoll.report.figures.sizes import rank_correlation
from atoll.report.reading.groups import seed_of
from atoll.report.reading.runs import Run
from atoll.report.tables.run_tables import first_met
from atoll.reproduce.claims import OF_CLUSTERS, Claim
from atoll.reproduce.evidence import LEAST_SEEDS, ClaimNeed, Value, Values, needs_of, settle, summarise
from atoll.runs.columns import rises
from atoll.runs.titles import without_seed
from atoll.support.estimates import Estimate

Status = Literal["holds", "fails", "undecided", "not comparable", "not run"]
_SETTLED = 0.02  # of accuracy: how far from its last value a curve may still be

_CLASSES = {"mnist": 10, "cifar10": 10, "digits": 10}

_OF_EMD = {
    "emd": "mean_emd",
    "emd-weighted": "weighted_emd",
    "emd-norm": "mean_emd_norm",
    "emd-norm-weighted": "weighted_emd_norm",
}


@dataclass(frozen=True)
class Verdict:
    """A claim and its verdict.

    Attributes:
        status: holds, fails or undecided, by `atoll.reproduce.evidence`; not comparable at this scale; not run.
        ours: the mean over seeds and its 95 % interval for each of the claim's runs, or for their ratio; an infinite
            end stands for runs that never met the target. None if there is no value.
        needs: the conditions tested; empty if there were none.
        reason: why it failed or was not decided.
    """

    claim: Claim
    status: Status
    ours: tuple[Estimate | None, ...]
    needs: tuple[ClaimNeed, ...] = ()
    reason: str = ""
    scale: str = ""

    @property
    def seeds(self) -> int:
        """How many seeds each of its runs has at least."""
        return min((found.n for found in self.ours if found is not None), default=0)


def judge(claim: Claim, runs: Sequence[Run], plans: Plans, scale: str, missing: str = "") -> Verdict:
    """Judge one claim by the recipe's finished runs, or its clusterings; `missing` says why others are not there.

    Runs of which none is ever at twice the accuracy of chance decide nothing.
    """
    return replace(_judge(claim, runs, plans, scale, missing), scale=scale)


def _judge(claim: Claim, runs: Sequence[Run], plans: Plans, scale: str, missing: str) -> Verdict:
    measured = [_measured(claim, label, runs, plans) for label in claim.runs]
    if claim.against:
        there = claim.model_copy(update={"panel": claim.against})
        measured += [_measured(there, label, runs, plans) for label in claim.runs]
    values = [{seed: value for seed, value in each if value is not None} for each in measured]
    found = tuple(summarise(each) if each else None for each in values)
    if not all(measured):
        ours = found if any(found) and claim.check not in ("ratio", "lead") else ()
        return Verdict(claim, "not run", ours, reason=missing)
    not_here = claim.not_at.get(scale) or _why_chance(claim, runs)
    if not all(values):
        return Verdict(claim, "not comparable", found, reason=not_here or "not all runs have this value")
    return _decide(claim, values, found, not_here)


def _why_chance(claim: Claim, runs: Sequence[Run]) -> str | None:
    """Return a reason if none of a claim's runs is ever better than twice chance; its data set's classes are known."""
    of_claim = [run for run in runs if run.panel == claim.panel and any(is_of(run.label, own) for own in claim.runs)]
    classes = {_CLASSES.get(str(run.config.get("data", {}).get("dataset"))) for run in of_claim}
    accuracies = [run.rows["test_accuracy"] for run in of_claim]
    known = [float(np.nanmax(each)) for each in accuracies if np.isfinite(each).any()]
    if len(classes) != 1 or not known or (count := classes.pop()) is None or max(known) >= 2 / count:
        return None
    return f"no run is above {200 / count:g} % accuracy, twice chance"


def _decide(
    claim: Claim, values: Sequence[Values], found: tuple[Estimate | None, ...], not_here: str | None
) -> Verdict:
    """Judge a claim whose runs all have values; `not_here` says why it cannot be judged at this scale."""
    needs = tuple(needs_of(claim, values))
    ours = _ratio(needs) if claim.check == "ratio" else found
    if claim.check == "lead":
        ours = (needs[0].interval() if needs else None,)
    if not_here:
        return Verdict(claim, "not comparable", ours, needs, not_here)
    if not needs:
        return Verdict(claim, "undecided", ours, reason="no seed is finished in all runs")
    status = settle(needs)
    if status != "undecided":
        return Verdict(claim, status, ours, needs, claim.why if status == "fails" else "")
    if all(value.is_bound for each in values for value in each.values()):
        return Verdict(claim, "not comparable", ours, needs, "no run gets that far at this scale")
    return Verdict(claim, status, ours, needs, _undecided(needs))


def _ratio(needs: Sequence[ClaimNeed]) -> tuple[Estimate | None]:
    """Return the ratio from the condition on its logarithm."""
    if not needs:
        return (None,)
    found = needs[0].interval()
    low, high = (end if end in (None, -math.inf) else math.exp(end) for end in (found.low, found.high))
    return (Estimate(found.n, math.exp(found.mean), None, low, high),)


def meet_target(claim: Claim, run: Run) -> Value | None:
    """Return where a run meets the claim's target, and how much earlier it may have met it; None if it never does.

    A model changes only at events, which are taken to be evenly spaced between two probes.
    """
    column = run.rows.get(claim.column)
    if column is None or not (known := np.isfinite(column)).any():
        return None
    probe = first_met(column[known], claim.target or 0.0, not rises(claim.column), claim.measure == "stable")
    if probe is None:
        return None
    at, events = run.rows[claim.along][known], run.rows["event"][known]
    gap, count = (each[probe] - each[probe - 1] if probe else 1 for each in (at, events))
    return Value(float(at[probe]), spacing=float(gap * (1 - 1 / count)))


def measure_run(claim: Claim, run: Run) -> float | None:
    """Return a claim's measure of a trained run, other than where it meets a target; None if it has no such value."""
    column, rounds = run.rows.get(claim.column), run.rows["round"]
    if column is None or not (known := np.isfinite(column)).any():
        return None
    values, at = column[known], rounds[known]
    span = at[-1] - at[0]
    return {
        "last": lambda: float(values[-1]),
        "best": lambda: float(values.min() if claim.lower_is_better else values.max()),
        "mean": lambda: float(np.trapezoid(values, at) / span) if span else float(values[0]),
        "end": lambda: float(values[at >= at[0] + 0.8 * span].mean()),
        "jitter": lambda: float(np.ptp(values[at >= at[0] + 0.5 * span])),
        "settled": lambda: float(at[first_met(-abs(values - values[-1]), -_SETTLED, stable=True) or 0]),
        "fall": lambda: float(values[0] / values[-1]) if values[-1] else math.inf,
    }[claim.measure]()


def measure_plan(claim: Claim, plan: Mapping[str, Any]) -> float | None:
    """Return a claim's measure of a clustering; None if it has no such value."""
    clusters = plan["clusters"]
    sizes = np.array([float(cluster["size"]) for cluster in clusters])
    if claim.measure in _OF_EMD:
        return float(plan[_OF_EMD[claim.measure]])
    if claim.measure == "longest":
        return float(plan["max_completion_seconds"])
    if claim.measure == "size-frequency":
        return rank_correlation(np.array([float(cluster["psi"]) for cluster in clusters]), sizes)
    links = np.array([float(cluster["links"]) for cluster in clusters])
    if claim.measure == "size-links":
        return rank_correlation(links, sizes)
    chosen = links == int(claim.measure.split("-")[2])
    return float(sizes[chosen].mean()) if chosen.any() else None


def is_of(label: str, selector: str) -> bool:
    """Return whether a run's label without its seed is the one selected."""
    return without_seed(label) == selector


def _measured(claim: Claim, label: str, runs: Sequence[Run], plans: Plans) -> list[tuple[int, Value | None]]:
    """Return (seed, value) of each run with this label; the value is None if a run has none."""
    if claim.measure in OF_CLUSTERS:
        chosen = [plan for plan in plans if plan["panel"] == claim.panel and is_of(plan["label"], label)]
        return [(int(plan["seed"]), _as_value(measure_plan(claim, plan))) for plan in chosen]
    return [
        (seed_of(run), _value(claim, run))
        for run in runs
        if run.finished and run.panel == claim.panel and is_of(run.label, label)
    ]


def _value(claim: Claim, run: Run) -> Value | None:
    if claim.measure in ("reach", "stable"):
        return meet_target(claim, run) or _bound(claim, run)
    return _as_value(measure_run(claim, run))


def _as_value(number: float | None) -> Value | None:
    return None if number is None else Value(number)


def _bound(claim: Claim, run: Run) -> Value | None:
    """Return the end of a run that never met its target; None if it recorded nothing."""
    known = np.isfinite(run.rows.get(claim.column, np.empty(0)))
    return Value(float(run.rows[claim.along][known][-1]), is_bound=True) if known.any() else None


def _undecided(needs: Sequence[ClaimNeed]) -> str:
    seeds = min(len(need.numbers) for need in needs)
    if seeds < LEAST_SEEDS:
        return f"{seeds} of the {LEAST_SEEDS} seeds required"
    unclear = next(need for need in needs if not need.is_inside())
    return f"{seeds} seeds do not settle: {unclear.name}"
