"""The tasks that a node answers, by name: describe itself, train, measure models. Nothing else, and no code."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from atoll.fleet.agreed.messages import (
    DescribeReply,
    DescribeRequest,
    LossesReply,
    LossesRequest,
    Refusal,
    RefusalCode,
    Refused,
    TrainReply,
    TrainRequest,
    Unreadable,
    decode,
    encode,
    pack,
)
from atoll.fleet.node.node import Node, Side
from atoll.fleet.node.reports import report
from atoll.fleet.node.secure_sum import SUMMING
from atoll.fleet.node.store import Store
from atoll.fleet.node.versions import Versions
from atoll.fleet.node.working import Done, Handler, agreed, computing, count, require_client, require_form, timed
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate, why_wrong_state
from atoll.support.environment import package_versions
from atoll.support.errors import AtollError
from atoll.support.wording import counted

_LOG = logging.getLogger("atoll.fleet")


def answer(side: Side, store: Store, task: str, payload: bytes, tell: Callable[[str], None] = _LOG.info) -> bytes:
    """Carry out a task on a node; called by a transport. It never raises, whatever it receives.

    Whatever goes wrong, the server only gets a `Refusal`. Errors are logged here for the node's owner, since their text
    may be private. The owner sees a line for every task: when, what, and how often so far.
    """
    code: RefusalCode
    about = None
    try:
        handler = HANDLERS.get(task)
        if handler is None:
            raise Refused("unknown_task", f"a task {task!r:.40}, which there is not")
        done = handler(side, store, payload)
    except Refused as refused:
        code, told, about = refused.code, str(refused), refused.about
    except Unreadable:
        code = told = "unreadable"
    except AtollError as error:  # usually a full disk
        code, told = "failed", f"{error}"
    except Exception:  # a user's model or optimiser may raise anything
        _LOG.exception("the task %r failed", task)
        code = told = "failed"
    else:
        tell(f"{_now()} {done.told}")
        return done.reply
    tell(f"{_now()} refused {task!r:.40}: {told}")
    return encode(Refusal(code=code, about=about))


def describe(side: Side, store: Store, payload: bytes) -> Done:
    """Describe the node, within what its owner allows."""
    request, _ = decode(payload, DescribeRequest)
    site = agreed(side, request.settings_digest, request.settings)
    reports = tuple(report(site, store, client) for client in site.clients)
    versions = {name: version for name, version in package_versions().items() if version is not None}
    reply = DescribeReply(nonce=request.nonce, utc=time.time(), versions=versions, clients=reports)
    told = ", ".join(name for name, value in reports[0].model_dump().items() if value is not None and name != "client")
    so_far, _ = count(site, store, site.clients[0], descriptions=1)
    clients = ", ".join(map(str, site.clients))
    told += f"; the server has set {site.told}" if site.told else ""
    return Done(encode(reply), f"described client {clients}: {told}; descriptions so far: {so_far.descriptions}")


def train(side: Side, store: Store, payload: bytes) -> Done:
    """Train a client from the model in the payload; reply with its message, and store its state."""
    request, models = decode(payload, TrainRequest)
    site = agreed(side, request.settings_digest)
    if site.agreement.fixed is not None:
        raise Refused("not_allowed", "a single client's model, but secure.sums = true lets none leave this node")
    client = require_client(site, request.client)
    (start,) = require_form(site, models, count=1)
    start = {name: tensor.to(site.device) for name, tensor in start.items()}
    so_far, spent = count(site, store, client, site.cost, trainings=1)
    sent, done = timed(site, store, client, lambda: _train(site, store, request, client, start))
    loss = sent.loss if np.isfinite(sent.loss) else None
    reply = TrainReply(nonce=request.nonce, event=request.event, repeat=request.repeat, loss=loss, **dict(done))
    told = f"client {client} trained for event {request.event}, {done.seconds:.1f} s"
    return Done(encode(reply, pack([sent.model])), f"{told}; trainings so far: {so_far.trainings}{spent}")


def _train(site: Node, store: Store, request: TrainRequest, client: int, start: Model) -> ClientUpdate:
    """Return a client's message, trained with its state from the named task, if it keeps one."""
    task = ClientTask(request.event, request.round, request.repeat, request.cluster, client, start, request.drawn_as)
    if not site.agreement.keeps_state:
        return site.trainer.send(task)
    versions = Versions(store, client, site.agreement.digest)
    if request.state is not None:
        if (before := versions.read(request.state)) is None:
            raise Refused("no_state", f"client {client} no longer has what it kept after the task {request.state}")
        task = replace(task, state={name: tensor.to(site.device) for name, tensor in before.items()})
    sent = site.trainer.send(task)
    fault = why_wrong_state(task.state, sent.state, keeps_state=True)
    if fault or sent.state is None:
        raise TypeError(f"{type(site.trainer.trainer).__name__} {fault}")
    named = () if request.state is None else (request.state,)
    versions.add(request.nonce, sent.state, (*named, *request.resumable))
    return sent


def losses(side: Side, store: Store, payload: bytes) -> Done:
    """Measure the models in the payload on a client's samples, if the method needs as many losses."""
    request, models = decode(payload, LossesRequest)
    site = agreed(side, request.settings_digest)
    client = require_client(site, request.client)
    given = counted(len(models), "model")
    if len(models) > site.measures:
        wanted = f"of at most {counted(site.measures, 'model')}" if site.measures else "for none"
        raise Refused("not_needed", f"the losses of {given}; the method as set here asks {wanted}")
    require_form(site, models, count=site.measures if site.chooses else len(models))
    hiding = site.hides_losses
    so_far, spent = count(site, store, client, hiding.cost if hiding else None, losses=len(models))
    with computing():
        row = site.trainer.losses(models, np.array([client]), request.round)[0]
    row = hiding.losses(row) if hiding else row
    finite = tuple(loss if np.isfinite(loss) else None for loss in row.tolist())
    told = f"client {client} measured {given} for round {request.round}"
    most = "" if site.budget.losses is None else f" of at most {site.budget.losses}"
    reply = LossesReply(nonce=request.nonce, client=client, losses=finite)
    return Done(encode(reply), f"{told}; losses so far: {so_far.losses}{most}{spent}")


HANDLERS: dict[str, Handler] = {"describe": describe, "train": train, "losses": losses, **SUMMING}


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
