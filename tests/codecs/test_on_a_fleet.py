"""Codecs on a fleet: the bytes that come are those that were planned, and bytes of anybody's are refused by reason."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import Serial
from atoll.codecs.coding import SENT, as_received, as_sent
from atoll.fleet.agreed.messages import Refused
from atoll.fleet.node.shards import write_shards
from atoll.fleet.node.sites import Sites
from atoll.local.models import Model
from tests.fleet.test_fleet import one_cohort
from tests.fleets import agreement_of, join, open_sites, replying, sending, small
from tests.memory_fleet import MemoryFleet
from tests.memory_store import MemoryStore
from tests.tiers import thinned

ONE_TENSOR = {"model": {"name": "linear", "bias": False}}


@pytest.mark.parametrize(
    "travel",
    thinned([{"codec": "int8"}, {"codec": "topk", "share": 0.2}, {}, {"codec": "bfloat16"}]),
    ids=lambda travel: travel.get("codec", "none"),
)
@pytest.mark.parametrize(
    "method", thinned([{"name": "fedcluster"}, {"name": "cfl-mgd", "clusters": 2}], 1), ids=lambda m: m["name"]
)
def test_planned_bytes_are_those_of_the_payloads_within_one_percent(
    travel: dict[str, Any], method: dict[str, Any], tmp_path: Path
) -> None:
    experiment = small(travel=travel, method=method, model={"name": "lr"})
    measured: list[int] = []

    def measuring(reply: bytes) -> bytes:
        measured.append(len(reply))
        return reply

    sites = open_sites(experiment, tmp_path)
    executor = join(experiment, MemoryFleet(sites, dict.fromkeys(sites, sending(measuring))))
    executor.train([one_cohort(experiment)], experiment.method.combine)
    assert len(measured) == 4
    planned = experiment.traffic.bytes_up(4, 4)
    assert abs(sum(measured) - planned) < 0.01 * planned


def test_a_client_whose_update_is_made_from_what_it_was_sent_encodes_it_in_the_servers_order(tmp_path: Path) -> None:
    """A message's tensors come in any order, and the bytes of an update do not name them."""
    experiment = small(travel={"codec": "int8", "rounding": "stochastic"}, method={"name": "bcd"}, model={"name": "lr"})
    cohort, combine = one_cohort(experiment), experiment.method.combine
    (there,) = join(experiment, MemoryFleet(open_sites(experiment, tmp_path))).train([cohort], combine)
    (here,) = Serial(experiment.training.trainer()).train([cohort], combine)
    assert all(torch.equal(there.model[name], own) for name, own in here.model.items())


def lying(change: Callable[[bytes], bytes]) -> Any:
    return replying(lambda head, sent: (head, as_sent(change(as_received(sent)))))


def other_form(sent: Model) -> Model:
    return {SENT: sent[SENT].to(torch.int16)}


END = 4 * 32  # of the places of a share 0.05 of 640
INT8 = {"codec": "int8"}
TOPK = {"codec": "topk"}
BFLOAT16 = {"codec": "bfloat16"}
LIES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "a scale that is NaN": (INT8, lying(lambda own: struct.pack("<f", np.nan) + own[4:]), "not_finite"),
    "an infinite scale": (INT8, lying(lambda own: struct.pack("<f", np.inf) + own[4:]), "not_finite"),
    "a scale that overflows": (INT8, lying(lambda own: struct.pack("<f", 3e38) + b"\x7f" + own[5:]), "not_finite"),
    "a large scale": (INT8, lying(lambda own: struct.pack("<f", 1e12) + b"\x7f" + own[5:]), "too_large"),
    "numbers that are NaN": (BFLOAT16, lying(lambda own: b"\xff" * len(own)), "not_finite"),
    "large numbers": (BFLOAT16, lying(lambda own: b"\xff\x7e" * (len(own) // 2)), "too_large"),
    "a byte too few": (INT8, lying(lambda own: own[:-1]), "wrong_form"),
    "a byte too many": (INT8, lying(lambda own: own + b"\0"), "wrong_form"),
    "nothing": (INT8, lying(lambda own: b""), "wrong_form"),
    "many bytes": (INT8, lying(lambda own: bytes(1 << 22)), "oversized"),
    "a place beyond": (TOPK, lying(lambda own: own[: END - 4] + struct.pack("<I", 640) + own[END:]), "wrong_form"),
    "places that are one": (TOPK, lying(lambda own: bytes(END) + own[END:]), "wrong_form"),
    "values that are NaN": (TOPK, lying(lambda own: own[:END] + b"\xff" * END), "not_finite"),
    "another type": (INT8, replying(lambda head, sent: (head, other_form(sent))), "wrong_form"),
    "another name": (INT8, replying(lambda head, sent: (head, {"model": sent[SENT]})), "wrong_form"),
    "a whole model": (INT8, replying(lambda head, sent: (head, {"1.weight": torch.zeros(10, 64)})), "wrong_form"),
    "nothing at all": (INT8, replying(lambda head, sent: (head, {})), "wrong_form"),
}


@pytest.mark.parametrize("name", thinned(LIES, 6))
def test_a_lying_payload_is_refused_and_told(name: str, tmp_path: Path) -> None:
    travel, fault, reason = LIES[name]
    experiment = small(travel=travel, **ONE_TENSOR)
    executor = join(experiment, MemoryFleet(open_sites(experiment, tmp_path), {"node-1": fault}))
    (update,) = executor.train([one_cohort(experiment)], experiment.method.combine)
    assert dict(executor.refused) == {reason: 1}
    assert update.answered is not None
    assert update.answered.tolist() == [True, False, True, True]
    assert all(tensor.isfinite().all() for tensor in update.model.values())


def test_a_node_with_another_codec_is_told_apart() -> None:
    one, other, share = ({"codec": "topk"}, {"codec": "int8"}, {"codec": "topk", "share": 0.1})
    digests = [agreement_of(small(travel=each)).digest for each in (one, other, share, {})]
    assert len(set(digests)) == 4
    assert agreement_of(small()).digest == agreement_of(small(travel={"feedback": False})).digest, "off it is not asked"


def test_an_owner_may_let_the_server_choose_the_codec(tmp_path: Path) -> None:
    own, wanted = small(), small(travel={"codec": "topk", "share": 0.1})
    folder = write_shards(own, tmp_path)[0]
    allowing, strict = (
        Sites([own.settings], folder, 0, MemoryStore(), allowed=allowed) for allowed in (["travel.*"], [])
    )
    agreement = agreement_of(wanted)
    node = allowing.find(agreement.digest, agreement.told)
    assert node.agreement.sent_form == agreement.sent_form
    with pytest.raises(Refused, match=r"does not allow travel\.codec = \"topk\""):
        strict.find(agreement.digest, agreement.told)
