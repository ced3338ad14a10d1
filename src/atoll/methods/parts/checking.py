"""Methods called from a script are checked like an experiment file, with the same error messages."""

from collections.abc import Callable, Iterable, Mapping
from inspect import getdoc, signature
from typing import Any, ParamSpec, TypeVar

from atoll.support.errors import InputError
from atoll.support.limits import Count, Positive
from atoll.support.requiring import check_arguments, require_has

P = ParamSpec("P")
R = TypeVar("R")

_COMMON = {"rounds": Positive, "seed": Count}  # settings outside any section
_TOLD = {
    "population": "the clients.",
    "rule": "the local training rule.",
    "rounds": "number of rounds, T.",
    "fraction": "share of clients in each cohort.",
    "clock": "clients' training and upload times; None: every round takes one second.",
    "seed": "seed for drawing cohorts.",
    "module": "the initial model.",
    "linkage": "distance between two clusters.",
    "threshold": "clusters farther apart are merged only while there are more than `clusters`; unset: down to these.",
    "option": "whether models or gradients are averaged.",
    "restarts": "number of initialisations to try; the one with the least loss is kept.",
    "restart_rounds": "number of trial rounds per initialisation.",
    "resample": "use disjoint data for cluster assignment and training in every round.",
    "shared_layers": "number of first layers shared by all clusters.",
    "server_lr": "the server's step size, eta.",
    "momentum": "heavy-ball momentum.",
    "phases": "for clients that move.",
    "deadline_seconds": "maximum wait per intra-cluster round.",
    "pace": "how clients' speeds change.",
    "beta1": "decay of the first moment.",
    "beta2": "decay of the second moment.",
    "tau": "degree of adaptivity; smaller is more adaptive.",
}
_OBJECTS = ("population", "clustering", "network", "clock", "rule", "module", "phases", "pace")


def checked(make: Callable[P, R]) -> Callable[P, R]:
    """Return the method's function with its arguments checked: types, limits, and equal numbers of clients.

    The function then raises an `InputError` before doing anything else. Its docstring is completed by `with_common`.
    """
    module = signature(make).parameters.get("module")

    def check(given: dict[str, Any]) -> None:
        _require_same_clients(given)
        if module is not None and given.get("module") is not module.default:
            require_has("module", given["module"], "state_dict", "a PyTorch module")

    made = check_arguments(make, _path, _COMMON, check)
    made.__doc__ = with_common(getdoc(make) or "", signature(make).parameters)
    return made


def with_common(docstring: str, names: Iterable[str]) -> str:
    """Return a method's docstring whose `Args:` say what they leave out, since it is the same for most methods."""
    head, begin, own = docstring.partition("Args:\n")
    left_out = [name for name in names if name in _TOLD and f"    {name}: " not in own]
    return head + begin + "".join(f"    {name}: {_TOLD[name]}\n" for name in left_out if begin) + own


def _path(name: str) -> str:
    """Return an argument's name in error messages: a setting's path, or an object's name."""
    return name if name in _COMMON or name in _OBJECTS else f"method.{name}"


def _require_same_clients(given: Mapping[str, Any]) -> None:
    """Reject a clustering, clock or network whose number of clients differs from the population's."""
    clients = len(given["population"])
    counts: dict[str, tuple[str, Callable[[Any], int]]] = {
        "clustering": ("labels", lambda clustering: len(clustering.labels)),
        "clock": ("seconds", lambda clock: len(clock.compute_seconds)),
        "network": ("seconds", lambda network: int(network.clients)),
    }
    for name, (what, count) in counts.items():
        if given.get(name) is not None and (found := count(given[name])) != clients:
            raise InputError(f"{name}: has {what} for {found} clients, but the population has {clients}")
