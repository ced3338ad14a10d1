"""Attacking clients and the results that they send instead of their trained models, alone or knowing others'."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch

from atoll.aggregation.mean import mean
from atoll.aggregation.reductions import update_norm
from atoll.aggregation.screening import Screening
from atoll.data.population import Population, Stated
from atoll.engine.cohorts import ClientTrainer
from atoll.engine.stages import Need, Stage, Train
from atoll.local.batches import Batches
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.weights import with_variances
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import LARGEST, BelowOne, Positive
from atoll.support.process import one_thread
from atoll.support.requiring import require
from atoll.support.seeds import generator

Attack = Callable[[Model, Model, np.random.Generator, float], Model]
"""Maps the received model, the trained model, a random generator and the strength to the model sent back."""


def go_back(start: Model, model: Model, strength: float) -> Model:
    """Return ``w - strength * (model - w)``; moments that were not sent start at zero."""
    return {
        name: start.get(name, torch.zeros_like(own)).lerp(own, -strength) if own.is_floating_point() else own
        for name, own in model.items()
    }


def flip_sign(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send ``w - strength * (w_k - w)``: the reversed update."""
    return go_back(start, trained, strength)


def add_noise(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send w plus Gaussian noise, `strength` times as long as the trained update; moments as trained."""
    names = [name for name, own in trained.items() if own.is_floating_point() and "@" not in name]
    drawn = {name: rng.standard_normal(tuple(trained[name].shape)) for name in names}
    length = np.sqrt(sum(float(np.square(each).sum()) for each in drawn.values()))
    scale = strength * update_norm(trained, start) / length
    noise = {name: torch.as_tensor(each * scale).to(start[name]) for name, each in drawn.items()}
    return trained | {name: start[name] + each for name, each in noise.items()}


def break_numbers(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send NaNs."""
    return {name: torch.full_like(own, torch.nan) if own.is_floating_point() else own for name, own in trained.items()}


def free_ride(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send w back without training (Fraboni et al. 2021); moments that were not sent are zero."""
    return {name: start.get(name, torch.zeros_like(own)) for name, own in trained.items()}


def send_as_trained(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send the trained model: for data attacks, false reports, and attacks by `Colluding`."""
    return trained


ATTACKS: dict[str, Attack] = {
    "none": send_as_trained,
    "sign-flip": flip_sign,
    "noise": add_noise,
    "label-flip": send_as_trained,
    "free-rider": free_ride,
    "not-finite": break_numbers,
    "little-is-enough": send_as_trained,
    "inner-product": send_as_trained,
}
STRENGTHS: dict[str, float] = {"sign-flip": 5.0, "noise": 5.0, "little-is-enough": 1.5, "inner-product": 0.5}
"""The default strength of attacks that have one."""


@dataclass(frozen=True, eq=False)
class Attacker:
    """The client half of the attack stage.

    Attackers train as others do, on labels ``classes - 1 - y`` for `label-flip`, and report the loss of that, or
    `claimed_loss`; of models that they are asked about they tell the truth. What one sends depends on the seed and its
    task alone, so executors agree to the bit.
    """

    attackers: frozenset[int]
    attack: Attack
    strength: float
    claimed_loss: float | None
    seed: int

    def send(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return the result that the client sends."""
        if task.client not in self.attackers:
            return update
        rng = generator(self.seed, "attack", *task.key)
        loss = update.loss if self.claimed_loss is None else self.claimed_loss
        return ClientUpdate(with_variances(self.attack(task.start, update.model, rng, self.strength)), loss)

    def trains(self, trainer: ClientTrainer) -> Train:
        """Return the training function, with flipped labels for attackers."""
        theirs = _with_flipped_labels(trainer)
        return lambda task: (theirs if task.client in self.attackers else trainer).train(task)


def attacking(
    attackers: Ids,
    attack: str = "sign-flip",
    strength: float | None = None,
    claimed_loss: float | None = None,
    seed: int = 0,
) -> Stage:
    """Return the stage in which these clients attack; strength None: the default in `STRENGTHS`."""
    strength = STRENGTHS.get(attack, 1.0) if strength is None else strength
    made = Attacker(frozenset(attackers.tolist()), ATTACKS[attack], strength, claimed_loss, seed)
    told, is_made = "faults.attackers", attack in ("sign-flip", "noise", "free-rider")
    return Stage(
        name="attack",
        told=told,
        send=made.send,
        trains=made.trains if attack == "label-flip" and len(attackers) else None,
        needs={Need.NUMBERS: f"{attack!r} is made from the model received"} if len(attackers) and is_made else {},
        lacks={Need.HONEST: told} if len(attackers) else {},
    )


def draw_attackers(share: float, clients: int, seed: int) -> Ids:
    """Return ``round(share * clients)`` randomly drawn attackers in ascending order.

    Raises:
        InputError: a share outside [0, 1), or one that rounds to no client at all.
    """
    share, clients = require("faults.attackers", share, BelowOne), require("clients", clients, Positive)
    count = round(share * clients)
    if share and not count:
        raise InputError(f"faults.attackers = {share:g}: is none of {clients} clients; give {1 / clients:g}")
    return np.sort(generator(seed, "attackers").choice(clients, count, replace=False)).astype(np.int64)


def claim_samples(population: Population, attackers: Ids, times: float) -> Population:
    """Return the population as reported to the server: attackers claim `times` their number of samples."""
    sizes = population.sizes.copy()
    sizes[attackers] = np.clip(np.rint(sizes[attackers] * times), 1, LARGEST).astype(np.int64)
    return replace(population, stated=Stated(sizes))


def _with_flipped_labels(trainer: ClientTrainer) -> ClientTrainer:
    """Return a trainer for the same clients with labels ``classes - 1 - y``, sharing module and inputs."""
    population, module = getattr(trainer, "population", None), getattr(trainer, "module", None)
    if population is None or module is None:
        raise InputError(
            f"faults.attack = 'label-flip': needs a trainer with a population and a module, such as atoll.Trainer, "
            f"{type(trainer).__name__} has none"
        )
    data = population.data
    if not data.classes:
        raise InputError("faults.attack = 'label-flip': needs data with classes, one per sample")
    flipped = replace(data, targets=data.classes - 1 - data.targets)
    theirs = copy(trainer)
    vars(theirs).update(population=replace(population, data=flipped), batches=Batches(flipped, module))
    return theirs


Collusion = Callable[[Model, Sequence[Model], float], Model]
"""Maps the received model, honest clients' models and the strength to the model that every attacker sends."""


def little_is_enough(start: Model, honest: Sequence[Model], strength: float) -> Model:
    """Send ``mean - strength * deviation`` of the honest models, by coordinate (Baruch et al. 2019, strength z).

    The authors use z = 1.5 on MNIST, and statistics of the attackers' own models instead of the honest clients'.
    """
    average = mean((1.0, model) for model in honest)
    return {
        name: tensor - strength * torch.stack([model[name] for model in honest]).std(dim=0, correction=0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in average.items()
    }


def manipulate_inner_product(start: Model, honest: Sequence[Model], strength: float) -> Model:
    """Send ``w - strength * (mean - w)``: the honest clients' mean update, reversed (Xie et al. 2020, epsilon)."""
    return go_back(start, mean((1.0, model) for model in honest), strength)


COLLUSIONS: dict[str, Collusion] = {"little-is-enough": little_is_enough, "inner-product": manipulate_inner_product}


@dataclass(frozen=True)
class Colluding(Screening):
    """A screening that first replaces attackers' results, once their cohort's honest clients have finished.

    So only in simulation, where all results are in one place. Without a strength the attack has its own of `STRENGTHS`.
    """

    attackers: frozenset[int] = frozenset()
    attack: str = "little-is-enough"
    strength: float | None = None

    def sent(self, clients: Ids, start: Model, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Return a cohort's results; attackers send their trained models if no client is honest."""
        attack = [client in self.attackers for client in clients.tolist()]
        if all(attack) or not any(attack):
            return updates
        # An executor may reuse a model's memory once the next one is requested.
        trained = [
            replace(each, model={name: tensor.clone() for name, tensor in each.model.items()})
            for each in islice(updates, len(clients))
        ]
        model = self._conspire(start, [each.model for each, evil in zip(trained, attack, strict=True) if not evil])
        return iter([replace(each, model=model) if evil else each for each, evil in zip(trained, attack, strict=True)])

    @one_thread()
    def _conspire(self, start: Model, honest: Sequence[Model]) -> Model:
        strength = STRENGTHS[self.attack] if self.strength is None else self.strength
        return with_variances(COLLUSIONS[self.attack](start, honest, strength))
