import json
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.fleet.agreed.messages import (
    MAGIC,
    MOST_HEADER_BYTES,
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
from atoll.fleet.server.replies import Expected, read_losses, read_trained
from atoll.local.models import form_of

KINDS: list[type[Header]] = [
    DescribeRequest,
    TrainRequest,
    LossesRequest,
    DescribeReply,
    TrainReply,
    LossesReply,
    Refusal,
]
REPLY = TrainReply(nonce="ab", event=1, repeat=0, client=2, samples=3, passed=4, seconds=0.1, loss=0.1 + 0.2)
MODEL = {"b/1@x": torch.tensor([[0.1, -0.0], [1e-45, 3e38]]), "a": torch.tensor(7), "c": torch.zeros(0, 3)}
GOOD = encode(REPLY, pack([MODEL, MODEL]))


def test_what_is_packed_comes_out_again_to_the_bit() -> None:
    head, models = decode(GOOD, TrainReply)
    assert head == REPLY
    assert len(models) == 2
    for model in models:
        assert {name: form_of(model)[name] for name in MODEL} == form_of(MODEL)
        assert all(torch.equal(model[name], MODEL[name]) for name in MODEL)


def test_tied_and_transposed_tensors_can_be_sent() -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    (model,) = decode(encode(REPLY, pack([{"a": shared, "b": shared, "c": shared.T}])), TrainReply)[1]
    assert torch.equal(model["b"], shared)
    assert torch.equal(model["c"], shared.T)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_real_numbers_come_through_exactly(loss: float) -> None:
    head, _ = decode(encode(REPLY.model_copy(update={"loss": loss})), TrainReply)
    assert head.loss == loss


@given(st.binary(max_size=300), st.integers(0, len(GOOD)), st.sampled_from(KINDS))
def test_bytes_are_a_message_or_refused(junk: bytes, place: int, kind: type[Header]) -> None:
    for message in (junk, MAGIC + junk, GOOD[:place], GOOD[:place] + junk, GOOD[:place] + junk + GOOD[place:]):
        for read in (decode, decode_reply):
            try:
                head, _ = read(message, kind)
            except Unreadable:
                continue
            assert isinstance(head, kind | Refusal)


@given(st.binary(max_size=60), st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_whatever_a_node_sends_is_a_result_or_a_reason(junk: bytes, place: int, value: int) -> None:
    asked = Expected("n", 2, "ab", form_of(MODEL), event=1, samples=3, models=1)
    damaged = GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
    for reply in (junk, GOOD[:place] + junk, damaged):
        read_trained(asked, "n", reply)
        read_losses(asked, "n", reply)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.floats(), st.lists, max_leaves=5))
def test_a_header_of_wrong_values_is_refused(value: object) -> None:
    table = REPLY.model_dump() | {"event": value}
    message = MAGIC + (body := json.dumps(table).encode()).__len__().to_bytes(4, "big") + body
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**15
    if is_count:
        assert decode(message, TrainReply)[0].event == value
    else:
        with pytest.raises(Unreadable):
            decode(message, TrainReply)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"kind": "measured"},
        {"nonce": "ABC"},
        {"nonce": "a" * 65},
        {"loss": "0.5"},
        {"client": True},
        {"client": -1},
        {"event": 10**30},
        {"seconds": -1.0},
        {"event": None},
    ],
    ids=str,
)
def test_headers_are_strict(change: dict[str, object]) -> None:
    body = json.dumps(REPLY.model_dump() | change).encode()
    with pytest.raises(Unreadable):
        decode(MAGIC + len(body).to_bytes(4, "big") + body, TrainReply)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_header_has_no_number_that_is_none(number: str) -> None:
    body = json.dumps(REPLY.model_dump()).replace(repr(REPLY.loss), number).encode()
    with pytest.raises(Unreadable):
        decode(MAGIC + len(body).to_bytes(4, "big") + body, TrainReply)


def test_a_header_that_is_too_long_is_not_read() -> None:
    body = b'"' + b"a" * MOST_HEADER_BYTES + b'"'
    with pytest.raises(Unreadable, match="header"):
        decode(MAGIC + len(body).to_bytes(4, "big") + body, TrainReply)


def test_models_are_numbered_without_a_gap() -> None:
    body = pack([MODEL, MODEL]).replace(b'"0/', b'"2/')
    with pytest.raises(Unreadable):
        decode(encode(REPLY, body), TrainReply)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was opened",)


def test_pickles_are_not_opened() -> None:
    for content in (pickle.dumps(_Bomb()), encode(REPLY, pickle.dumps(_Bomb()))):
        with pytest.raises(Unreadable):
            decode(content, TrainReply)


@given(st.lists(st.tuples(st.text(max_size=30), st.lists(st.integers(0, 5), max_size=4)), max_size=8))
def test_no_message_is_longer_than_is_allowed(tensors: list[tuple[str, list[int]]]) -> None:
    model = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in tensors}
    assert len(encode(REPLY, pack([model]))) <= most_bytes(form_of(model))
    assert len(encode(REPLY, pack([model] * 11))) <= most_bytes(form_of(model), models=11)
