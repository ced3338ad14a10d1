"""The expected cost of the papers' own scale, from the time that runs at a smaller one took."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from atoll.local.batches import cross_entropy
from atoll.local.models import MODELS, Shape
from atoll.local.weights import place
from atoll.report.reading.runs import Run
from atoll.reproduce.recipe_runs import settings_of
from atoll.runs.titles import without_seed
from atoll.settings.choices import method_kind
from atoll.settings.experiment_file import resolved
from atoll.settings.validation import Settings, validate
from atoll.support.process import one_thread

_SAMPLE_SECONDS = 2e-5  # of linear regression, overhead included
_SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}


@dataclass(frozen=True)
class RunCost:
    """The time of a recipe's runs.

    Attributes:
        runs: how many runs are finished.
        seconds: their wall time, probes included, each on one core.
        rounds: their number of rounds.
        paper_seconds: the expected time of as many runs at paper scale; None if unknown.
    """

    recipe: str
    runs: int
    seconds: float
    rounds: float
    paper_seconds: float | None


def cost_of(recipe: str, runs: Sequence[Run]) -> RunCost | None:
    """Return what a recipe's finished runs took, and would take at paper scale; None if there are none."""
    finished = [run for run in runs if run.finished]
    if not finished:
        return None
    paper = {_key(resolved(settings)): settings for settings in settings_of(recipe, "paper", seeds=1)}
    taken = [float(run.rows["wall_time"][-1]) for run in finished]
    factors = [_factor(run, paper[key]) if (key := _key(run.config)) in paper else None for run in finished]
    expected = [seconds * factor for seconds, factor in zip(taken, factors, strict=True) if factor is not None]
    return RunCost(
        recipe=recipe,
        runs=len(finished),
        seconds=sum(taken),
        rounds=sum(float(run.rows["round"][-1]) for run in finished),
        paper_seconds=sum(expected) if len(expected) == len(finished) else None,
    )


def _key(config: Mapping[str, Any]) -> tuple[str, str]:
    return config["panel"], without_seed(config["label"])


def _factor(run: Run, paper: Settings) -> float | None:
    """Return how many times as long a run takes at paper scale, by its rounds, clients, steps, and time per step."""
    here = validate(run.config)
    works = [local_seconds(settings) for settings in (here, paper)]
    if works[0] is None or works[1] is None:
        return None
    seconds = here.run.virtual_seconds, paper.run.virtual_seconds
    length = seconds[1] / seconds[0] if seconds[0] and seconds[1] else paper.rounds / here.rounds
    return length * _side_by_side(paper) / _side_by_side(here) * works[1] / works[0]


def work_of(settings: Settings) -> float | None:
    """Return roughly how many seconds a run's local training takes, by timing a step.

    Probes and merges are left out; `ReproduceProgress` corrects for them by the runs so far. None as in
    `local_seconds`, and for a run that ends by virtual time, since its rounds are unknown.
    """
    seconds = local_seconds(settings)
    if seconds is None or settings.run.virtual_seconds:
        return None
    return settings.rounds * seconds * _side_by_side(settings)


def _side_by_side(settings: Settings) -> float:
    """Return how many times `local_seconds` a round takes: once per client, once per cohort, or once."""
    kind, method = method_kind(settings), settings.method
    if kind.why_one_place:
        return 1.0
    if kind.rounds_are_local_steps and settings.local.steps == 1:  # one cluster's turn, or that of all
        return 1.0 if method.get("pattern") in ("cenasy", "decasy") else float(settings.clustering.clusters)
    return float(method.get("fraction") or 1.0) * settings.data.clients


def local_seconds(settings: Settings) -> float | None:
    """Return the seconds of a client's local training, timed by a step; None for a user's own model or data.

    A cohort that takes one step of SGD together is timed as a whole.
    """
    local, data = settings.local, settings.data
    if data.dataset == "regression":
        return _SAMPLE_SECONDS * local.steps * (data.get("samples") or 1)
    if data.dataset not in _SHAPES or settings.model.name not in MODELS:
        return None
    batch = (data.get("samples") or 0) if local.batch_size == "full" else local.batch_size
    if method_kind(settings).rounds_are_local_steps and local.steps == 1:
        batch *= max(1, data.clients // settings.clustering.clusters)
    return local.steps * _step_seconds(settings.model.name, _SHAPES[data.dataset], batch) if batch else None


@cache
@one_thread()
def _step_seconds(model: str, shape: Shape, batch: int) -> float:
    """Return the seconds of one step of SGD: the fastest of four, the first of which warms up."""
    module = place(MODELS[model](shape, 10))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    inputs, targets = torch.rand(batch, *shape), torch.arange(batch) % 10
    least = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(module(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        least = min(least, time.perf_counter() - began)
    return least
