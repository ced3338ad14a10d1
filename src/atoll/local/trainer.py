"""Training one client: batches drawn, steps taken, the model sent back."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.data.population import Population
from atoll.local.augment import augmented
from atoll.local.batches import Batches, measure_models, measure_samples
from atoll.local.dense import Dense
from atoll.local.models import Model
from atoll.local.precision import Precision
from atoll.local.rounded import Rounded
from atoll.local.rule import LocalRule, sgd
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.travel import Shared
from atoll.local.weights import is_finite, load_model, load_moments, place, read_model, read_moments, require_device
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import NotFinite
from atoll.support.limits import Count
from atoll.support.requiring import checked
from atoll.support.seeds import generator, layers_drawing_from

IDENTITY_PART, TRAINING_PART = 0, 1  # with resampling, which of a round's two parts of a client's data


class Trainer:
    """Trains one client after the other on one device; the same task gives the same bits in any order.

    The module is its scratch space: it is moved to the device and overwritten. The pool is shared, and stays in bytes
    if it came in bytes.

    A subclass whose clients keep something between their tasks says ``keeps_state = True``. Its `train` returns the
    state, new tensors of the same names, shapes and types each time, and gets it back in the client's next task.
    """

    keeps_state = False

    @checked("{}", seed=Count)
    def __init__(
        self,
        module: nn.Module,
        population: Population,
        rule: LocalRule,
        seed: int,
        device: str = "cpu",
        precision: Precision = "float32",
        by_hand: bool = True,
        tolerant: bool = False,
    ) -> None:
        """Put the module and the pool on the device.

        Args:
            module: what is trained.
            population: the clients.
            rule: what a client does.
            seed: what random numbers are derived from.
            device: where to train.
            precision: what executors let products be computed in.
            by_hand: whether steps of plain SGD may be taken without an optimiser, and dense networks' without autograd.
            tolerant: whether results that are not finite are sent back, for the method's `Screening` to leave out;
                else they are an error.

        Raises:
            InputError: one of these is of another type, or the device is not here.
        """
        self.module = place(module, require_device(device))
        self.population = population
        self.rule = rule
        self.seed = seed
        self.precision = precision
        self.tolerant = tolerant
        self.batches = Batches(population.data, module)
        # Another function may return plain SGD at this rate and something else at a later round's.
        self.by_hand = by_hand and rule.optimizer in (sgd, torch.optim.SGD)
        # Not in bfloat16: a step made by hand changes the model within a product, and would round it.
        dense = self.by_hand and not rule.proximal and precision != "bfloat16"
        self.dense = Dense.of(module, self.batches.losses) if dense else None
        rounded = Rounded.of(self.module) if precision == "bfloat16" else None
        self.outputs: Callable[[Tensor], Tensor] = rounded or self.module
        kept = module.state_dict()
        self.apart = {name: own.clone() for name, own in module.named_buffers() if name not in kept}

    def on(self, device: str) -> "Trainer":
        """Return a trainer of the same clients on another device, with a module and a pool of its own."""
        shared = (each for each in self.module.parameters() if isinstance(each, Shared))  # copies would stay the same
        own = deepcopy(self.module, {id(each): nn.Parameter(each.detach().clone(), False) for each in shared})
        return Trainer(own, self.population, self.rule, self.seed, device, self.precision, self.by_hand, self.tolerant)

    def use_autograd(self) -> None:
        """Take all gradients by autograd, so that hooks on the module's parameters see them."""
        self.dense, self.outputs = None, self.module

    @property
    def why_one_by_one(self) -> str:
        """Why clients must train one by one: a subclass may do anything in `train`, a rule may need it; or empty."""
        if type(self) is Trainer:
            if self.rule.augment is not None:
                return "data.augment: each client's batches are augmented by themselves"
            epochs = self.rule.epochs
            return "" if epochs is None else f"local.epochs = {epochs:g}: clients take different numbers of steps"
        name = type(self).__name__
        return f"{name} keeps a state for each client" if self.keeps_state else f"{name} trains single clients"

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the client's model after its local steps.

        Raises:
            RunError: the loss or the model is not finite; names event, cluster and client. Not if `tolerant`.
        """
        with self.at_work(task, task.start):
            if dense := self.dense:
                lr = self.rule.lr_at(task.round)
                outputs, targets = zip(*((dense.step(x, y, lr), y) for x, y in self.draw_batches(task)), strict=True)
                mean_loss = float(self.batches.losses(torch.cat(outputs), torch.cat(targets)).mean())
                moments = Model()
            else:
                losses = (self.batches.losses(self.outputs(x), y).mean() for x, y in self.draw_batches(task))
                parameters = dict(self.module.named_parameters())
                mean_loss, moments = descend(self.rule, parameters, task, losses, self.by_hand)
        return self.update_of(task, mean_loss, moments)

    @contextmanager
    def at_work(self, task: ClientTask, model: Model) -> Iterator[None]:
        """Load a model to train; in this context its layers draw their random numbers from the seed."""
        load_model(self.module, model)
        self.renew_buffers()
        self.module.train()
        with layers_drawing_from(self.seed, "layers", *task.key):
            yield

    def renew_buffers(self, copy: nn.Module | None = None) -> None:
        """Give the module's buffers, or a copy's, that are no part of the state dict their first values."""
        for name, first in self.apart.items():
            layer, _, own = name.rpartition(".")
            setattr((self.module if copy is None else copy).get_submodule(layer), own, first.clone())

    def update_of(self, task: ClientTask, loss: float, moments: Model | None = None) -> ClientUpdate:
        """Return the trained model, and the optimiser's moments, once `require_finite` has seen the model."""
        model = read_model(self.module, task.start)
        self.require_finite(task, model, loss)
        return ClientUpdate(model | (moments or {}), loss)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        self.renew_buffers()
        return measure_models(self.module, self.batches, models, self.identity_rows(clients, round_)).losses

    def identity_rows(self, clients: Ids, round_: int) -> list[npt.NDArray[np.int32]]:
        """Return the positions in the pool of the samples that each client's losses are measured on."""
        return [self._own(int(client), round_, IDENTITY_PART) for client in clients]

    def sample_losses(self, models: Sequence[Model], rows: npt.NDArray[np.int32]) -> Floats:
        """Return the loss of each model on each of these samples, [samples, models], in one batch."""
        self.renew_buffers()
        return measure_samples(self.module, self.batches, models, rows)[0].cpu().numpy()

    def _own(self, client: int, round_: int, part: int) -> npt.NDArray[np.int32]:
        """Return the client's samples; with resampling, those of this round's part for identity or for training."""
        samples = self.population.at(round_).samples(client)
        if not self.rule.resample_parts:
            return samples
        order = generator(self.seed, "resample", client).permutation(len(samples))
        return np.array_split(samples[order], self.rule.resample_parts)[2 * round_ + part]

    def draw_batches(self, task: ClientTask) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of each local step's batch, on the device, augmented if the rule says so."""
        rows = self.draw_rows(task)
        whole = self.rule.batch_size == "full"
        batches = repeat(self.batches.gather(rows[0]), len(rows)) if whole else self.batches.gather_each(rows)
        return augmented(augment, batches, self.seed, *task.key) if (augment := self.rule.augment) else batches

    def draw_rows(self, task: ClientTask, rng: np.random.Generator | None = None) -> npt.NDArray[np.int32]:
        """Return the positions in the pool of each local step's batch, [steps, samples]; `rng` is the task's own."""
        samples, steps = self.samples_of(task), self.steps_of(task.client)
        if self.rule.batch_size == "full":
            return np.broadcast_to(samples, (steps, len(samples)))
        rng = rng or generator(self.seed, "batches", *task.key)
        return samples[rng.integers(len(samples), size=(steps, self.rule.batch_size))]

    def samples_of(self, task: ClientTask) -> npt.NDArray[np.int32]:
        """Return the positions in the pool of the samples that a task's batches are drawn from."""
        return self._own(task.client, task.round, TRAINING_PART)

    def steps_of(self, client: int) -> int:
        """Return the local steps that this client takes."""
        return self.rule.steps_of(int(self.population.sizes[client]))

    def require_finite(self, task: ClientTask, model: Model, loss: float) -> None:
        """Refuse to go on from a loss or a model that is not finite, unless `tolerant`."""
        if not (self.tolerant or is_finite(model, loss)):
            raise NotFinite(
                f"event {task.event}, cluster {task.cluster}, client {task.client}: training became not finite "
                f"(mean loss {loss}); lower local.lr = {self.rule.lr}"
            )

    def samples_a_step(self, clients: Ids) -> int:
        """Return how many samples one step of all these clients takes, at most; of epochs, all that they have."""
        size = self.rule.batch_size
        every = size == "full" or self.rule.epochs is not None
        return int(self.population.sizes[clients].sum()) if every else int(size) * len(clients)


def plain_of(trainer: Any) -> Trainer | None:
    """Return the trainer of clients that executors may train many of at once; None: each must be trained by itself."""
    return None if trainer.why_one_by_one else trainer


def descend(
    rule: LocalRule,
    parameters: dict[str, nn.Parameter],
    task: ClientTask,
    losses: Iterable[Tensor],
    by_hand: bool = False,
    totals: Tensor | None = None,
) -> tuple[float, Model]:
    """Take a step of the rule down each loss; each loss is computed only after the step before it.

    With `by_hand`, which plain SGD alone can have, no optimiser is made; the bits are the same. Returns the mean loss,
    and the optimiser's moments of these parameters if the rule carries them. With `totals` each loss is of as many
    clients at once, is added to them, and no mean is fetched.
    """
    lr = rule.lr_at(task.round)
    optimizer = None if by_hand else rule.optimizer(parameters.values(), lr)
    step = optimizer.step if optimizer else partial(_sgd_step, parameters, lr)
    if optimizer and rule.carry_moments:
        load_moments(optimizer, parameters, task.start)
    total = torch.zeros((), device=next(iter(parameters.values())).device) if totals is None else totals
    taken, ones = 0, None if totals is None else torch.ones_like(totals)
    for taken, loss in enumerate(losses, 1):  # noqa: B007
        for parameter in parameters.values():
            parameter.grad = None
        loss.backward(ones)  # type: ignore[no-untyped-call]
        if rule.proximal:
            for name, parameter in parameters.items():
                if parameter.grad is not None:  # add that of ``(mu / 2) * ||w - W||^2``
                    parameter.grad.add_(parameter.detach() - task.start[name], alpha=rule.proximal)
        step()
        total += loss.detach()
    moments = read_moments(optimizer, parameters) if optimizer and rule.carry_moments else {}
    return total.item() / taken if totals is None else math.nan, moments


@torch.no_grad()
def _sgd_step(parameters: dict[str, nn.Parameter], lr: float) -> None:
    """Take the step of `torch.optim.SGD`, to the bit; for small models its bookkeeping takes as long."""
    grads = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    if grads:
        torch._foreach_add_([parameters[name] for name in grads], list(grads.values()), alpha=-lr)
