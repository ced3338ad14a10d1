"""The joint model of all parties, whose output is the sum of theirs, and its trainer (FedBCD)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.data.population import Population
from atoll.local.models import Shape
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend, require_finite
from atoll.local.weights import load_model, read_model
from atoll.methods.parts.feature_blocks import split_shape
from atoll.support.errors import InputError
from atoll.support.seeds import generator, layers_drawing_from


class Parties(nn.Module):
    """A model whose output is the sum of its parties' outputs, each on its own block of the input.

    Party k's parameters are named ``parties.k.*``.
    """

    def __init__(self, shape: Shape, networks: Sequence[nn.Module]) -> None:
        """Assign network k the k-th block of inputs of this shape, [n, channels, pixels] (see `split_shape`)."""
        super().__init__()
        blocks = split_shape(shape, len(networks))
        self.channels = blocks[0][0]
        self.pixels = [pixels for _, pixels in blocks]
        self.parties = nn.ModuleList(networks)

    def split(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return each party's block of a batch."""
        return torch.split(inputs.reshape(len(inputs), self.channels, -1), self.pixels, dim=2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [n, *shape] to [n, classes]."""
        blocks = self.split(inputs)
        outputs: list[Tensor] = [party(block) for party, block in zip(self.parties, blocks, strict=True)]
        return sum(outputs[1:], outputs[0])


class PartyTrainer(Trainer):
    """Trains parties one by one on one device; each client is a party with its own features of all samples.

    All parties see the same batch per round, which depends only on seed and round. All steps use autograd.
    """

    why_one_by_one = "parties hold different models"

    def __init__(self, module: nn.Module, population: Population, *given: Any, **named: Any) -> None:
        """Move the module, which is scratch space, and the pool to the device.

        Raises:
            InputError: the module is not a `Parties` with as many parties as the population, or the rule augments.
        """
        if not isinstance(module, Parties) or len(module.parties) != len(population):
            raise InputError(f"the model must be Parties of {len(population)} parties, as the population is")
        super().__init__(module, population, *given, **named)
        self.by_hand, self.dense = False, None
        if self.rule.augment is not None:
            raise InputError("data.augment: cannot be used with parties, each of which has a part of every image")
        self.parties = module

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the party's block of the model after its local steps, with the other parties' outputs frozen.

        Raises:
            RunError: the loss or the block is not finite; names event, cluster and client (the party).
        """
        load_model(self.module, task.start)
        self.module.train()
        inputs, targets = self.batches.gather(self._draw_batch(task))
        blocks, networks, k = self.parties.split(inputs), self.parties.parties, task.client
        prefix = f"parties.{k}."
        own = {prefix + name: parameter for name, parameter in networks[k].named_parameters()}
        with layers_drawing_from(self.seed, "layers", task.event, task.repeat, k):
            with torch.no_grad():
                others = sum(networks[j](block) for j, block in enumerate(blocks) if j != k)
            losses = (
                self.batches.losses(networks[k](blocks[k]) + others, targets).mean() for _ in range(self.rule.steps)
            )
            mean_loss, moments = descend(self.rule, own, task, losses)
        block = {prefix + name: tensor for name, tensor in read_model(networks[k]).items()}
        if not self.tolerant:
            require_finite(task, block, mean_loss, self.rule)
        return ClientUpdate(block | moments, mean_loss)

    def _draw_batch(self, task: ClientTask) -> npt.NDArray[np.int32]:
        samples = self.population.samples(task.client)
        if self.rule.batch_size == "full":
            return samples
        rng = generator(self.seed, "batches", task.round, 0, 0)  # the same for all parties
        return samples[rng.integers(len(samples), size=self.rule.batch_size)]
