"""Vertical federated learning: parties that hold different features of the same samples (FedBCD).

Liu et al. 2022, "FedBCD: a communication-efficient collaborative learning framework for distributed features". A
party is a client whose block of the input and whose block of the model are its own; the model's output is the sum of
the parties' outputs. Party 0 is the label party: the others send it their outputs, it sends each of them the sum of
the outputs that are not theirs. The labels of a batch are taken as known to all parties.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.batches import Batches, measure_models, measure_samples
from atoll.combine import Weighted
from atoll.errors import InputError
from atoll.local import LocalRule, Outcome, Task, descend, require_finite
from atoll.models import HIDDEN, Model, Shape, dense, load_model, read_model
from atoll.population import Population
from atoll.precision import Precision
from atoll.schedules import FROM_SERVER, Clock, Event, Ids, Mix, Schedule
from atoll.seeds import generator, layers_drawing_from

Mode = Literal["parallel", "sequential"]
OUTPUT_BYTES = 4  # the built-in models compute in float32


def split_shape(shape: Shape, parties: int) -> list[Shape]:
    """Return the shape (channels, pixels) of each party's block of an input.

    An image's pixels in reading order are cut into runs whose lengths differ by at most one, so that a party holds a
    strip of rows with all its channels. Inputs that are not [channels, height, width] have one channel.

    Raises:
        InputError: fewer than one party, or more parties than pixels.

    >>> split_shape((3, 4, 4), 3)
    [(3, 6), (3, 5), (3, 5)]
    """
    channels = shape[0] if len(shape) == 3 else 1
    features = torch.Size(shape).numel() // channels
    if not 1 <= parties <= features:
        raise InputError(
            f"method.parties = {parties}: must be at least 1 and at most {features}, the number of features (pixels) "
            f"of an input of shape {list(shape)}"
        )
    return [(channels, size) for size in _split_evenly(features, parties)]


def share_samples(population: Population, parties: int) -> Population:
    """Return the population of so many parties, each of which holds (its features of) the union of all samples.

    Raises:
        InputError: fewer than one party, or more parties than features.
    """
    split_shape(population.data.shape, parties)
    offsets = np.arange(parties + 1) * len(population.indices)
    return Population(population.data, np.tile(population.indices, parties), offsets)


class Parties(nn.Module):
    """A model whose output is the sum of its parties' outputs, each on its own block of the input.

    Party k's parameters are named ``parties.k.*``.
    """

    def __init__(self, shape: Shape, networks: Sequence[nn.Module]) -> None:
        """Give network k the k-th block of inputs of this shape, [n, channels, pixels] (see `split_shape`)."""
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


def split_model(name: str) -> Callable[..., Parties]:
    """Return the factory of a built-in dense model split between parties.

    Each hidden layer's units are dealt out evenly, at least one a party, and only the label party has the biases of
    the outputs. So the sum has the whole model's widths, and for `linear` it is the whole model.

    Raises:
        InputError: a model that is not a chain of dense layers, which alone can be split by features.

    >>> split_model("mlp")((1, 28, 28), 10, 2).parties[1]
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=392, out_features=100, bias=True)
      (2): ReLU()
      (3): Linear(in_features=100, out_features=10, bias=False)
    )
    """
    if name not in HIDDEN:
        raise InputError(
            f"model.name = {name!r}: with method.name = 'fedbcd' it must be one of {', '.join(map(repr, HIDDEN))}, "
            "whose dense layers can be split between parties"
        )

    def make(shape: Shape, classes: int, parties: int) -> Parties:
        blocks = split_shape(shape, parties)
        hidden = [_split_evenly(max(units, parties), parties) for units in HIDDEN[name]]
        networks = [
            dense(block, tuple(units[k] for units in hidden), classes, bias=k == 0) for k, block in enumerate(blocks)
        ]
        return Parties(shape, networks)

    return make


class PartyTrainer:
    """Trains one party after the other on one device; to be used in place of `Trainer`, a client being a party.

    All parties of a round see the same batch, which depends on the seed and the round alone.
    """

    def __init__(
        self,
        module: nn.Module,
        population: Population,
        rule: LocalRule,
        seed: int,
        device: str = "cpu",
        precision: Precision = "float32",
    ) -> None:
        """Put the module, which is scratch space, and the pool on the device.

        Raises:
            InputError: the module is not of parties, or of another number of them than the population.
        """
        if not isinstance(module, Parties) or len(module.parties) != len(population):
            raise InputError(f"the model must be vertical.Parties of {len(population)} parties, as the population is")
        self.module = module.to(device)
        self.population = population
        self.rule = rule
        self.seed = seed
        self.precision = precision
        self.batches = Batches(population.data, module)

    def train(self, task: Task) -> Outcome:
        """Return the party's block of the model after its local steps, the other parties' outputs frozen.

        Raises:
            RunError: the loss or the block is not finite; names event, cluster and client (the party).
        """
        load_model(self.module, task.start)
        self.module.train()
        inputs, targets = self.batches.gather(self._draw_batch(task))
        blocks, networks, k = self.module.split(inputs), self.module.parties, task.client
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
        require_finite(task, block, mean_loss, self.rule)
        return Outcome(block | moments, mean_loss)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> npt.NDArray[np.float64]:
        """Return the mean loss of each model on each party's samples, which are all samples, [parties, models]."""
        return measure_models(self.module, self.batches, models, self.identity_rows(clients, round_)).losses

    def identity_rows(self, clients: Ids, round_: int) -> list[npt.NDArray[np.int32]]:
        """Return the positions in the pool of each party's samples, which are all samples."""
        return [self.population.samples(int(party)) for party in clients]

    def sample_losses(self, models: Sequence[Model], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return the loss of each model on each of these samples, [samples, models], in one batch."""
        return measure_samples(self.module, self.batches, models, rows)[0].cpu().numpy()

    def _draw_batch(self, task: Task) -> npt.NDArray[np.int32]:
        samples = self.population.samples(task.client)
        if self.rule.batch_size == "full":
            return samples
        rng = generator(self.seed, "batches", task.round, 0, 0)  # for all parties the same
        return samples[rng.integers(len(samples), size=self.rule.batch_size)]


def join_blocks(models: Weighted, start: Model, cohort_weight: float) -> Model:
    """Put the blocks that parties trained in the place of those they started from (a combine rule)."""
    joined = dict(start)
    for _, block in models:
        joined |= block
    return joined


def exchanging(
    parties: int, rounds: int, mode: Mode = "parallel", message_bytes: int = 0, clock: Clock | None = None
) -> Schedule:
    """Every round one batch's outputs are exchanged, then the parties train (FedBCD).

    `parallel`: one event a round, in which all parties train. `sequential`: one event a party, in ascending order, each
    using the new outputs of those before it. Without a clock every event takes one second.

    Messages are outputs of `message_bytes`. In parallel the K - 1 parties send theirs to the label party, and it sends
    each the sum of the others'. In sequence it is the same, and each party but the first and the last also sends its
    new outputs when it has trained.
    """
    if rounds < 1:
        raise InputError(f"rounds = {rounds}: must be at least 1")
    if mode not in ("parallel", "sequential"):
        raise InputError(f"method.mode = {mode!r}: must be 'parallel' or 'sequential'")
    turns = _turns(parties, mode)
    events: list[Event] = []
    now = 0.0
    for index in range(rounds * len(turns)):
        cohort, up, down = turns[index % len(turns)]
        began, now = now, now + (clock.event_seconds(cohort) if clock else 1.0)
        events.append(
            Event(
                index=index,
                round=index // len(turns),
                seconds=now,
                active=(0,),
                began=(began,),
                cohort=cohort,
                clusters=np.zeros(len(cohort), np.int64),
                weights=np.ones(len(cohort)),
                server=Mix(published=((0, 1.0),)),
                starts=((0, FROM_SERVER),),
                staleness=(0,),
                models_down=down,
                models_up=up,
            )
        )
    return Schedule(tuple(events), 1, rounds, message_bytes=message_bytes)


def output_bytes(population: Population, rule: LocalRule) -> int:
    """Return the bytes of one party's outputs for one batch."""
    batch = int(population.sizes[0]) if rule.batch_size == "full" else rule.batch_size
    return batch * (population.data.classes or 1) * OUTPUT_BYTES


def _turns(parties: int, mode: Mode) -> list[tuple[Ids, int, int]]:
    """Return the cohort of each event of a round, and how many messages go up and down in it."""
    last = parties - 1
    if mode == "parallel":
        return [(np.arange(parties), last, last)]
    middle = [(np.array([k]), 1, 1) for k in range(1, last)]
    return [(np.array([0]), last, 0), *middle, *([(np.array([last]), 0, 1)] if last else [])]


def _split_evenly(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]
