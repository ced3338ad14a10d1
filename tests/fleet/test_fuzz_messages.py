"""Whatever bytes a node or a server is sent, there is an answer, and nothing is taken that was not asked for."""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.codecs.codec_stage import code_updates
from atoll.codecs.coding import Coding, as_sent
from atoll.codecs.named_codecs import bfloat16, int8, topk
from atoll.fleet.agreed.messages import (
    DescribeReply,
    DescribeRequest,
    Header,
    LossesReply,
    LossesRequest,
    Refusal,
    TrainReply,
    TrainRequest,
    Unreadable,
    decode,
    decode_reply,
    encode,
    most_bytes,
    pack,
)
from atoll.fleet.agreed.terms import announce
from atoll.fleet.node.handlers import answer
from atoll.fleet.node.node import Node, open_site
from atoll.fleet.node.shards import write_shards
from atoll.fleet.server.replies import REASONS, CheckedUpdate, Expected, open_reply, read_losses, read_trained
from atoll.local.models import Model, form_of
from tests.fleets import agreement_of, small
from tests.fuzzing import carry_out, fewest, many, some
from tests.memory_store import MemoryStore

EXPERIMENT = small()
DIGEST = agreement_of(EXPERIMENT).digest
(START,) = EXPERIMENT.training.initial_models()
WRITTEN: dict[type[Header], bytes] = {
    DescribeRequest: encode(
        DescribeRequest(settings_digest=DIGEST, nonce="ab", settings=announce(EXPERIMENT.settings))
    ),
    TrainRequest: encode(
        TrainRequest(settings_digest=DIGEST, nonce="ab", event=0, drawn_as=0, round=0, repeat=0, cluster=0, client=1),
        pack([START]),
    ),
    LossesRequest: encode(LossesRequest(settings_digest=DIGEST, nonce="ab", round=0, client=1), pack([START])),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Node:
    folder: Path = write_shards(EXPERIMENT, tmp_path_factory.mktemp("shards"))[1]
    return open_site(EXPERIMENT.settings, folder, 1)


@pytest.fixture(scope="module")
def replies(site: Node) -> dict[type[Header], bytes]:
    """What the node answers when all is right."""
    asked: dict[type[Header], str] = {DescribeReply: "describe", TrainReply: "train", LossesReply: "losses"}
    return {
        kind: answer(site, MemoryStore(), task, payload)
        for (kind, task), payload in zip(asked.items(), WRITTEN.values(), strict=True)
    }


Read = Callable[[bytes], object]


def request(kind: type[Header]) -> Read:
    def read(message: bytes) -> None:
        with suppress(Unreadable):
            head, _ = decode(message, kind)
            assert type(head) is kind

    return read


def reply(kind: type[Header]) -> Read:
    def read(message: bytes) -> None:
        with suppress(Unreadable):
            head, _ = decode_reply(message, kind)
            assert type(head) in (kind, Refusal)
        opened = open_reply(message, kind, most_bytes(form_of(START)))
        assert opened in REASONS if isinstance(opened, str) else len(opened) == 2

    return read


def trained(message: bytes) -> None:
    """Nothing is taken that is not finite, of the form, and of the node, client and event that were asked."""
    asked = Expected("node-1", 1, "ab", form_of(START), start=START, max_update_norm=10.0)
    found = read_trained(asked, "node-1", message)
    assert found in REASONS if isinstance(found, str) else isinstance(found, CheckedUpdate)
    if isinstance(found, CheckedUpdate):
        assert form_of(found.outcome.model) == form_of(START)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in found.outcome.model.values())
        assert math.isfinite(found.outcome.loss)
    assert read_trained(asked, "node-2", message) == "wrong_sender"


def coded_by(coding: Coding) -> Read:
    """Nothing is taken that is not of the form and finite, whatever its bytes, and whoever decodes them."""

    stages = (code_updates(coding, feedback=False, seed=0),)

    def read(message: bytes) -> None:
        asked = Expected("node-1", 1, "ab", form_of(START), start=START, max_update_norm=10.0, stages=stages)
        found = read_trained(asked, "node-1", message)
        assert found in REASONS if isinstance(found, str) else form_of(found.outcome.model) == form_of(START)
        if isinstance(found, CheckedUpdate):
            assert all(bool(tensor.isfinite().all()) for tensor in found.outcome.model.values())

    return read


def bytes_of(coding: Coding) -> Read:
    """The same of what stands in a message, so that no reader of messages sees the damage first."""
    head = TrainReply(nonce="ab", event=0, repeat=0, client=1, samples=3, passed=3, seconds=1.0, loss=1.0)

    def read(payload: bytes) -> None:
        coded_by(coding)(encode(head, pack([as_sent(payload)])))

    return read


def measured(message: bytes) -> None:
    found = read_losses(Expected("node-1", 1, "ab", {}, models=1), "node-1", message)
    assert found in REASONS if isinstance(found, str) else np.isfinite(found).all()


def answers(node: Node, task: str) -> Read:
    def read(message: bytes) -> None:
        known = decode_reply(answer(node, MemoryStore(), task, message), REPLIES[task])[0]
        assert isinstance(known, REPLIES[task] | Refusal)

    return read


REPLIES: dict[str, type[Header]] = {"describe": DescribeReply, "train": TrainReply, "losses": LossesReply}


@pytest.fixture(scope="module")
def boundaries(site: Node, replies: dict[type[Header], bytes]) -> dict[str, tuple[tuple[bytes, ...], Read]]:
    """What is read at each boundary when all is right, and what reads it."""
    found: dict[str, tuple[tuple[bytes, ...], Read]] = {
        **{f"a {kind.__name__}": ((message,), request(kind)) for kind, message in WRITTEN.items()},
        **{f"a {kind.__name__}": ((message,), reply(kind)) for kind, message in replies.items()},
        **{f"a node asked to {task}": ((*WRITTEN.values(),), answers(site, task)) for task in REPLIES},
        "a client's result": ((replies[TrainReply],), trained),
        "a client's losses": ((replies[LossesReply],), measured),
        **{f"a client's {name}": ((coded(coding),), coded_by(coding)) for name, coding in CODINGS.items()},
        **{f"a client's {name}'s bytes": ((payload(coding),), bytes_of(coding)) for name, coding in CODINGS.items()},
    }
    assert [*found] == [*NAMES]
    return found


CODINGS = {"bfloat16": Coding("", bfloat16()), "int8": Coding("", int8()), "topk": Coding("", topk())}


def payload(coding: Coding) -> bytes:
    rng = np.random.default_rng(0)
    update: Model = {name: torch.tensor(rng.standard_normal(own.shape)).to(own) for name, own in START.items()}
    return coding.encode(update, rng)


def coded(coding: Coding) -> bytes:
    head = TrainReply(nonce="ab", event=0, repeat=0, client=1, samples=3, passed=3, seconds=1.0, loss=1.0)
    return encode(head, pack([as_sent(payload(coding))]))


NAMES = (
    *("a DescribeRequest", "a TrainRequest", "a LossesRequest", "a DescribeReply", "a TrainReply", "a LossesReply"),
    *("a node asked to describe", "a node asked to train", "a node asked to losses"),
    *("a client's result", "a client's losses"),
    *(f"a client's {name}" for name in CODINGS),
    *(f"a client's {name}'s bytes" for name in CODINGS),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_little_damage_is_sent(name: str, boundaries: dict[str, tuple[tuple[bytes, ...], Read]]) -> None:
    carry_out(fewest, *boundaries[name])


@pytest.mark.more
@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_sent(name: str, boundaries: dict[str, tuple[tuple[bytes, ...], Read]]) -> None:
    carry_out(some, *boundaries[name])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_much_is_sent(name: str, boundaries: dict[str, tuple[tuple[bytes, ...], Read]]) -> None:
    carry_out(many, *boundaries[name])
