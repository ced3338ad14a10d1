"""Local rules: what a client does with the model it was sent.

A local rule is an optimiser (one function that makes a `torch.optim.Optimizer`), a number of steps, a batch size,
and maybe a proximal term; any optimiser composes with any clustering, schedule and combine rule. A user's own
optimiser is named in the experiment file as ``optimizer = "module:function"``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.datasets import Dataset
from atoll.errors import RunError
from atoll.population import Population
from atoll.seeds import generator, layers_drawing_from

Model = dict[str, Tensor]
"""A model as it is sent: the module's parameters and buffers by name, and, where a rule carries them, the
optimiser's moments as ``parameter@slot``."""

_IDENTITY_BATCH = 1000  # samples in one forward pass when clients look for their cluster

MakeOptimizer = Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]


@dataclass(frozen=True)
class LocalRule:
    """How a client trains: `steps` optimiser steps on batches drawn uniformly with replacement from its own data.

    Attributes:
        optimizer: makes the optimiser from the parameters and the learning rate.
        lr: learning rate eta.
        steps: local steps (FedCluster's E, FedUC's T'').
        batch_size: samples a step, or "full" for all of the client's.
        proximal: FedProx's mu; the local loss gains ``(mu / 2) * ||w - W||^2``, W being the model it was sent.
        lr_decay: eta is multiplied by this after every round.
        carry: whether the optimiser's state travels with the model, averaged like it; else every client starts
            afresh in every event.
    """

    optimizer: MakeOptimizer
    lr: float
    steps: int = 20
    batch_size: int | Literal["full"] = 30
    proximal: float = 0.0
    lr_decay: float = 1.0
    carry: bool = False


@dataclass(frozen=True, eq=False)
class Task:
    """One client's work: train from `start`. (event, repeat, client) names its random numbers."""

    event: int
    round: int
    repeat: int
    cluster: int
    client: int
    start: Model


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a client sends back, and its mean training loss on the way."""

    model: Model
    loss: float


class Trainer:
    """Trains one client after the other on one device; the same task gives the same bits in any order.

    The module is its scratch space: it is moved to the device and overwritten. The pool is shared, and stays in bytes
    if it came in bytes.
    """

    def __init__(
        self, module: nn.Module, population: Population, rule: LocalRule, seed: int, device: str = "cpu"
    ) -> None:
        """Put the module and the pool on the device."""
        self.module = module.to(device)
        self.population = population
        self.rule = rule
        self.seed = seed
        self.batches = Batches(population.data, module)

    def train(self, task: Task) -> Outcome:
        """Return the client's model after its local steps.

        Raises:
            RunError: the loss or the model is not finite; names event, cluster and client.
        """
        rule, parameters = self.rule, dict(self.module.named_parameters())
        load_model(self.module, task.start)
        self.module.train()
        optimizer = rule.optimizer(parameters.values(), rule.lr * rule.lr_decay**task.round)
        if rule.carry:
            _load_moments(optimizer, parameters, task.start)
        total = torch.zeros((), device=self.batches.inputs.device)
        with layers_drawing_from(self.seed, "layers", task.event, task.repeat, task.client):
            for inputs, targets in self._draw_batches(task):
                optimizer.zero_grad()
                loss = self.batches.losses(self.module(inputs), targets).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                if rule.proximal:
                    _add_proximal(parameters, task.start, rule.proximal)
                optimizer.step()
                total += loss.detach()
        mean_loss = total.item() / rule.steps
        model = read_model(self.module)
        if not np.isfinite(mean_loss) or not all(
            torch.isfinite(t).all() for t in model.values() if t.is_floating_point()
        ):
            raise RunError(
                f"event {task.event}, cluster {task.cluster}, client {task.client}: training became not finite "
                f"(mean loss {mean_loss}); lower local.lr = {rule.lr}"
            )
        if rule.carry:
            model |= _read_moments(optimizer, parameters)
        return Outcome(model, mean_loss)

    @torch.no_grad()
    def losses(self, models: Sequence[Model], clients: npt.NDArray[np.int64], round_: int) -> npt.NDArray[np.float64]:
        """Return the mean loss of each model on each client's data, [clients, models].

        Every sample is gathered once for all models, and clients share batches.
        """
        rows = [self.population.samples(int(client)) for client in clients]
        flat, sizes = np.concatenate(rows), np.array([len(own) for own in rows])
        parameters = [{name: t for name, t in model.items() if "@" not in name} for model in models]
        self.module.eval()
        losses = []
        for low in range(0, len(flat), _IDENTITY_BATCH):
            inputs, targets = self.batches.gather(flat[low : low + _IDENTITY_BATCH])
            outputs = (torch.func.functional_call(self.module, each, (inputs,)) for each in parameters)
            losses.append(torch.stack([self.batches.losses(each, targets).double() for each in outputs], dim=1))
        sums = np.add.reduceat(torch.cat(losses).cpu().numpy(), np.cumsum(sizes) - sizes)
        return np.asarray(sums / sizes[:, None])

    def _draw_batches(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        samples = self.population.samples(task.client)
        if self.rule.batch_size == "full":
            batch = self.batches.gather(samples)
            yield from (batch for _ in range(self.rule.steps))
            return
        rng = generator(self.seed, "batches", task.event, task.repeat, task.client)
        picks = rng.integers(len(samples), size=(self.rule.steps, self.rule.batch_size))
        for rows in samples[picks]:
            yield self.batches.gather(rows)


class Batches:
    """A pool of samples on the module's device, gathered into batches of the module's floating-point type."""

    def __init__(self, data: Dataset, module: nn.Module) -> None:
        """Share the training pool's arrays with PyTorch; nothing is copied on the CPU."""
        first = next(module.parameters())
        self.dtype = first.dtype
        self.scale = data.scale
        self.turns = data.turns
        self.inputs = torch.from_numpy(data.inputs).to(first.device)
        self.targets = torch.from_numpy(data.targets).to(first.device)
        self.losses = LOSSES[data.loss]

    def __len__(self) -> int:
        """Return the number of samples, turned copies included."""
        return len(self.targets) * len(self.turns)

    def gather(self, rows: npt.NDArray[np.integer]) -> tuple[Tensor, Tensor]:
        """Return inputs [len(rows), ...] and targets of these samples."""
        copies, images = np.divmod(rows, len(self.targets))
        index = torch.from_numpy(images).to(self.inputs.device)
        inputs = self.inputs.index_select(0, index)
        if len(self.turns) > 1:
            inputs = self._turn(inputs, copies)
        inputs = inputs.to(self.dtype)
        if self.scale != 1:
            inputs *= self.scale
        return inputs, self.targets.index_select(0, index)

    def _turn(self, inputs: Tensor, copies: npt.NDArray[np.integer]) -> Tensor:
        """Turn each image as its copy says; most batches hold one copy only."""
        turned = inputs
        for copy in np.unique(copies):
            rows = torch.from_numpy(copies == copy).to(inputs.device)
            part = torch.rot90(inputs, self.turns[copy], dims=(-2, -1))
            turned = part if rows.all() else torch.where(rows.reshape(-1, *[1] * (inputs.ndim - 1)), part, turned)
        return turned.contiguous()


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's cross-entropy; outputs [samples, classes], targets [samples]."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return half of each sample's squared error; outputs and targets [samples] or [samples, outputs]."""
    return (outputs.reshape(targets.shape) - targets).square().reshape(len(targets), -1).sum(dim=1) / 2


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross-entropy": cross_entropy, "squared": half_squared}


def sgd(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Plain SGD: ``w <- w - lr * g``."""
    return torch.optim.SGD(parameters, lr=lr)


def momentum(parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.5) -> torch.optim.Optimizer:
    """Heavy ball: ``u <- momentum * u + g; w <- w - lr * u``."""
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam with betas (0.9, 0.999) and epsilon 1e-8."""
    return torch.optim.Adam(parameters, lr=lr)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": sgd, "momentum": momentum, "adam": adam}


def read_model(module: nn.Module) -> Model:
    """Return a copy of the module's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


@torch.no_grad()
def load_model(module: nn.Module, model: Model) -> None:
    """Copy a model into the module."""
    for name, tensor in module.state_dict().items():
        tensor.copy_(model[name])


def _add_proximal(parameters: dict[str, nn.Parameter], start: Model, mu: float) -> None:
    """Add the gradient of ``(mu / 2) * ||w - W||^2``."""
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start[name], alpha=mu)


def _load_moments(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], start: Model) -> None:
    for key, tensor in start.items():
        name, _, slot = key.partition("@")
        if slot:
            optimizer.state[parameters[name]][slot] = tensor.clone()


def _read_moments(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> Model:
    return {
        f"{name}@{slot}": tensor.clone()
        for name, parameter in parameters.items()
        for slot, tensor in optimizer.state[parameter].items()
        if isinstance(tensor, Tensor)
    }
