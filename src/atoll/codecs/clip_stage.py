"""The stage at which clients clip their updates."""

from dataclasses import dataclass

import torch

from atoll.aggregation.reductions import update_norm
from atoll.engine.stages import Stage
from atoll.local.task import ClientTask, ClientUpdate


@dataclass(frozen=True)
class Clipper:
    """The client half."""

    longest: float

    @torch.no_grad()
    def send(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return the model, at most this far from the start model; moments are unchanged."""
        norm = update_norm(update.model, task.start)
        if not norm > self.longest:
            return update
        moved = {
            name: task.start[name].lerp(own, self.longest / norm)
            for name, own in update.model.items()
            if own.is_floating_point() and "@" not in name
        }
        return ClientUpdate(update.model | moved, update.loss)


def clip_updates(longest: float) -> Stage:
    """Return the stage that scales down updates longer than this."""
    return Stage(name="clip", told="clip", send=Clipper(longest).send)
