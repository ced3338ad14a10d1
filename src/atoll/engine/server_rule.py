"""Server rules: how the server updates its model with an event's merged model, such as an optimiser step."""

from typing import Any, Protocol

from atoll.data.array_inputs import kind_of
from atoll.local.models import Model, form_of
from atoll.support.errors import RunError, blaming


class ServerRule(Protocol):
    """Returns the server's new model, and the rule's state for the next event as new tensors, or None for no state.

    `before` is the server's model before the event, `merged` the one that the event's mix gives, `state` the rule's
    last state, None at first. Tensors of `merged` with an ``@`` in their name may be left out of the new model.
    """

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model | None]:
        """Return the new model and state."""


def apply_rule(
    rule: ServerRule, event: int, before: Model, merged: Model, state: Model | None
) -> tuple[Model, Model | None]:
    """Return the server's new model, and the rule's state."""
    with blaming(f"event {event}: the server rule failed", RunError, SystemExit):
        made = rule(before, merged, state)
    model, kept = made if isinstance(made, tuple) and len(made) == 2 else (None, None)
    if not (is_model(model) and (kept is None or is_model(kept))):
        told = "must return a pair of dicts of tensors, the new model and what it keeps, or None for nothing kept"
        raise RunError(f"event {event}: the server rule {told}; it returned {kind_of(made)}")
    wanted = {name: tensor for name, tensor in merged.items() if "@" not in name or name in model}
    fault = _why_wrong(wanted, model, "model", "the merged one")
    if fault := fault or (_why_wrong(state, kept, "state", "the one before") if state is not None else ""):
        raise RunError(f"event {event}: the server rule {fault}")
    return model, kept


def require_like(known: Model, made: Any) -> None:
    """Reject what a combine rule returned unless it is a model of these names and shapes, other types aside."""
    if not is_model(made):
        parts = made.items() if isinstance(made, dict) else ()
        odd = (f"one with {kind_of(part)} at {name!r}" for name, part in parts if not is_model({name: part}))
        told = next(odd, kind_of(made))
        raise TypeError(f"the rule must return the cluster's model, a dict of tensors, not {told}")
    shapes = [{(name, *each.shape) for name, each in model.items() if "@" not in name} for model in (known, made)]
    if unlike := sorted(shapes[0] ^ shapes[1]):
        told = "returned a model with other names or shapes than the clients' ones"
        raise ValueError(f"the rule {told}, at {unlike[0][0]!r}")


def is_model(made: Any) -> bool:
    """Return whether this is a dict of tensors."""
    from torch import Tensor  # here, so that reading settings stays fast

    return isinstance(made, dict) and all(isinstance(each, Tensor) for each in made.values())


def _why_wrong(expected: Model, returned: Model | None, what: str, like: str) -> str:
    form, known = form_of(returned or {}), form_of(expected)
    if form == known:
        return ""
    name = next(name for name in {**known, **form} if known.get(name) != form.get(name))
    return f"returned a {what} with other names, shapes or types than {like}, at {name!r}"
