"""Restarts: try several initial models for a few rounds and keep the best (CFL-MGD, Sec. V)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.engine import Method, begin, run
from atoll.executors import Executor
from atoll.models import Model


def choose_start(
    method: Method, executor: Executor, candidates: Sequence[tuple[Model, ...]], clients: int, rounds: int
) -> int:
    """Return which candidate's clusters fit best after so many rounds: the least mean of each client's least loss."""
    trial = replace(method.schedule, events=tuple(e for e in method.schedule.events if e.round < rounds))
    everyone = np.arange(clients)
    scores = []
    for initial in candidates:
        state = begin(method, *initial)
        for step in run(replace(method, schedule=trial), executor, state):
            state = step.state
        scores.append(executor.losses(state.starts, everyone, 0).min(axis=1).mean())
    return int(np.argmin(scores))
