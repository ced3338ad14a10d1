"""PyTorch's optimisers and schedules of learning rates by name, their parameters being settings."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any

from pydantic import Field

from atoll.support.errors import InputError
from atoll.support.limits import Number

OPTIMIZER_CLASSES = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop"),
    "Rprop",
)
SCHEDULE_CLASSES = (
    *("ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LinearLR"),
    *("MultiStepLR", "OneCycleLR", "PolynomialLR", "StepLR"),
)
_OWN = "name a function of round and lr, module:function"
_MADE = "name a function of `optimizer`, module:function, that returns it"
REFUSED: Mapping[str, str] = {
    "lbfgs": "measures the loss several times in each step, and a client has one batch for it",
    "sparseadam": "takes sparse gradients only, which models do not have here",
    "reducelronplateau": "waits for measured losses, but rates must be known before training; see run.stop_at",
    "lambdalr": f"takes a function; {_OWN}",
    "multiplicativelr": f"takes a function; {_OWN}",
    "sequentiallr": f"is made of others; set local.warmup_rounds, or {_MADE}",
    "chainedscheduler": f"is made of others; {_MADE}",
}
"""Why classes of PyTorch cannot be used, by their names in small letters."""

_SHORT = {"cosine": "CosineAnnealingLR", "step": "StepLR", "exponential": "ExponentialLR", "linear": "LinearLR"}
_PLACE = re.compile(r"torch\.optim(?:\.\w+)?[.:](\w+)")


def spelled(setting: str, name: str) -> str:
    """Return the name by which an optimiser or schedule of PyTorch is known here; other names are unchanged.

    >>> spelled("local.optimizer", "torch.optim.AdamW"), spelled("local.schedule", "cosine")
    ('adamw', 'CosineAnnealingLR')
    """
    found = _PLACE.fullmatch(name)
    own = found[1] if found else name
    if own.lower() in REFUSED:
        raise InputError(f"{setting} = {own!r}: {REFUSED[own.lower()]}")
    if setting == "local.optimizer":
        known = {each.lower() for each in OPTIMIZER_CLASSES}
        return "torch-sgd" if found and own == "SGD" else own.lower() if found or own.lower() in known else name
    return ({each.lower(): each for each in SCHEDULE_CLASSES} | _SHORT).get(own.lower(), own)


@dataclass(frozen=True)
class TorchClass:
    """A class of PyTorch as a function whose parameters, unset unless given, are settings; read only when used."""

    setting: str
    module: str
    class_name: str
    left_out: tuple[str, ...]
    fixed: tuple[tuple[str, Any], ...] = ()
    is_lazy = True

    def __str__(self) -> str:
        return self.class_name

    @cached_property
    def _made(self) -> Callable[..., Any]:
        found = getattr(import_module(self.module), self.class_name, None)
        if found is None:
            raise InputError(f"{self.setting} = {self.class_name!r}: this version of PyTorch has none")
        return found  # type: ignore[no-any-return]

    @property
    def __signature__(self) -> inspect.Signature:
        own = [each for each in inspect.signature(self._made).parameters.values() if each.name not in self.left_out]
        unset = {each.name: None for each in own if each.default is not each.empty or each.name in _FILLED}
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature(
            [
                each.replace(kind=kind, default=unset.get(each.name, each.empty), annotation=_type_of(each))
                for each in own
            ]
        )

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Make an object; lists become tuples."""
        given = {key: tuple(each) if isinstance(each, list) else each for key, each in settings.items()}
        try:
            return self._made(*args, **given, **dict(self.fixed))
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            told = " ".join(str(error).split())
            raise InputError(f"{self.setting} = {self.class_name!r}: PyTorch rejects its settings ({told})") from error


_FILLED = ("T_max", "base_lr", "total_steps")  # left unset, they follow from the run
_MOMENTUM = ("cycle_momentum", "base_momentum", "max_momentum")
_NO_SETTINGS = ("last_epoch", "verbose", "scale_fn", "scale_mode", "epochs", "steps_per_epoch", *_MOMENTUM)


def _type_of(parameter: inspect.Parameter) -> Any:
    """Return a parameter's type as TOML can hold it, from its default and else from its annotation."""
    default, said = parameter.default, str(parameter.annotation)
    if isinstance(default, tuple):
        return Annotated[list[Number], Field(min_length=len(default), max_length=len(default))]
    if "Iterable" in said:
        return list[int]
    if isinstance(default, str) or "Literal" in said or "str" in said:
        return str
    if isinstance(default, bool) or "bool" in said:
        return bool
    return int if "int" in said and "float" not in said else Number


def torch_optimizers() -> dict[str, TorchClass]:
    """Return PyTorch's optimisers by name. `Adagrad.lr_decay` is left out: it would hide `local.lr_decay`."""
    names = {name.lower(): name for name in OPTIMIZER_CLASSES} | {"torch-sgd": "SGD"}
    return {key: TorchClass("local.optimizer", "torch.optim", name, ("lr_decay",)) for key, name in names.items()}


def torch_schedules() -> dict[str, TorchClass]:
    """Return PyTorch's schedules by name; what they do with momentum is left out."""
    still = dict.fromkeys(("CyclicLR", "OneCycleLR"), (("cycle_momentum", False),))
    place = "torch.optim.lr_scheduler"
    names = {**{name: name for name in SCHEDULE_CLASSES}, **_SHORT}
    return {
        key: TorchClass("local.schedule", place, name, _NO_SETTINGS, still.get(name, ())) for key, name in names.items()
    }
