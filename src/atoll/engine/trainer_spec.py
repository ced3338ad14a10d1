"""How a method makes its trainers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.engine.cohorts import ClientTrainer


@dataclass(frozen=True)
class TrainerSpec:
    """Makes a method's trainers. Its options are explicit, so that server and nodes can compare them.

    Attributes:
        make: called with the arguments of `atoll.Trainer` and the options; None: `atoll.Trainer`.
        options: further keyword arguments.
        keeps_state: whether clients keep state from task to task.
        keeps_model: whether that state replaces the tensors of the same names that a client is sent.
        trains_parts: whether it trains models without the frozen parameters, which are in its module.
    """

    make: "Callable[..., ClientTrainer] | None" = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keeps_state: bool = False
    keeps_model: bool = False
    trains_parts: bool = False

    @classmethod
    def of(cls, made: "Callable[..., ClientTrainer] | TrainerSpec | None") -> "TrainerSpec":
        """Return the spec of a trainer class, or of a `functools.partial` of one."""
        if isinstance(made, TrainerSpec):
            return made
        make, options = (made.func, made.keywords) if isinstance(made, partial) else (made, {})
        says = {name: bool(getattr(make, name, False)) for name in ("keeps_state", "keeps_model", "trains_parts")}
        return cls(make, options, **says)

    def __call__(self, *given: Any, **named: Any) -> "ClientTrainer":
        """Return a trainer."""
        from atoll.local.trainer import Trainer  # late: reading settings needs no PyTorch

        return (self.make or Trainer)(*given, **{**self.options, **named})
