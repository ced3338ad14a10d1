"""Trainers around other trainers: what clients send is changed, what they measure is not."""

from collections.abc import Sequence

from atoll.engine.cohorts import ClientTrainer, Rows
from atoll.local.models import Model
from atoll.support.arrays import Floats, Ids


class Measuring:
    """The part of a `ClientTrainer` that measures, as another one does; subclasses have their own `train`.

    Attributes:
        trainer: the other one.
    """

    def __init__(self, trainer: ClientTrainer) -> None:
        """Measure as this trainer does, in its precision."""
        self.trainer = trainer
        self.precision = trainer.precision

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        return self.trainer.losses(models, clients, round_)

    def identity_rows(self, clients: Ids, round_: int) -> list[Rows]:
        """Return the positions in the pool of the samples that each client's losses are measured on."""
        return self.trainer.identity_rows(clients, round_)

    def sample_losses(self, models: Sequence[Model], rows: Rows) -> Floats:
        """Return the loss of each model on each of these samples, [samples, models], in one batch."""
        return self.trainer.sample_losses(models, rows)

    def samples_a_step(self, clients: Ids) -> int:
        """Return how many samples one step of all these clients takes, at most."""
        return self.trainer.samples_a_step(clients)
