"""What a node can be asked, by name: to describe itself, to train, to measure models. Nothing else, no code."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from atoll.codecs.coding import as_sent
from atoll.codecs.trainer import Coded
from atoll.engine.cohorts import ClientTrainer
from atoll.fleet.kept import Versions
from atoll.fleet.messages import (
    ClientReport,
    Count,
    DescribeReply,
    DescribeRequest,
    LossesReply,
    LossesRequest,
    Refusal,
    RefusalCode,
    Refused,
    Seconds,
    TrainReply,
    TrainRequest,
    Unreadable,
    decode,
    encode,
    pack,
)
from atoll.fleet.node import Node, Side
from atoll.fleet.private import respond
from atoll.fleet.store import Store
from atoll.fleet.tally import Tally, read_tally, write_tally
from atoll.local.models import Model, form_of, without_moments
from atoll.local.precision import products_in
from atoll.local.state import why_wrong_state
from atoll.local.task import ClientTask, ClientUpdate
from atoll.support.environment import package_versions
from atoll.support.errors import AtollError
from atoll.support.process import one_thread

_LOG = logging.getLogger("atoll.fleet")
_ALONE = Lock()  # PyTorch's random numbers and its number of threads belong to the whole process


@dataclass(frozen=True)
class Done:
    """A task that was carried out: the reply, and what the node's owner is told of it."""

    reply: bytes
    told: str


Handler = Callable[[Side, Store, bytes], Done]


class _Pace(BaseModel):
    """How long a client has trained, on how many samples."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    seconds: Seconds = 0.0
    samples: Count = 0


def answer(side: Side, store: Store, task: str, payload: bytes, tell: Callable[[str], None] = _LOG.info) -> bytes:
    """Carry out a task on a node; what a transport calls. It never raises for what it is sent.

    Whatever goes wrong, only a `Refusal` goes to the server. What was raised is logged here, for the node's owner:
    its text may hold what is private. The owner is told of every task in a line: when, what, and how often so far.
    """
    code: RefusalCode
    try:
        handler = HANDLERS.get(task)
        if handler is None:
            raise Refused("unknown_task", f"a task {task!r:.40}, which there is not")
        done = handler(side, store, payload)
    except Refused as refused:
        code, told = refused.code, str(refused)
    except Unreadable:
        code = told = "unreadable"
    except AtollError as error:  # mostly a disk that is full
        code, told = "failed", f"{error}"
    except Exception:  # whatever a user's model or optimiser may raise
        _LOG.exception("the task %r failed", task)
        code = told = "failed"
    else:
        tell(f"{_now()} {done.told}")
        return done.reply
    tell(f"{_now()} refused {task!r:.40}: {told}")
    return encode(Refusal(code=code))


def describe(side: Side, store: Store, payload: bytes) -> Done:
    """Say what the node holds, as far as its owner lets it."""
    request, _ = decode(payload, DescribeRequest)
    site = _agreed(side, request.settings_digest, request.settings)
    reports = tuple(_report(site, store, client) for client in site.clients)
    versions = {name: version for name, version in package_versions().items() if version is not None}
    reply = DescribeReply(nonce=request.nonce, utc=time.time(), versions=versions, clients=reports)
    told = ", ".join(name for name, value in reports[0].model_dump().items() if value is not None and name != "client")
    so_far = _count(site, store, site.clients[0], descriptions=1)
    clients = ", ".join(map(str, site.clients))
    told += f"; the server has set {site.told}" if site.told else ""
    return Done(encode(reply), f"told of client {clients}: {told}; so often so far: {so_far.descriptions}")


def train(side: Side, store: Store, payload: bytes) -> Done:
    """Train a client from the model in the payload; send its model back, and keep what it keeps."""
    request, models = decode(payload, TrainRequest)
    site = _agreed(side, request.settings_digest)
    client = _require_client(site, request.client)
    (start,) = _require_form(site, models, count=1)
    start = {name: tensor.to(site.device) for name, tensor in start.items()}
    so_far = _count(site, store, client, trainings=1)
    with _computing(site):
        began = time.perf_counter()
        outcome, sent = _train(site, store, request, client, start)
        seconds = time.perf_counter() - began
    samples = int(site.population.sizes[client])
    passed = site.trainer.samples_a_step(np.array([client])) * site.steps
    _add_to_pace(store, client, seconds, passed)
    reply = TrainReply(
        nonce=request.nonce,
        event=request.event,
        repeat=request.repeat,
        client=client,
        samples=samples,
        passed=passed,
        seconds=seconds,
        loss=outcome.loss if np.isfinite(outcome.loss) else None,
    )
    told = f"client {client} trained for event {request.event}, {seconds:.1f} s"
    return Done(encode(reply, pack([sent])), f"{told}; trainings so far: {so_far.trainings}")


def _train(site: Node, store: Store, request: TrainRequest, client: int, start: Model) -> tuple[ClientUpdate, Model]:
    """Train a client from what it kept after the task that is named, where clients keep anything.

    Returns what came of it, and what is sent.
    """
    task = ClientTask(request.event, request.round, request.repeat, request.cluster, client, start, request.drawn_as)
    if not site.agreement.keeps_state:
        return _train_once(site.trainer, task)
    versions = Versions(store, client, site.agreement.digest)
    if request.state is not None:
        if (before := versions.read(request.state)) is None:
            raise Refused("no_state", f"client {client} no longer has what it kept after the task {request.state}")
        task = replace(task, state={name: tensor.to(site.device) for name, tensor in before.items()})
    outcome, sent = _train_once(site.trainer, task)
    fault = why_wrong_state(task.state, outcome.state, keeps_state=True)
    if fault or outcome.state is None:
        raise TypeError(f"{type(site.trainer).__name__} {fault}")
    named = () if request.state is None else (request.state,)
    versions.add(request.nonce, outcome.state, (*named, *request.resumable))
    return outcome, sent


def _train_once(trainer: ClientTrainer, task: ClientTask) -> tuple[ClientUpdate, Model]:
    if isinstance(trainer, Coded):
        outcome, payload = trainer.train_coded(task)
        return outcome, as_sent(payload)
    outcome = trainer.train(task)
    return outcome, outcome.model


def losses(side: Side, store: Store, payload: bytes) -> Done:
    """Measure the models in the payload on a client's samples, if the method asks for the losses of so many."""
    request, models = decode(payload, LossesRequest)
    site = _agreed(side, request.settings_digest)
    client = _require_client(site, request.client)
    if len(models) > site.measures:
        wanted = f"of at most {site.measures} models" if site.measures else "for none"
        raise Refused("not_needed", f"the losses of {len(models)} models; the method as set here asks {wanted}")
    _require_form(site, models, count=len(models))
    so_far = _count(site, store, client, losses=len(models))
    with _computing(site):
        row = site.trainer.losses(models, np.array([client]), request.round)[0]
    finite = tuple(loss if np.isfinite(loss) else None for loss in row.tolist())
    told = f"client {client} measured {len(models)} models for round {request.round}"
    most = "" if site.budget.losses is None else f" of at most {site.budget.losses}"
    reply = LossesReply(nonce=request.nonce, client=client, losses=finite)
    return Done(encode(reply), f"{told}; losses so far: {so_far.losses}{most}")


HANDLERS: dict[str, Handler] = {"describe": describe, "train": train, "losses": losses}


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _count(site: Node, store: Store, client: int, **more: int) -> Tally:
    """Count a task before it is done, so that a crash forgets none; refuse it if that is over the budget."""
    after = read_tally(store, client, site.counted_as).plus(**more)
    if why := after.why_over(site.budget):
        raise Refused("over_budget", f"client {client}'s {why}")
    write_tally(store, client, site.counted_as, after)
    return after


def _agreed(side: Side, digest: str, told: Mapping[str, Any] | None = None) -> Node:
    with _ALONE:  # a node may have to be made, which draws a model
        return side.find(digest, told)


def _require_client(site: Node, client: int) -> int:
    if client not in site.clients:
        raise Refused("wrong_client", f"client {client} is not here")
    return client


def _require_form(site: Node, models: list[Model], count: int) -> list[Model]:
    """Refuse anything but so many models of the agreed form; moments may be missing, as they are at first."""
    form = site.agreement.form
    without = without_moments(form)
    if len(models) != count or not models or not all(form_of(model) in (form, without) for model in models):
        raise Refused("unreadable")
    return models


@contextmanager
def _computing(site: Node) -> Iterator[None]:
    """Compute as `executors.Serial` does, to the same bits."""
    with _ALONE, one_thread(), products_in(site.trainer.precision):
        yield


def _report(site: Node, store: Store, client: int) -> ClientReport:
    reporting, pace = site.reporting, _read_pace(store, client)
    return ClientReport(
        client=client,
        samples=int(site.population.sizes[client]),
        class_counts=_class_counts(site, store, client) if reporting.class_counts else None,
        epsilon=reporting.epsilon,
        utc_offset=reporting.utc_offset,
        slots=reporting.slots,
        seconds_per_sample=pace.seconds / pace.samples if pace.samples else None,
    )


def _class_counts(site: Node, store: Store, client: int) -> tuple[int, ...]:
    """Count a client's classes; randomised answers are drawn once and kept, since each new one would say more."""
    population, epsilon = site.population, site.reporting.epsilon
    labels = population.data.labels_of(population.samples(client))
    counts = np.bincount(labels, minlength=population.data.classes).astype(np.int64)
    if epsilon is None:
        return tuple(counts.tolist())
    key = f"classes-{client}-{float(epsilon).hex().replace('.', '-').replace('+', '')}-{len(labels)}"
    kept = store.get(key)
    if kept is None:
        # From the system's own source: the experiment's seed is known to the server.
        kept = TypeAdapter(list[int]).dump_json(respond(counts, epsilon, np.random.default_rng()).tolist())
        store.put(key, kept)
    return tuple(TypeAdapter(list[int]).validate_json(kept))


def _read_pace(store: Store, client: int) -> _Pace:
    kept = store.get(f"pace-{client}")
    return _Pace() if kept is None else _Pace.model_validate_json(kept)


def _add_to_pace(store: Store, client: int, seconds: float, samples: int) -> None:
    before = _read_pace(store, client)
    after = _Pace(seconds=before.seconds + seconds, samples=before.samples + samples)
    store.put(f"pace-{client}", after.model_dump_json().encode())
