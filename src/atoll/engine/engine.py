"""The engine: the only event loop of a run."""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from atoll.aggregation.mean import average_gradients, share_layers
from atoll.aggregation.usual_norms import Norms, remember
from atoll.engine.cohorts import Executor
from atoll.engine.grouping import read_grouping
from atoll.engine.method import Method
from atoll.engine.mixing import mix, mix_all
from atoll.engine.run_state import State, Step, with_newer
from atoll.engine.server_rule import apply_rule
from atoll.engine.train_events import EventResult, train_events
from atoll.local.models import Model
from atoll.schedules.events import Event
from atoll.support.errors import InputError, RunError, blaming
from atoll.support.requiring import require, require_has


def init(method: Method, *initial: Model) -> State:
    """Return the state before the first event, from one initial model for all or one per cluster.

    Only the communicated part of a model belongs to the state.

    Raises:
        InputError: there is neither one model nor one per cluster.
    """
    require("method", method, Method)
    for model in initial:
        if not isinstance(model, Mapping) or not model:
            raise InputError("model: must be tensors by name, as atoll.read_model(module) returns them")
    clusters = method.schedule.clusters
    if len(initial) not in (1, clusters):
        raise InputError(f"{len(initial)} initial models for {clusters} clusters; give one, or one per cluster")
    sent = tuple(map(method.sent, initial))
    models = sent * clusters if len(sent) == 1 else sent
    usual: tuple[Norms, ...] = ((),) * clusters if method.screening and method.screening.learns_norms else ()
    return State(0, sent[0] if method.schedule.has_server else None, models, models, labels=method.labels, usual=usual)


def train(method: Method, executor: Executor, state: State) -> Generator[Step]:
    """Yield after every event, from ``state.events_done`` to the schedule's end.

    Events whose clusters already have their start models are trained together, unless they share a client that keeps
    state.

    Raises:
        InputError: an argument of another type.
    """
    require("method", method, Method)
    require("state", state, State)
    require_has("executor", executor, "carries_through", "an executor, such as atoll.Serial")
    while events := method.schedule.ready(state.events_done, apart=method.keeps_state):
        events, state = _prepared(method, executor, state, events)
        for trained in train_events(method, executor, state, events):
            step = merge(method, state, trained)
            state = step.state
            yield step


def _prepared(
    method: Method, executor: Executor, state: State, events: Sequence[Event]
) -> tuple[tuple[Event, ...], State]:
    """Return the events to train together, and the state to train them from; one at a time if the method prepares."""
    if method.prepare is None:
        return tuple(events), state
    event, state = method.prepare(events[0], state, executor)
    return (event,), state


def merge(method: Method, state: State, trained: EventResult) -> Step:
    """Publish, merge into the server's model, hand out new starts."""
    event = trained.event
    published = list(state.published)
    for cluster, model in trained.models.items():
        published[cluster] = model
    if method.shared and trained.weights:
        before = state.starts if method.combine is average_gradients else None
        published = share_layers(published, method.shared, trained.weights, before)
    server, server_state = state.server, state.server_state
    if event.server is not None:
        server = mix(event.server, server, published, state.starts)
        if method.server_rule is not None and state.server is not None:
            server, server_state = apply_rule(method.server_rule, event.index, state.server, server, server_state)
    starts = list(state.starts)
    mixed = mix_all([recipe for _, recipe in event.starts], server, published, state.starts)
    norms, usual = remember(state.norms, trained.norms), list(state.usual)
    for (cluster, _), model in zip(event.starts, mixed, strict=True):
        starts[cluster] = model
        if usual:
            usual[cluster] = norms
    refused = state.refused if not trained.refused else Counter(state.refused) + trained.refused
    after = replace(
        state,
        events_done=event.index + 1,
        server=server,
        starts=tuple(starts),
        published=tuple(published),
        refused=refused,
        server_state=server_state,
        clients=_keep_states(method, state.clients, trained),
        norms=norms,
        usual=tuple(usual),
    )
    if event.regroups:
        after = _regroup(method, event, after)
    return Step(event, after, trained.clusters, trained.loss)


def _regroup(method: Method, event: Event, state: State) -> State:
    """Return the state with the clusters found after an event."""
    if method.regroup is None or state.labels is None:
        raise RunError(f"event {event.index}: regroups, but the method has no Method.regroup")
    with blaming(f"event {event.index}: Method.regroup failed", RunError):
        made = method.regroup(event, state)
        found = read_grouping(made, len(state.labels), state.starts, f"event {event.index}: Method.regroup")
    starts, published = (
        tuple(found.models.get(cluster, model) for cluster, model in enumerate(models))
        for models in (state.starts, state.published)
    )
    return replace(state, starts=starts, published=published, labels=found.labels)


def _keep_states(method: Method, clients: Mapping[int, Model], trained: EventResult) -> Mapping[int, Model]:
    """Return the client states after an event."""
    if not trained.states and not (method.keeps_state and trained.weights):
        return clients
    if bool(trained.states) != method.keeps_state:
        kept, own = ("keeps", "does not") if trained.states else ("does not keep", "does")
        raise RunError(
            f"event {trained.event.index}: the executor's trainer {kept} state, but Method.trainer {own}; give the "
            "executor a trainer from Method.trainer"
        )
    return with_newer(clients, trained.states)
