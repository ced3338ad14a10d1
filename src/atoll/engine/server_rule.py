"""Server rules: how the server updates its model with an event's merged model, such as an optimiser step."""

from typing import Protocol

from atoll.local.models import Model, form_of
from atoll.support.errors import AtollError, RunError


class ServerRule(Protocol):
    """Returns the server's new model, and the rule's state for the next event as new tensors, or None for no state.

    `before` is the server's model before the event, `merged` the one that the event's mix gives, `state` the rule's
    last state, None at first. Tensors of `merged` with an ``@`` in their name may be left out of the new model.
    """

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model | None]:
        """Return the new model and state."""
        ...


def apply_rule(
    rule: ServerRule, event: int, before: Model, merged: Model, state: Model | None
) -> tuple[Model, Model | None]:
    """Return the server's new model, and the rule's state.

    Raises:
        RunError: the rule fails, or returns a model or a state of another form; names the event.
    """
    try:
        model, kept = rule(before, merged, state)
        wanted = {name: tensor for name, tensor in merged.items() if "@" not in name or name in model}
        fault = _why_wrong(wanted, model, "model", "the merged one") or (
            _why_wrong(state, kept, "state", "the one before") if state is not None else ""
        )
    except AtollError:
        raise
    except Exception as error:  # raised by a user's rule
        raise RunError(f"event {event}: the server rule failed ({type(error).__name__}: {error})") from error
    if fault:
        raise RunError(f"event {event}: the server rule {fault}")
    return model, kept


def _why_wrong(expected: Model, returned: Model | None, what: str, like: str) -> str:
    form, known = form_of(returned or {}), form_of(expected)
    if form == known:
        return ""
    name = next(name for name in {**known, **form} if known.get(name) != form.get(name))
    return f"returned a {what} with other names, shapes or types than {like}, at {name!r}"
