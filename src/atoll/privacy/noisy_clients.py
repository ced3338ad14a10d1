"""Clients that trust nobody: what they send is clipped, and has noise in it, before it leaves them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from atoll.engine.around import Measuring
from atoll.engine.cohorts import ClientTrainer
from atoll.local.task import ClientTask, ClientUpdate
from atoll.privacy.clipping import Shape, clip
from atoll.privacy.mechanism import Mechanism
from atoll.privacy.noise import Noise


class NoisyClients(Measuring):
    """Trains clients, and returns what each would send: its clipped update with noise, and no loss.

    It is a `ClientTrainer`. What a client sends depends on the seed and its task alone, so that executors agree.
    """

    why_one_by_one = "clients add noise of their own"
    keeps_state = False

    def __init__(self, trainer: ClientTrainer, mechanism: Mechanism, shape: Shape, noise: Noise) -> None:
        super().__init__(trainer)
        self.mechanism = mechanism
        self.shape = shape
        self.noise = noise

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return what the client sends back.

        Raises:
            RunError: as the trainer's own.
        """
        trained, longest = self.trainer.train(task), self.mechanism.clip
        update = clip(self.shape.difference(trained.model, task.start), longest)
        if self.mechanism.noise:
            draw = self.noise("client privacy", *task.key)
            device = next(iter(update.values())).device
            added = self.shape.noise(draw, self.mechanism.noise * longest, device)
            update = {name: each + added[name] for name, each in update.items()}
        moved = self.shape.moved(task.start, update)
        # In the trainer's order, which codecs go by; on a fleet what is sent comes in another.
        return replace(trained, model={name: moved[name] for name in trained.model}, loss=float("nan"))


def make_noisy(
    make: Callable[..., ClientTrainer], mechanism: Mechanism, shape: Shape, noise: Noise, *given: Any, **named: Any
) -> NoisyClients:
    """Return noisy clients of the trainer that `make` makes (`Method.trainer`)."""
    return NoisyClients(make(*given, **named), mechanism, shape, noise)
