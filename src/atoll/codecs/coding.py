"""Encoding of whole updates, with checks of user-defined codecs and untrusted bytes."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from atoll.codecs.codec import Codec
from atoll.codecs.number_codecs import raw, read_raw
from atoll.local.models import Form, Model, form_of
from atoll.support.errors import InputError, blaming

SENT = "coded"
"""The byte tensor that replaces the tensors of an encoded model in a message."""


class Undecodable(InputError):
    """The bytes are not an update of the expected form."""


@dataclass(frozen=True, eq=False)
class Coding:
    """Encodes updates: the change in a client's model since it was sent.

    Tensors that are not floating point (counters) are sent unencoded, after the codec's bytes.
    """

    told: str
    codec: Codec

    def encode(self, update: Model, rng: np.random.Generator) -> bytes:
        """Return an update's bytes, whose number depends only on its form."""
        payload, wanted = self._encode(update, rng), self.bytes_of(form_of(update))
        if len(payload) != wanted:
            raise InputError(
                f"{self.told}: encode returned {len(payload):,} bytes, {wanted:,} for zeros of the same form; bytes "
                "are planned before training, so they must not depend on the numbers"
            )
        return payload

    def decode(self, payload: bytes, form: Form) -> Model:
        """Return the update of this form that the bytes encode, with its tensors in the form's order."""
        numbers, counters = _split(form)
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in counters.values()]
        end = len(payload) - sum(sizes)
        if len(payload) != self.bytes_of(form):
            raise Undecodable(f"{self.told}: {len(payload):,} bytes, expected {self.bytes_of(form):,}")
        update = self._decode(payload[:end], numbers)
        for (name, each), size in zip(counters.items(), sizes, strict=True):
            update[name] = read_raw(payload[end : end + size], *each)
            end += size
        return {name: update[name] for name in form}

    def bytes_of(self, form: Form) -> int:
        """Return the number of bytes of any update of a form."""
        return _bytes_of(self, tuple(form.items()))

    def sent_form(self, form: Form) -> Form:
        """Return the form of the message that replaces a model of this form."""
        return {SENT: (torch.Size([self.bytes_of(form)]), torch.uint8)}

    def _encode(self, update: Model, rng: np.random.Generator) -> bytes:
        numbers, counters = _split(update)
        with blaming(f"{self.told}: encode failed", InputError):
            payload: object = self.codec.encode({name: each.detach().cpu() for name, each in numbers.items()}, rng)
        if not isinstance(payload, bytes):
            raise InputError(f"{self.told}: encode must return bytes, it returned {type(payload).__name__!r}")
        return payload + b"".join(map(raw, counters.values()))

    def _decode(self, payload: bytes, form: Form) -> Model:
        with blaming(f"{self.told}: decode failed", Undecodable):  # as a codec may on untrusted bytes
            decoded = self.codec.decode(payload, form)
            update = {name: decoded[name].to(dtype) for name, (_, dtype) in form.items()}
        if form_of(update) != form or decoded.keys() != form.keys():
            raise Undecodable(f"{self.told}: decode returned tensors with other names or shapes")
        return update


def as_sent(payload: bytes) -> Model:
    """Return a message with these bytes as its only tensor."""
    return {SENT: read_raw(payload, (-1,), torch.uint8)}


def as_received(sent: Model) -> bytes:
    """Return the bytes of a message's only tensor."""
    return raw(sent[SENT])


@torch.no_grad()
def subtract(model: Model, start: Model) -> Model:
    """Return the update; counters, and tensors not in `start`, such as initial moments, are kept whole."""
    return {
        name: own - start[name] if own.is_floating_point() and name in start else own for name, own in model.items()
    }


@torch.no_grad()
def add(start: Model, update: Model) -> Model:
    """Return the start model with an update added."""
    return {
        name: start[name] + own.to(start[name].device) if own.is_floating_point() and name in start else own
        for name, own in update.items()
    }


def _split(model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the floating-point entries of a model or form, and the others."""
    numbers, others = dict[str, Any](), dict[str, Any]()
    for name, each in model.items():
        dtype = each.dtype if isinstance(each, torch.Tensor) else each[1]
        (numbers if dtype.is_floating_point else others)[name] = each
    return numbers, others


@lru_cache(maxsize=64)
def _bytes_of(coding: Coding, form: tuple[tuple[str, tuple[torch.Size, torch.dtype]], ...]) -> int:
    zeros = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in form}
    return len(coding._encode(zeros, np.random.default_rng(0)))
