"""A trainer whose clients code what they send, and add what was lost by it to their next update."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from atoll.codecs.coding import Coding, Undecodable, add, subtract
from atoll.engine.around import Measuring
from atoll.engine.cohorts import ClientTrainer
from atoll.local.models import Model, form_of
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.support.errors import InputError
from atoll.support.seeds import generator

ERROR = "error@"
"""What names of a client's state begin with that hold what its updates have lost so far."""


class Coded(Measuring):
    """Trains as another trainer does; what comes of an update is what the server decodes (a `ClientTrainer`).

    With W what the client was sent, w what it trained and e what it kept, ``d = decode(encode(w - W + e))`` makes the
    server's ``W + d``, and ``e <- (w - W + e) - d`` is kept (Seide et al. 2014; Karimireddy et al. 2019). The random
    numbers of a codec depend on the seed and the task alone.
    """

    def __init__(self, trainer: ClientTrainer, coding: Coding, feedback: bool, seed: int) -> None:
        """Code what a trainer's clients send.

        Args:
            trainer: trains the clients.
            coding: codes their updates.
            feedback: whether e is kept; else it is zero.
            seed: what random numbers are derived from.
        """
        super().__init__(trainer)
        self.coding = coding
        self.feedback = feedback
        self.seed = seed
        self.keeps_state = feedback or trainer.keeps_state
        self.why_one_by_one = f"{coding.told} codes each client's update by itself"

    @property
    def module(self) -> nn.Module:
        """The trainer's, which `run.debug` watches."""
        return getattr(self.trainer, "module", nn.Module())

    def around(self, trainer: ClientTrainer) -> "Coded":
        """Return the same coding of what another trainer's clients send."""
        return Coded(trainer, self.coding, self.feedback, self.seed)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return what the server decodes of what the client sends back.

        Raises:
            InputError: the codec fails.
        """
        return self.train_coded(task)[0]

    def train_coded(self, task: ClientTask) -> tuple[ClientUpdate, bytes]:
        """Return what the server decodes, and the bytes that it decodes it from.

        Raises:
            InputError: the codec fails.
        """
        update = self.train_uncoded(task)
        wanted = _add_error(subtract(update.model, task.start), task.state or {})
        payload = self.coding.encode(wanted, generator(self.seed, "codec", *task.key))
        try:
            decoded = self.coding.decode(payload, form_of(wanted))
        except Undecodable as error:
            raise InputError(str(error)) from error
        state = (update.state or {}) | _error(wanted, decoded) if self.feedback else update.state
        return ClientUpdate(add(task.start, decoded), update.loss, state), payload

    def train_uncoded(self, task: ClientTask) -> ClientUpdate:
        """Return what the client has trained, before anything is coded, and what the trainer's clients keep."""
        own = {name: each for name, each in (task.state or {}).items() if not name.startswith(ERROR)}
        return self.trainer.train(replace(task, state=own or None))


@dataclass(frozen=True)
class MakeCoded:
    """Makes `Coded` trainers (`Method.trainer`).

    Attributes:
        coding: codes their clients' updates.
        feedback: whether clients keep what updates lose.
        seed: what random numbers are derived from.
        make: makes what trains the clients; None: `Trainer`.
    """

    coding: Coding
    feedback: bool
    seed: int
    make: Callable[..., ClientTrainer] | None = None

    def __call__(self, *given: Any, **named: Any) -> Coded:
        """Return the trainer, made from what `Trainer` takes."""
        return Coded((self.make or Trainer)(*given, **named), self.coding, self.feedback, self.seed)

    @property
    def keywords(self) -> Mapping[str, Any]:
        """What the trainer is made with besides, as that of a `functools.partial`."""
        return getattr(self.make, "keywords", {})

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep a state from task to task."""
        return self.feedback or self._says("keeps_state")

    @property
    def keeps_model(self) -> bool:
        """Whether part of it takes the place of what a client is sent."""
        return self._says("keeps_model")

    def _says(self, name: str) -> bool:
        return bool(getattr(getattr(self.make, "func", self.make), name, False))


@torch.no_grad()
def _add_error(update: Model, state: Model) -> Model:
    return {name: own + state[ERROR + name] if ERROR + name in state else own for name, own in update.items()}


@torch.no_grad()
def _error(wanted: Model, decoded: Model) -> Model:
    """Return what is lost of an update, by the names under which it is kept."""
    return {ERROR + name: own - decoded[name].to(own.device) for name, own in wanted.items() if own.is_floating_point()}
