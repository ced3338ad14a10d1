"""Scores of models on each client's own test samples: accuracies, or R2 where numbers are predicted, or losses."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import nn

from atoll.data.dataset import Dataset
from atoll.data.population import Population
from atoll.local.batches import Batches, cut_rows, measure_samples, next_token
from atoll.local.models import Model
from atoll.support.arrays import Floats, Ids
from atoll.support.process import one_thread


class OwnTests:
    """The test samples of each client: its own, or else samples of the test set like its own.

    The latter are weighted so that each class of each planted group has the same share as in the client's samples.
    """

    def __init__(self, population: Population, module: nn.Module, owned: bool = False) -> None:
        """Divide up the test set; if `owned`, clients are the owners given by the data (partition `natural`)."""
        test = population.data.test
        self.population = population
        self.module = module
        self.batches = Batches(test, module)
        self._owned = owned and test.owners is not None
        self._variance = float(np.var(test.targets, axis=0, dtype=float).sum()) if test.loss == "squared" else 0.0
        self._kinds = self._kinds_of(test, np.arange(len(test)))
        self._there = np.bincount(self._kinds)

    @one_thread()
    def scores(self, model: Model, clients: Sequence[int] | Ids) -> Floats:
        """Return a model's accuracy on each of these clients' tests, [clients]; NaN for a client without any.

        Where numbers are predicted it is R2: one less the mean squared error over the variance of all test targets;
        where next tokens are, the mean loss. It takes one forward pass per test sample of the kinds that they hold.
        """
        held = [self._held(int(client)) for client in clients]
        wanted = np.unique(np.concatenate([kinds for kinds, _ in held])) if held else self._kinds[:0]
        rows = np.flatnonzero(np.isin(self._kinds, wanted)).astype(np.int32)
        if not len(rows):
            return np.full(len(held), np.nan)
        parts = [self._score(model, part) for part in cut_rows([rows], self.batches.inputs.device.type)]
        hits = np.bincount(self._kinds[rows], np.concatenate(parts), len(self._there)) / np.maximum(self._there, 1)
        return np.array([counts @ hits[kinds] / counts.sum() if len(kinds) else np.nan for kinds, counts in held])

    def _score(self, model: Model, rows: npt.NDArray[np.int32]) -> Floats:
        """Return the score of each test sample, [rows]."""
        found = measure_samples(self.module, self.batches, [model], rows)
        losses, hits = (each[:, 0].cpu().numpy() for each in found)
        plain = losses if self.batches.losses is next_token else hits
        return 1 - 2 * losses / self._variance if self._variance else plain

    def _held(self, client: int) -> tuple[Ids, Ids]:
        """Return the kinds of the client's samples that the test set has, and how many of each it holds."""
        own = self._kinds_of(self.population.data, self.population.samples(client))
        kinds, counts = np.unique(own, return_counts=True)
        there = (kinds < len(self._there)) & (self._there[np.minimum(kinds, len(self._there) - 1)] > 0)
        return kinds[there], counts[there]

    def _kinds_of(self, data: Dataset, rows: npt.NDArray[np.integer]) -> Ids:
        """Return each sample's kind: a number for its owner, or for its group and class."""
        if self._owned and data.owners is not None:
            return np.asarray(data.owners[rows], np.int64)
        groups = np.asarray(data.groups_of(rows), np.int64)
        return groups * data.classes + data.labels_of(rows) if data.classes else groups
