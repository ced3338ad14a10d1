"""Several models in one, mixed by each client's own shares, and their trainer (FedEM, FedRC)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

from atoll.local.batches import cut_rows
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend

SHARES, CLASSES = "shares", "classes_of"
_LEAST = 1e-8  # of C, as in FedRC's code, where no sample of a class is assigned to a component


class Mixture(nn.Module):
    """K models of one form; their predictions are mixed by the shares pi, which each client keeps for itself.

    Component k's parameters are named ``components.k.*``, so that K models travel as one. With `classes`, the buffer
    `classes_of` [K, classes] is the share of samples of each class that each component is responsible for.
    """

    shares: Tensor
    classes_of: Tensor

    def __init__(self, components: Sequence[nn.Module], loss: str, classes: int = 0) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        self.loss = loss
        count, like = len(components), next(components[0].parameters())
        self.register_buffer(SHARES, torch.full((count,), 1 / count, dtype=like.dtype))
        if classes:
            self.register_buffer(CLASSES, torch.full((count, classes), 1 / count / classes, dtype=like.dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [n, *shape] to [n, outputs] whose loss is that of the mixture: of its probabilities or, in regression,
        of its mean."""
        outputs = [component(inputs) for component in self.components]
        if len(outputs) == 1:
            return torch.as_tensor(outputs[0])
        each = torch.stack(outputs, dim=-1)
        if self.loss == "squared":
            return each @ self.shares
        weights = self.shares.log()
        if self.loss == "cross-entropy":
            return torch.logsumexp(log_softmax(each, dim=1) + weights, dim=-1)
        return torch.logsumexp(logsigmoid(each) + weights, -1) - torch.logsumexp(logsigmoid(-each) + weights, -1)


class MixtureTrainer(Trainer):
    """Finds which component is responsible for each sample, then trains each on the samples weighted by it.

    All components take the rule's steps on the same batches.
    """

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return all components after their local steps, with the client's new shares."""
        mixed = self.module
        assert isinstance(mixed, Mixture)
        samples, held = np.unique(self.samples_of(task), return_inverse=True)
        mean_loss, moments = 0.0, Model()
        with self.at_work(task, task.start):
            responsible = self._expect(mixed, samples)
            mixed.train()
            weights = [responsible[np.searchsorted(samples, rows)] for rows in self.draw_rows(task)]
            for k, component in enumerate(mixed.components):
                own = {f"components.{k}.{name}": each for name, each in component.named_parameters()}
                batches = zip(self.draw_batches(task), weights, strict=True)
                losses = ((self.batches.losses(component(x), y) * share[:, k]).mean() for (x, y), share in batches)
                loss, moved = descend(self.rule, own, task, losses, self.by_hand)
                mean_loss, moments = mean_loss + loss, moments | moved
        self._set_shares(mixed, responsible[held], samples[held])
        return self.update_of(task, mean_loss, moments)

    @torch.no_grad()
    def _expect(self, mixed: Mixture, samples: npt.NDArray[np.int32]) -> Tensor:
        """Return each component's responsibility for each sample, [samples, K] (E-step)."""
        mixed.eval()
        found = []
        for part in cut_rows([samples], self.batches.inputs.device.type):
            x, y = self.batches.gather(part)
            losses = torch.stack([self.batches.losses(component(x), y) for component in mixed.components], dim=1)
            if CLASSES in mixed._buffers:
                whole = mixed.classes_of.sum(dim=1, keepdim=True).clamp(min=1e-30)  # no sample may be this component's
                of_class = (mixed.classes_of / whole).clamp(min=_LEAST)
                losses = losses + of_class.log().T[y]
            found.append(torch.softmax(mixed.shares.log() - losses, dim=1))
        return torch.cat(found)

    @torch.no_grad()
    def _set_shares(self, mixed: Mixture, responsible: Tensor, samples: npt.NDArray[np.int32]) -> None:
        """Set the client's shares and, if wanted, those of classes (M-step)."""
        mixed.shares.copy_(responsible.mean(dim=0))
        if CLASSES in mixed._buffers:
            _, labels = self.batches.gather(samples)
            sums = torch.zeros_like(mixed.classes_of).T.index_add(0, labels, responsible)
            mixed.classes_of.copy_(sums.T / len(labels))
