"""What a node has revealed about a client: charged in its store before it leaves, over all runs."""

from dataclasses import replace
from threading import Lock

from pydantic import ValidationError

from atoll.fleet.agreed.messages import Count, Refused
from atoll.fleet.node.store import Store
from atoll.fleet.node.work_count import WorkBudget
from atoll.privacy.accounting import epsilon_of_all
from atoll.privacy.mechanism import Adjacency, Cost, Mechanism
from atoll.support.errors import InputError
from atoll.support.limits import StrictRecord

_ALONE = Lock()  # two concurrent charges would lose one


class _Charge(StrictRecord):
    """A number of releases of one cost."""

    gaussians: tuple[float, ...]
    adjacency: Adjacency
    response: tuple[float, int] | None
    times: Count

    @property
    def cost(self) -> Cost:
        return Cost(self.gaussians, self.adjacency, self.response)


class _Seal(StrictRecord):
    """The number of charges, stored separately, so that an older ledger is detected."""

    charged: Count


class ClientLedger(StrictRecord):
    """What one client has spent.

    Attributes:
        pure: total epsilon of pure mechanisms (delta = 0), such as randomised class counts.
    """

    charged: Count = 0
    charges: tuple[_Charge, ...] = ()
    pure: float = 0.0

    def plus(self, cost: Cost | None, pure: float) -> "ClientLedger":
        """Return the ledger with one more release of this cost and this much more pure epsilon."""
        times = {each.cost: each.times for each in self.charges}
        if cost is not None:
            times[cost] = times.get(cost, 0) + 1
        charges = tuple(_Charge(**vars(cost), times=count) for cost, count in times.items())
        return ClientLedger(charged=self.charged + 1, charges=charges, pure=self.pure + pure)

    def epsilon(self, delta: float | None) -> float:
        """Return the epsilon spent at this delta, by default 1e-5; infinite without noise."""
        return epsilon_of_all(tuple((each.cost, each.times) for each in self.charges), delta or 1e-5) + self.pure


def charge(
    store: Store, client: int, budget: WorkBudget, cost: Cost | None = None, pure: float = 0.0, least: int = 0
) -> ClientLedger:
    """Charge a client for what is about to be revealed; store and return its ledger.

    Args:
        cost: of a release; None: no release.
        least: how often the client has been charged before, at least, as its tally knows.
    """
    with _ALONE:
        after = read_ledger(store, client, least).plus(cost, pure)
        most = budget.epsilon
        if most is not None and (spent := after.epsilon(budget.delta)) > most:
            raise Refused("over_budget", f"client {client}'s epsilon would be {spent:.4g}, above {most:g}")
        before, sealed = (_Seal(charged=after.charged - lag).model_dump_json().encode() for lag in (1, 0))
        ledger = after.model_dump_json().encode()
        for key, content in ((_seal(client), before), (_key(client), ledger), (_seal(client), sealed)):
            store.put(key, content)  # the seal before too, or two kills in a row would leave it two behind
    return after


def read_ledger(store: Store, client: int, least: int = 0) -> ClientLedger:
    """Return what a client has spent so far."""
    kept, seal = store.get(_key(client)), store.get(_seal(client))
    try:
        ledger = ClientLedger() if kept is None else ClientLedger.model_validate_json(kept)
        sealed = 0 if seal is None else _Seal.model_validate_json(seal).charged
    except ValidationError:
        raise _unknown(client, "is damaged") from None
    # The ledger is written before the seal, so after a kill it may be one ahead.
    if ledger.charged not in (sealed, sealed + 1) or ledger.charged < least:
        known = max(sealed, least)
        raise _unknown(client, f"is gone, or an older copy: it was charged {ledger.charged} times, of {known}")
    return ledger


def with_epsilon(budget: WorkBudget, local: Mechanism | None, exactly: bool) -> WorkBudget:
    """Return a node's budget, with epsilon from the owner's copy of the experiment if `node.toml` sets none.

    Args:
        local: how the client hides what it sends; None: it does not.
        exactly: whether class counts are reported without noise.
    """
    if local is None and budget.epsilon is not None:
        raise InputError(
            f"most_epsilon = {budget.epsilon:g} of node.toml: needs privacy.trust = 'client'; otherwise models "
            "leave the node without noise, and no epsilon holds"
        )
    if local is not None and exactly:
        raise InputError(
            "class_counts = true: tells them exactly, which cannot be used with privacy.trust = 'client'; add noise by "
            "[reports] in node.toml, or set epsilon"
        )
    if local is None or budget.epsilon is not None:
        return budget
    return replace(budget, epsilon=local.epsilon, delta=budget.delta or local.delta)


def _unknown(client: int, why: str) -> Refused:
    return Refused("over_budget", f"client {client}'s ledger {why}; without it nobody knows what was spent")


def _key(client: int) -> str:
    return f"ledger-{client}"


def _seal(client: int) -> str:
    return f"ledger-{client}-seal"
