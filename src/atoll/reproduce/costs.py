"""What the papers' own scale would cost, from the time that the runs at hand took."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from atoll.batches import LOSSES
from atoll.config import validate
from atoll.datasets import BUILT_IN
from atoll.models import MODELS
from atoll.report import Run
from atoll.reproduce.running import settings_of
from atoll.settings import Settings

_SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}


@dataclass(frozen=True)
class Cost:
    """The time of a recipe's runs.

    Attributes:
        recipe: the recipe.
        runs: how many runs are finished.
        seconds: wall time that they took, probes included, each on one core.
        rounds: that they had.
        paper_seconds: what as many runs are expected to take at paper scale; None where that cannot be told.
    """

    recipe: str
    runs: int
    seconds: float
    rounds: float
    paper_seconds: float | None


def cost_of(recipe: str, runs: Sequence[Run]) -> Cost | None:
    """Return what a recipe's finished runs took, and would take at paper scale; None without any."""
    finished = [run for run in runs if run.finished]
    if not finished:
        return None
    paper = {(settings.panel, settings.label): settings for settings in settings_of(recipe, "paper")}
    taken = [float(run.rows["wall_time"][-1]) for run in finished]
    factors = [_factor(run, paper[key]) if (key := _key(run.config)) in paper else None for run in finished]
    expected = [seconds * factor for seconds, factor in zip(taken, factors, strict=True) if factor is not None]
    return Cost(
        recipe=recipe,
        runs=len(finished),
        seconds=sum(taken),
        rounds=sum(float(run.rows["round"][-1]) for run in finished),
        paper_seconds=sum(expected) if len(expected) == len(finished) else None,
    )


def _key(config: Mapping[str, Any]) -> tuple[str, str]:
    return config["panel"], config["label"]


def _factor(run: Run, paper: Settings) -> float | None:
    """Return how many times a run's work its paper scale is: rounds, clients, samples a client, the model's cost."""
    here = validate(run.config)
    per_sample = [flops(settings) for settings in (here, paper)]
    if None in per_sample:
        return None
    share = 1.0 if paper.method.name in ("centralized", "fedbcd") else paper.data.clients / here.data.clients
    work = [_samples(settings) * (flop or 0) for settings, flop in zip((here, paper), per_sample, strict=True)]
    return _length(here, paper) * share * work[1] / work[0]


def _length(here: Settings, paper: Settings) -> float:
    """Return how many times as long a run is at paper scale, in rounds or in virtual time."""
    if here.run.virtual_seconds and paper.run.virtual_seconds:
        return paper.run.virtual_seconds / here.run.virtual_seconds
    return paper.rounds / here.rounds


def _samples(settings: Settings) -> float:
    """Return the samples that a client's local training processes, up to a factor that scales do not change."""
    batch = settings.local.batch_size
    return settings.local.steps * (float(settings.data.samples or math.nan) if batch == "full" else batch)


def flops(settings: Settings) -> int | None:
    """Return the operations of a step on one sample, forward and backward; None for a user's own model or data.

    Counted are products and convolutions, a multiplication and an addition as two, as in `atoll bench`.
    """
    shape = _SHAPES.get(settings.data.dataset)
    if settings.data.dataset in BUILT_IN and shape is None:
        return 1  # regression: of one width at all scales
    if shape is None or settings.model.name not in MODELS:
        return None
    with torch.device("meta"):  # shapes without numbers
        module = MODELS[settings.model.name](shape, 10)
        inputs, targets = torch.empty(1, *shape), torch.empty(1, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        LOSSES["cross-entropy"](module(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
