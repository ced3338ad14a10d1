"""A node's side of secure sums: its clients' updates leave it summed as integers and masked."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from atoll.aggregation.fixed_point import FixedPoint, OutOfRange
from atoll.fleet.agreed.messages import Refused, body_of, decode, encode, pack
from atoll.fleet.agreed.sum_messages import (
    KeysReply,
    KeysRequest,
    MaskedReply,
    MaskedRequest,
    SharesReply,
    SharesRequest,
    SignedKeys,
    SumReply,
    SumRequest,
    SurvivorsReply,
    SurvivorsRequest,
    UnmaskReply,
    UnmaskRequest,
    WorkDone,
    work_of,
)
from atoll.fleet.node.node import Node, Side
from atoll.fleet.node.open_sums import OpenSums
from atoll.fleet.node.store import Store
from atoll.fleet.node.working import Done, Handler, agreed, count, require_client, require_form, timed
from atoll.local.models import Model
from atoll.local.task import ClientTask
from atoll.secure.field import BYTES
from atoll.secure.fixed import MASKED, flat, unflat
from atoll.secure.roster import NotSummed

Request = TypeVar("Request", bound=SumRequest)


def make_keys(side: Side, store: Store, payload: bytes) -> Done:
    """Make and sign keys for a sum."""
    request, _, _, sums = _open(side, payload, KeysRequest)
    with _refusing():
        keys = sums.begin(request.instance).advertise()
    return _done(request, KeysReply(nonce=request.nonce, keys=SignedKeys.of(keys)), "keys made")


def deal_shares(side: Side, store: Store, payload: bytes) -> Done:
    """Deal shares of this node's secrets to the other nodes, if their keys are genuine."""
    request, _, _, sums = _open(side, payload, SharesRequest)
    with _refusing():
        dealt = sums.find(request.instance).deal([each.keys for each in request.keys], request.threshold)
    return _done(request, SharesReply(nonce=request.nonce, shares=dealt), f"shares dealt to {len(dealt)} nodes")


def train_masked(side: Side, store: Store, payload: bytes) -> Done:
    """Train clients from the model in the payload; reply with the masked sum of their updates."""
    request, models, site, sums = _open(side, payload, MaskedRequest)
    clients = request.clients.get(sums.identity.name, ())
    if not clients or len(set(clients)) < len(clients):
        raise Refused("wrong_client", "a client twice in one sum, or none of this node")
    for client in clients:
        require_client(site, client)
    (start,) = require_form(site, models, count=1)
    if work_of(body_of(payload), request.drawn_as, request.round, request.clients) != request.work:
        raise Refused("wrong_work", "secure sum: a model, round or clients other than those that all nodes have signed")
    with _refusing():
        participant = sums.find(request.instance)
        participant.take(request.shares)
        there = {name: each.to(site.device) for name, each in start.items()}
        total, work = _train_all(site, store, request, clients, there)
        form = site.agreement.form
        masked = unflat(participant.mask(flat(total, form)), {MASKED: site.agreement.sent_form[MASKED]})
    reply = MaskedReply(nonce=request.nonce, work=tuple(work))
    told = ", ".join(f"client {each.client} trained, {each.seconds:.1f} s" for each in work)
    return _done(request, reply, f"{told}; masked", pack([masked]))


def sign_survivors(side: Side, store: Store, payload: bytes) -> Done:
    """Sign the list of nodes whose masked numbers arrived."""
    request, _, _, sums = _open(side, payload, SurvivorsRequest)
    with _refusing():
        signature = sums.find(request.instance).sign_survivors(request.survivors)
    reply = SurvivorsReply(nonce=request.nonce, signature=signature)
    return _done(request, reply, f"signed that those of {len(request.survivors)} nodes have come")


def unmask(side: Side, store: Store, payload: bytes) -> Done:
    """Reveal one share of each node."""
    request, _, _, sums = _open(side, payload, UnmaskRequest)
    with _refusing():
        given = sums.find(request.instance).reveal(request.signatures)
    own, others = ({name: share.to_bytes(BYTES) for name, share in each.items()} for each in (given.own, given.others))
    told = f"shares given away of {len(own)} own masks, and of {len(others)} with others"
    return _done(request, UnmaskReply(nonce=request.nonce, own=own, others=others), told)


SUMMING: dict[str, Handler] = {
    "sum-keys": make_keys,
    "sum-shares": deal_shares,
    "sum-masked": train_masked,
    "sum-survivors": sign_survivors,
    "sum-unmask": unmask,
}


def _open(side: Side, payload: bytes, kind: type[Request]) -> tuple[Request, list[Model], Node, OpenSums]:
    request, models = decode(payload, kind)
    site = agreed(side, request.settings_digest)
    if site.sums is None:
        raise Refused("not_needed", "a secure sum, but secure.sums = false here")
    return request, models, site, site.sums


@contextmanager
def _refusing() -> Iterator[None]:
    """Decline, with the reason, what cannot be summed."""
    try:
        yield
    except NotSummed as error:
        raise Refused(error.code, f"secure sum: {error}", error.about) from error
    except OutOfRange as error:
        raise Refused("out_of_range", str(error)) from error


def _train_all(
    site: Node, store: Store, request: MaskedRequest, clients: Iterable[int], start: Model
) -> tuple[Model, list[WorkDone]]:
    """Return the weighted integer sum of all clients' updates, and each client's work."""
    fixed = site.agreement.fixed
    assert fixed is not None, "a node takes part in sums only then"
    total, work, weight = Model(), list[WorkDone](), 0
    for client in clients:
        update, done = _train(site, fixed, store, request, client, start)
        own = done.samples if fixed.by_samples else 1
        total = {name: total[name].add_(each, alpha=own) if total else each * own for name, each in update.items()}
        weight += own
        work.append(done)
    if why := fixed.why_overflow(weight):
        raise OutOfRange(why)
    return total, work


def _train(
    site: Node, fixed: FixedPoint, store: Store, request: MaskedRequest, client: int, start: Model
) -> tuple[Model, WorkDone]:
    """Return a client's update as integers, and its work."""
    count(site, store, client, trainings=1)
    task = ClientTask(request.event, request.round, request.repeat, request.cluster, client, start, request.drawn_as)
    return timed(site, store, client, lambda: fixed.encode(site.trainer.train(task).model, start))


def _done(request: SumRequest, reply: SumReply, told: str, body: bytes = b"") -> Done:
    return Done(encode(reply, body), f"secure sum of event {request.event}, cluster {request.cluster}: {told}")
