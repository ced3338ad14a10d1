"""Verdicts as plain values, which `atoll reproduce` writes to a file and prints as JSON."""

import math
from collections.abc import Sequence
from typing import Any

from atoll.reproduce.claim_results import ClaimResult
from atoll.reproduce.judging import Verdict
from atoll.reproduce.reproduce_progress import ReproduceProgress
from atoll.reproduce.verdict_wording import estimate_in_words, labels_of, need_in_words, value_in_words

RECORD = "verdicts.json"


def record(results: Sequence[ClaimResult], scale: str, seeds: int, progress: ReproduceProgress) -> dict[str, Any]:
    """Return all results on recipes and their claims; nothing in it identifies the machine."""
    return {
        "scale": scale,
        "seeds": seeds,
        "seconds": progress.spent,
        "seconds_left": progress.left,
        "recipes": list(map(record_recipe, results)),
    }


def record_recipe(result: ClaimResult) -> dict[str, Any]:
    """Return the results on one recipe and its claims."""
    return {
        "recipe": result.recipe,
        "runs": result.expected,
        "finished": result.finished,
        "seconds": None if result.cost is None else result.cost.seconds,
        "paper_seconds": None if result.cost is None else result.cost.paper_seconds,
        "claims": list(map(_claim, result.verdicts)),
    }


def _claim(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    return {
        **{name: getattr(claim, name) for name in ("source", "panel", "says", "reading")},
        "runs": list(labels_of(claim)),
        "stated": list(claim.stated),
        "stated_in_words": [value_in_words(claim, value) for value in claim.stated],
        "ours": [None if found is None else _finite(found.mean) for found in verdict.ours],
        "intervals": [found and [_finite(found.low), _finite(found.high)] for found in verdict.ours],
        "ours_in_words": [estimate_in_words(claim, found) for found in verdict.ours],
        "seeds": verdict.seeds,
        "needs": [text for need in verdict.needs if (text := need_in_words(claim, need))],
        "scale": verdict.scale,
        "exploratory": claim.exploratory,
        "status": verdict.status,
        "reason": verdict.reason,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
