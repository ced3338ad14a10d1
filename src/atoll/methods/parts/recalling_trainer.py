"""A trainer whose clients remember the data of earlier phases, and which cluster each phase's belong to."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.support.arrays import Floats, Ids

CLUSTERS, LOSS = "clusters", "loss"
"""A client's state: the cluster of its samples of each phase, int64 [phases], -1: none; and a loss, to compare with."""


class RecallingTrainer(Trainer):
    """Draws batches from all samples that belong to the task's cluster, of whichever phases."""

    keeps_state = True

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps; its state stays as it is."""
        task = task if task.state else replace(task, state=self._first(task))
        return replace(super().train(task), state=task.state)

    def samples_of(self, task: ClientTask) -> npt.NDArray[np.int32]:
        """Return the positions in the pool of the samples that belong to the task's cluster."""
        assert task.state is not None, "given by `train`"
        phases = np.flatnonzero(task.state[CLUSTERS].cpu().numpy() == task.cluster)
        held = (self.population.at(self.population.phase_rounds[phase]) for phase in phases)
        return np.concatenate([population.samples(task.client) for population in held])

    def _first(self, task: ClientTask) -> Model:
        """Return the state of a client that holds the samples of one phase only."""
        phases = np.arange(len(self.population.phase_rounds))
        past = np.where(phases == self.population.phase_of(task.round), task.cluster, -1)
        return remembered(past[:, None], np.zeros(1))[0]


def remembered(past: Ids, losses: Floats) -> dict[int, Model]:
    """Return clients' states from their clusters [phases, clients] and losses [clients]."""
    clusters, remembered_losses = torch.from_numpy(past.T.copy()), torch.from_numpy(losses)
    return {client: {CLUSTERS: own, LOSS: remembered_losses[client]} for client, own in enumerate(clusters)}


def recalled(states: Mapping[int, Model]) -> tuple[Ids, Floats]:
    """Return what `remembered` made clients' states from."""
    kept = [states[client] for client in range(len(states))]
    past = np.stack([state[CLUSTERS].cpu().numpy() for state in kept], axis=1)
    return past, np.array([state[LOSS].item() for state in kept])
