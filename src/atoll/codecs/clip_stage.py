"""The stage at which clients clip their updates."""

from functools import partial

import torch

from atoll.aggregation.reductions import update_norm
from atoll.engine.stages import Stage
from atoll.local.task import ClientTask, ClientUpdate


def clip_updates(longest: float) -> Stage:
    """Return the stage that scales down updates longer than this."""
    return Stage(name="clip", told="clip", send=partial(_clip, longest))


@torch.no_grad()
def _clip(longest: float, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
    """Return the model, at most this far from the start model; moments are unchanged."""
    norm = update_norm(update.model, task.start)
    if not norm > longest:
        return update
    moved = {
        name: task.start[name].lerp(own, longest / norm)
        for name, own in update.model.items()
        if own.is_floating_point() and "@" not in name
    }
    return ClientUpdate(update.model | moved, update.loss)
