"""What a client is asked to do, and what it sends back and keeps."""

from dataclasses import dataclass

from atoll.local.models import Model, form_of


@dataclass(frozen=True, eq=False)
class ClientTask:
    """One client's work: train from `start`. Its `key` names its random numbers.

    Attributes:
        drawn_as: replaces the event in the key, for work that began before the number of its event was known.
        state: what the client kept from its last task, where its trainer `keeps_state`; None: it had none yet.
    """

    event: int
    round: int
    repeat: int
    cluster: int
    client: int
    start: Model
    drawn_as: int | None = None
    state: Model | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """What the client's random numbers are derived from, besides the seed and a purpose."""
        return self.event if self.drawn_as is None else self.drawn_as, self.repeat, self.client


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """What a client sends back, its mean training loss on the way, and the state that it keeps for its next task."""

    model: Model
    loss: float
    state: Model | None = None


def why_wrong_state(before: Model | None, after: Model | None, keeps_state: bool) -> str:
    """Return what is wrong with a state that a trainer returned, to follow its name; empty if nothing is.

    A client keeps one only if its trainer says so, and always of one form.
    """
    from torch import Tensor  # late: reading settings needs no PyTorch

    if after is None:
        return "says keeps_state = True, but returned no state" if keeps_state else ""
    if not keeps_state:
        return "returned a state, but does not say keeps_state = True"
    if not isinstance(after, dict) or not after or not all(isinstance(tensor, Tensor) for tensor in after.values()):
        return "must return a state that is a dict of tensors, at least one"
    if before is None or (form := form_of(after)) == (given := form_of(before)):
        return ""
    name = next(name for name in {**given, **form} if given.get(name) != form.get(name))
    changed = f"{name!r} was {_show(before, name)}, is now {_show(after, name)}"
    return f"returned a state of another form than it was given: {changed}"


def _show(state: Model, name: str) -> str:
    return f"{state[name].dtype} {list(state[name].shape)}" if name in state else "missing"
