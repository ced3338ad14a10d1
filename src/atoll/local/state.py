"""What a client keeps between its tasks: only if its trainer says so, and always of one form."""

from torch import Tensor

from atoll.local.models import Model, form_of


def why_wrong_state(before: Model | None, after: Model | None, keeps_state: bool) -> str:
    """Return what is wrong with the state that a trainer returned, to follow its name; empty if nothing is."""
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
