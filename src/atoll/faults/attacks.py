"""Attacking clients: what they send instead of what they trained."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import numpy as np
import torch

from atoll.aggregation.reductions import update_norm
from atoll.data.population import Population, Stated
from atoll.engine.around import Measuring
from atoll.local.batches import Batches
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.limits import LARGEST, BelowOne, Positive
from atoll.support.requiring import require
from atoll.support.seeds import generator

Attack = Callable[[Model, Model, np.random.Generator, float], Model]
"""What was sent to the client, what it trained, random numbers of its own, strength -> what it sends back."""


def go_back(start: Model, model: Model, strength: float) -> Model:
    """Return ``w - strength * (model - w)``; moments that were not sent begin at zero."""
    return {
        name: start.get(name, torch.zeros_like(own)).lerp(own, -strength) if own.is_floating_point() else own
        for name, own in model.items()
    }


def flip_sign(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send ``w - strength * (w_k - w)``: the update backwards."""
    return go_back(start, trained, strength)


def add_noise(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send w and Gaussian noise, `strength` times as long as the update that was trained; moments as trained."""
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
    """Send w back, as who does no work would (Fraboni et al. 2021); moments that were not sent are zero."""
    return {name: start.get(name, torch.zeros_like(own)) for name, own in trained.items()}


def send_as_trained(start: Model, trained: Model, rng: np.random.Generator, strength: float) -> Model:
    """Send what was trained: for attacks on the data, lies alone, and what `Colluding` makes of it."""
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
"""The strength of attacks that have one, if it is not said."""


class Attacked(Measuring):
    """Trains clients some of which attack; used instead of a `Trainer` (it is a `ClientTrainer`).

    Attackers train as others do, on labels ``classes - 1 - y`` for `label-flip`, and report the loss of that, or
    `claimed_loss`; of models that they are asked about they tell the truth. What one sends depends on the seed and its
    task alone, so executors that train client by client agree to the bit.
    """

    why_one_by_one = "clients that attack train alone"
    trainer: Trainer

    def __init__(
        self,
        trainer: Trainer,
        attackers: Ids,
        attack: str = "sign-flip",
        strength: float | None = None,
        claimed_loss: float | None = None,
    ) -> None:
        """Let these clients attack, throughout; a strength that is None is that of `STRENGTHS`.

        Raises:
            InputError: `label-flip` where there are no classes.
        """
        super().__init__(trainer)
        self.keeps_state = trainer.keeps_state
        self.module = trainer.module
        self.attackers = frozenset(attackers.tolist())
        self.attack = ATTACKS[attack]
        self.strength = STRENGTHS.get(attack, 1.0) if strength is None else strength
        self.claimed_loss = claimed_loss
        self._theirs = _with_flipped_labels(trainer) if attack == "label-flip" and len(attackers) else trainer

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return what the client sends back; what it keeps for itself is not attacked.

        Raises:
            RunError: as `Trainer.train`.
        """
        if task.client not in self.attackers:
            return self.trainer.train(task)
        update = self._theirs.train(task)
        rng = generator(self.trainer.seed, "attack", task.event, task.repeat, task.client)
        loss = update.loss if self.claimed_loss is None else self.claimed_loss
        return replace(update, model=self.attack(task.start, update.model, rng, self.strength), loss=loss)


def draw_attackers(share: float, clients: int, seed: int) -> Ids:
    """Return the clients that attack, ascending: ``round(share * clients)`` of them, drawn from the seed.

    Raises:
        InputError: a share outside [0, 1), or one that rounds to no client at all.
    """
    share, clients = require("faults.attackers", share, BelowOne), require("clients", clients, Positive)
    count = round(share * clients)
    if share and not count:
        raise InputError(f"faults.attackers = {share:g}: is none of {clients} clients; give {1 / clients:g}")
    return np.sort(generator(seed, "attackers").choice(clients, count, replace=False)).astype(np.int64)


def claim_samples(population: Population, attackers: Ids, times: float) -> Population:
    """Return the population as the server hears of it: attackers claim so many times the samples that they hold."""
    sizes = population.sizes.copy()
    sizes[attackers] = np.clip(np.rint(sizes[attackers] * times), 1, LARGEST).astype(np.int64)
    return replace(population, stated=Stated(sizes))


def _with_flipped_labels(trainer: Trainer) -> Trainer:
    """Return a trainer on the same clients, with the labels ``classes - 1 - y``; it shares module and inputs."""
    data = trainer.population.data
    if not data.classes:
        raise InputError("faults.attack = 'label-flip': needs data with classes, these have real numbers as targets")
    flipped = replace(data, targets=data.classes - 1 - data.targets)
    theirs = copy(trainer)
    theirs.population = replace(trainer.population, data=flipped)
    theirs.batches = Batches(flipped, trainer.module)
    return theirs
