"""The part of a task that only one node receives, with nothing about other clients; the models follow it."""

from collections.abc import Iterable, Mapping

from atoll.engine.cohorts import Cohort
from atoll.fleet.agreed.messages import LossesRequest, TrainRequest, encode
from atoll.fleet.node.versions import name_of
from atoll.fleet.server.replies import Expected
from atoll.local.models import Model


def head_to_train(digest: str, cohort: Cohort, asked: Expected, resumable: Iterable[Mapping[int, Model]]) -> bytes:
    """Return the header that asks a node to train a client; `resumable` are the states in each checkpoint left."""
    client, state = asked.client, cohort.states.get(asked.client)
    named = [name_of(states[client]) for states in resumable if client in states]
    request = TrainRequest(
        settings_digest=digest,
        nonce=asked.nonce,
        event=cohort.event,
        drawn_as=cohort.draws,
        round=cohort.round,
        repeat=cohort.repeat,
        cluster=cohort.cluster,
        client=client,
        state=None if state is None else name_of(state),
        resumable=tuple(dict.fromkeys(named)),
    )
    return encode(request)


def head_to_measure(digest: str, round_: int, asked: Expected) -> bytes:
    """Return the header that asks a node to measure models on one of its clients' data."""
    return encode(LossesRequest(settings_digest=digest, nonce=asked.nonce, round=round_, client=asked.client))
