"""What all tasks of a node share: finding the run, counting the work, and computing."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from atoll.fleet.agreed.messages import Refused
from atoll.fleet.agreed.sum_messages import WorkDone
from atoll.fleet.node.epsilon_ledger import charge
from atoll.fleet.node.node import Node, Side
from atoll.fleet.node.reports import add_to_pace, holding_of
from atoll.fleet.node.store import Store
from atoll.fleet.node.work_count import Tally, read_tally, write_tally
from atoll.local.models import Model, form_of, without_moments
from atoll.local.precision import Precision, products_in
from atoll.privacy.mechanism import Cost
from atoll.support.process import one_thread

_ALONE = Lock()  # PyTorch's random numbers and its number of threads belong to the whole process


@dataclass(frozen=True)
class Done:
    """A finished task: the reply, and a line for the node's owner."""

    reply: bytes
    told: str


Handler = Callable[[Side, Store, bytes], Done]
Trained = TypeVar("Trained")


def count(site: Node, store: Store, client: int, cost: Cost | None = None, **more: int) -> tuple[Tally, str]:
    """Count a task before it starts, so that a crash loses none, and charge its privacy cost.

    Returns the work so far, and the epsilon spent in words.
    """
    before = read_tally(store, client, site.counted_as)
    after, spent = before.plus(**more), ""
    if why := after.why_over(site.budget, more):
        raise Refused("over_budget", f"client {client}'s {why}")
    if cost is not None:
        ledger = charge(store, client, site.budget, cost, least=before.charged)
        after = after.model_copy(update={"charged": ledger.charged})
        spent = f"; epsilon so far: {ledger.epsilon(site.budget.delta):.4g}"
        spent += "" if site.budget.epsilon is None else f" of at most {site.budget.epsilon:g}"
    write_tally(store, client, site.counted_as, after)
    return after, spent


def agreed(side: Side, digest: str, told: Mapping[str, Any] | None = None) -> Node:
    """Return the node whose settings have this digest, made from what the server sends if necessary."""
    with _ALONE:  # making a node draws a model
        return side.find(digest, told)


def require_client(site: Node, client: int) -> int:
    """Return the client, which must belong to the node."""
    if client not in site.clients:
        raise Refused("wrong_client", f"client {client} is not here")
    return client


def require_form(site: Node, models: list[Model], count: int) -> list[Model]:
    """Return `count` models, which must be of the agreed form and get its order; at first moments may be missing."""
    form = site.agreement.form
    without = without_moments(form)
    if len(models) != count or not models or not all(form_of(model) in (form, without) for model in models):
        raise Refused("unreadable")
    return [{name: model[name] for name in form if name in model} for model in models]


@contextmanager
def computing(precision: Precision = "float32") -> Iterator[None]:
    """Compute as `executors.Serial` does, bit-identically: it measures in float32, whatever it trains in."""
    with _ALONE, one_thread(), products_in(precision):
        yield


def timed(site: Node, store: Store, client: int, train: Callable[[], Trained]) -> tuple[Trained, WorkDone]:
    """Train a client; return the result and its work, which is added to the client's pace."""
    with computing(site.trainer.precision):
        began = time.perf_counter()
        trained = train()
        seconds = time.perf_counter() - began
    samples = holding_of(site, store, client).samples
    passed = site.agreement.passed_by(samples)
    add_to_pace(store, client, seconds, passed)
    return trained, WorkDone(client=client, samples=samples, passed=passed, seconds=seconds)
