"""A trainer with stages around it (`Method.stages`)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor, nn

from atoll.data.array_inputs import kind_of
from atoll.data.population import Population
from atoll.engine.cohorts import ClientTrainer
from atoll.engine.method import Method
from atoll.engine.stages import Stage, Train, sent_form
from atoll.local.models import Form, Model, form_of
from atoll.local.task import ClientTask, ClientUpdate, why_wrong_state
from atoll.support.errors import InputError, blaming
from atoll.support.requiring import require_has

T = TypeVar("T")


class Chain:
    """Trains with another trainer, then passes each update through the client and server halves of every stage.

    It is a `ClientTrainer`. Losses that clients measure pass through no stage.
    """

    def __init__(self, trainer: ClientTrainer, stages: Sequence[Stage]) -> None:
        """Wrap a trainer; the first stage is the innermost."""
        self.trainer = trainer
        self.precision = trainer.precision
        self.losses, self.sample_losses = trainer.losses, trainer.sample_losses
        self.identity_rows, self.samples_a_step = trainer.identity_rows, trainer.samples_a_step
        self.stages = tuple(stages)
        self._of_each = of_each = [stage for stage in stages if stage.is_at_client or stage.receive is not None]
        self.keeps_state = trainer.keeps_state or any(stage.keeps_state for stage in stages)
        one_by_one = f"{of_each[-1].told} changes each client's update separately" if of_each else ""
        self.why_one_by_one = one_by_one or trainer.why_one_by_one
        self.module: nn.Module = getattr(trainer, "module", nn.Module())  # which `run.debug` watches
        self._trains: Train | None = next((stage.trains(trainer) for stage in stages if stage.trains), None)

    def for_executors(self) -> ClientTrainer:
        """Return itself, or the bare trainer, which may train many clients at once, if no stage has a half for each."""
        return self if self._of_each else self.trainer

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return the update as the server reconstructs it.

        Raises:
            InputError: a stage's half fails.
        """
        update, forms = self.pass_through(task, self.stages, self._trains or self.trainer.train)
        model = update.model
        for stage, form in zip(reversed(self.stages), reversed(forms), strict=True):
            if stage.receive is not None:
                model = _half(stage, dict, stage.receive, model, task.start, form)
        return replace(update, model=model)

    def send(self, task: ClientTask) -> ClientUpdate:
        """Return what leaves the client."""
        return self.pass_through(task, self.stages, self._trains or self.trainer.train)[0]

    def train_alone(self, task: ClientTask) -> ClientUpdate:
        """Return the trained model before anything is sent, with the part of it that the client keeps."""
        stages = [stage for stage in self.stages if stage.keeps_model]
        if task.state is None and getattr(self.trainer, "asks_first", False):
            task = replace(task, state=self.pass_through(task, stages, self.trainer.train)[0].state)
        return self.pass_through(task, stages, self.trainer.train)[0]

    def pass_through(self, task: ClientTask, stages: Sequence[Stage], train: Train) -> tuple[ClientUpdate, list[Form]]:
        """Return what the last of these stages sends, and the form of each stage's input."""
        if not stages:
            update = train(replace(task, state=self._kept(task.state, None)))
            require_has(f"what {type(self.trainer).__name__}.train returns", update, "state", "an atoll.ClientUpdate")
            return update, []
        *inner, stage = stages
        own = replace(task, state=self._kept(task.state, stage))
        begun = task if stage.begin is None else replace(_half(stage, ClientTask, stage.begin, own), state=task.state)
        update, forms = self.pass_through(begun, inner, train)
        forms.append(form_of(update.model))
        if stage.send is None:
            return update, forms
        sent = _half(stage, ClientUpdate, stage.send, own, replace(update, state=None))
        if fault := why_wrong_state(own.state, sent.state, stage.keeps_state):
            raise InputError(f"{stage.told}: its client half {fault}")
        return replace(sent, state=_joined(update.state, sent.state, stage)), forms

    def _kept(self, state: Model | None, stage: Stage | None) -> Model | None:
        """Return the part of the client state that belongs to a stage; None: to the trainer."""
        if not state or (stage is not None and not stage.keeps_state):
            return None
        if stage is not None and not stage.keeps_model:
            start = f"{stage.name}@"
            return {name.removeprefix(start): each for name, each in state.items() if name.startswith(start)} or None
        others = tuple(f"{each.name}@" for each in self.stages if each.keeps_state and not each.keeps_model)
        return {name: each for name, each in state.items() if not name.startswith(others)} or None


def chain_of(method: Method, module: nn.Module, population: Population, seed: int, *given: Any, **named: Any) -> Chain:
    """Return a method's trainer with the method's stages around it.

    Args:
        method: provides the trainer, the local rule and the stages.
        module: the model to train.
        population: the clients.
        seed: for all random numbers.
        given: further positional arguments of `atoll.Trainer`.
        named: further keyword arguments of `atoll.Trainer`.
    """
    return Chain(method.trained_by(module, population, method.rule, seed, *given, **named), method.stages)


def require_halves(chain: Chain, task: ClientTask) -> None:
    """Run every stage once, and reject one whose halves disagree on the form of the message."""
    for count, stage in enumerate(chain.stages, 1):
        if stage.fixed is not None or not (stage.send or stage.receive or stage.form):
            continue  # nodes of a fleet mask, not the chain
        sent, forms = chain.pass_through(task, chain.stages[:count], chain.trainer.train)
        given, found = forms[-1], form_of(sent.model)
        if found != (wanted := sent_form([stage], given)):
            raise InputError(f"{stage.told}: its client half sends {_told(found)}, but its form says {_told(wanted)}")
        got = sent.model
        made = form_of(_half(stage, dict, stage.receive, got, task.start, given) if stage.receive else got)
        if made != given and not stage.keeps_model:
            told = f"returns {_told(made)}, but its client half was given {_told(given)}"
            raise InputError(f"{stage.told}: its server half {told}")


def _half(stage: Stage, kind: type[T], half: Callable[..., T], *given: Any) -> T:
    """Return what a half at the client, or one at the server for a `dict`, makes; it may be a user's own code."""
    told = f"{stage.told}: its {'server' if kind is dict else 'client'} half"
    with blaming(f"{told} failed", InputError):
        made = half(*given)
    if not isinstance(made, kind):
        raise InputError(
            f"{told} must return {'a dict' if kind is dict else kind.__name__}, not {type(made).__name__!r}"
        )
    tensors = made if isinstance(made, dict) else getattr(made, "model", {})
    if odd := next((name for name, each in tensors.items() if not isinstance(each, Tensor)), None):
        raise InputError(f"{told} must give tensors, not {kind_of(tensors[odd])} as {odd!r}")
    return made


def _joined(others: Model | None, own: Model | None, stage: Stage) -> Model | None:
    """Return the state of the trainer and other stages together with a stage's own, as `Chain._kept` takes it apart."""
    if own is None:
        return others
    named = own if stage.keeps_model else {f"{stage.name}@{name}": each for name, each in own.items()}
    return {**(others or {}), **named}


def _told(form: Form) -> str:
    """Return a form in words: the first tensors' names, shapes and types."""
    parts = [f"{name} {list(shape)} {str(kind).removeprefix('torch.')}" for name, (shape, kind) in form.items()]
    return f"{'; '.join(parts[:3])}{' ...' if len(parts) > 3 else ''}" or "nothing"
