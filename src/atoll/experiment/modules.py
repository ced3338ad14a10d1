"""From settings to the model, the local rule and the trainer, and a check that they are compatible."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from atoll.aggregation.lora_product import factors_of
from atoll.data.dataset import Dataset
from atoll.data.population import Population
from atoll.engine.chain import Chain, chain_of, require_halves
from atoll.engine.method import Method
from atoll.local.augment import AUGMENTS
from atoll.local.models import MODELS, Model
from atoll.local.rates import SCHEDULES, fill, scheduled_rates, warmed_up
from atoll.local.rule import OPTIMIZERS, LocalRule, MakeOptimizer
from atoll.local.task import ClientTask, ClientUpdate, why_wrong_state
from atoll.local.travel import staying
from atoll.methods.parts.staying import keep_at_clients
from atoll.schedules.events import Event
from atoll.settings.choices import method_kind
from atoll.settings.plugins import bind, call, resolve
from atoll.settings.signatures import asks_for
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, RunError, blaming
from atoll.support.seeds import layers_drawing_from
from atoll.support.wording import show


def draw_module(settings: Settings, data: Dataset, cluster: int = 0, restart: int = 0) -> nn.Module:
    """Make a module with separate initial weights for each cluster and restart."""
    name, kind = settings.model.name, method_kind(settings)
    _require_next_tokens(settings, data)
    made: dict[str, Any] = {**dict(settings.model), "shape": data.shape, "classes": data.outputs, "dataset": data}
    factory = bind("model.name", resolve("model.name", name, MODELS), made, settings.model.model_extra)
    if kind.together is not None:
        given = {**dict(settings.method), "make": factory, "loss": data.loss, "classes": data.outputs}
        factory = bind("method.name", kind.together, given)
    key = (cluster, restart) if cluster or restart else ()
    told = f"model.name = {name!r}: cannot be made"
    with layers_drawing_from(settings.seed, "model", *key), blaming(told, InputError):
        module = factory()
    if not isinstance(module, nn.Module):
        raise InputError(f"model.name = {name!r}: must return a torch.nn.Module, it returned {type(module).__name__!r}")
    if any(map(nn.parameter.is_lazy, module.parameters())):
        raise InputError(f"model.name = {name!r}: has lazy layers, which have no weights yet; give each its size")
    state = module.state_dict(keep_vars=True)
    if odd_state := next((key for key, each in state.items() if not isinstance(each, torch.Tensor)), ""):
        raise InputError(f"model.name = {name!r}: its state {odd_state!r} is no tensor; leave get_extra_state out")
    kept = staying(module, settings.model.travelling)
    for own, each in state.items():
        if "@" in own:
            raise InputError(f"model.name = {name!r}: {own!r} has an '@', which marks optimisers' moments; rename it")
        is_averaged = each.requires_grad or (each.is_floating_point() and own not in kept)
        if is_averaged and each.dtype not in (torch.float32, torch.float64):
            told = f"{own!r} is of {str(each.dtype)[6:]}, whose means would be wrong or inexact; make it float32"
            raise InputError(f"model.name = {name!r}: {told}, and for speed set run.precision = 'bfloat16'")
    return module


def _require_next_tokens(settings: Settings, data: Dataset) -> None:
    """Refuse networks that would take texts, and return something else than log-probabilities of their tokens."""
    name, together = settings.model.name, method_kind(settings).together
    if data.loss == "next-token" and (together or (name in MODELS and name != "pretrained")):
        told = f"method.name = {settings.method.name!r}" if together else f"model.name = {name!r}"
        raise InputError(f"{told}: cannot predict next tokens (data.task = 'causal'); model.name = 'pretrained' can")


def make_rule(settings: Settings) -> LocalRule:
    """Return the local rule, before the method changes it."""
    wanted = settings.local
    make = resolve("local.optimizer", wanted.optimizer, OPTIMIZERS)
    fixed = {key: value for key, value in dict(wanted).items() if key != "lr"}
    optimizer = bind("local.optimizer", make, fixed, wanted.model_extra, later=("parameters", "params", "lr"))
    if getattr(make, "__module__", "") != "atoll.local.rule":
        _try_optimizer(settings, optimizer)
    data = settings.data
    change = resolve("data.augment", data.augment, AUGMENTS)
    augment = bind("data.augment", change, {**dict(data), "inputs": None}, data.model_extra, later=("inputs",))
    return LocalRule(
        optimizer=optimizer,
        lr=wanted.lr * wanted.lr_factor,
        steps=wanted.steps,
        batch_size=wanted.batch_size,
        proximal=wanted.proximal,
        lr_decay=wanted.lr_decay,
        epochs=wanted.epochs,
        augment=None if data.augment == "none" else augment,
        rates=_make_rates(settings),
    )


def _make_rates(settings: Settings) -> tuple[float, ...]:
    """Return the learning rate of each round; nothing if it is constant, but for `local.lr_decay`."""
    wanted, lr = settings.local, settings.local.lr
    if wanted.schedule == "constant" and not wanted.warmup_rounds:
        return ()
    rounds = max(settings.rounds - wanted.warmup_rounds, 0)
    make = resolve("local.schedule", wanted.schedule, SCHEDULES)
    given = fill(dict(wanted), lr, rounds) | {"lr": lr, "rounds": rounds}
    own = partial(call, "local.schedule", make, extra=wanted.model_extra)
    if rounds and asks_for(make, "optimizer"):
        rates = scheduled_rates(lambda optimizer: own(given | {"optimizer": optimizer}), lr, rounds)
    else:
        rates = [own(given | {"round": round_}) for round_ in range(rounds)]
    whole = warmed_up(wanted.schedule, rates, lr, wanted.warmup_rounds)[: settings.rounds]
    return tuple(rate * wanted.lr_factor for rate in whole)


def let_stay(settings: Settings, method: Method, module: nn.Module) -> Method:
    """Return the method with clients keeping what `model.travels` does not communicate."""
    travels = settings.model.travelling
    if settings.method.combine == "lora-product":
        factors_of(module.state_dict())
    if travels == "all":
        return method
    if method.stays and travels != "trainable":
        raise InputError(f"model.travels = {travels}: method.name = {settings.method.name!r} itself says what travels")
    return keep_at_clients(method, staying(module, travels), module, f"model.travels = {show(travels)}")


def make_chain(
    settings: Settings, method: Method, module: nn.Module, population: Population, device: str, tolerant: bool
) -> Chain:
    """Return the method's trainer with its stages; the module is its scratch space from now on."""
    given = module, population, settings.seed, device, settings.run.precision, not settings.run.debug, tolerant
    told = f"method.name = {settings.method.name!r}"
    with blaming(f"{told}: making its trainer failed", InputError):
        chain = chain_of(method, *given)
    trainer = chain.trainer
    if trainer.keeps_state != method.trained_by.keeps_state:
        raise InputError(
            f"{told}: the method's trainer makes a {type(trainer).__name__}, whose keeps_state is "
            f"{trainer.keeps_state}; the trainer itself must say the same"
        )
    return chain


def rehearse(settings: Settings, trainer: Chain, event: Event, start: Model) -> ClientUpdate | None:
    """Train one client for one step, so that a model, optimiser or trainer that fails is found before the run.

    If clients keep state, it then trains again from its state. Returns its last update; None if that is not finite.
    """
    if not len(event.cohort):
        raise InputError(f"rounds = {settings.rounds}: no event has a client; end the run later, or ease [faults]")
    task = ClientTask(event=0, round=0, repeat=0, cluster=0, client=int(event.cohort[0]), start=start)
    local = f"local.optimizer = {settings.local.optimizer!r} and local.batch_size = {settings.local.batch_size!r}"
    told = f"model.name = {settings.model.name!r}: a step of training with {local} failed"
    with suppress(RunError), blaming(told, InputError):  # a loss that is not finite: the run will name the step
        require_halves(trainer, task)
        update = _train_checked(settings, trainer, task)
        return _train_checked(settings, trainer, replace(task, state=update.state)) if trainer.keeps_state else update
    return None


def _train_checked(settings: Settings, trainer: Chain, task: ClientTask) -> ClientUpdate:
    update = trainer.train(task)
    if fault := why_wrong_state(task.state, update.state, trainer.keeps_state):
        name = type(trainer.trainer).__name__
        raise InputError(f"method.name = {settings.method.name!r}: its trainer, {name}, {fault}")
    return update


def _try_optimizer(settings: Settings, make: MakeOptimizer) -> None:
    """Make the optimiser once, so that a faulty one is rejected before training."""
    made: object = make([nn.Parameter(torch.zeros(1, 1))], settings.local.lr)
    if not isinstance(made, torch.optim.Optimizer):
        told = f"must return a torch.optim.Optimizer, it returned {type(made).__name__!r}"
        raise InputError(f"local.optimizer = {settings.local.optimizer!r}: {told}")
