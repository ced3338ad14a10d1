"""The server's side of secure sums on a fleet: nodes send masked sums and no models."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.fleet.agreed.agreement import Agreement
from atoll.fleet.agreed.messages import Refusal, decode, encode, most_bytes
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
)
from atoll.fleet.agreed.transport import Failure, Fleet
from atoll.fleet.server.cohort_sum import Summation
from atoll.fleet.server.gathering import Call, Reply, gather
from atoll.fleet.server.replies import Expected, open_reply
from atoll.local.models import Form, Model, form_of
from atoll.secure.collector import Collector
from atoll.secure.fixed import flat
from atoll.secure.participant import Revealed
from atoll.secure.roster import NotSummed

Fields = dict[str, Any]


@dataclass(frozen=True)
class ProtocolStep:
    """A step of the protocol.

    Attributes:
        fields: further fields of the request to a node, from a summation.
        read: returns a reply's content, given its sender and models, or why it is rejected.
        take: passes the nodes' replies on.
    """

    task: str
    request: type[SumRequest]
    fields: Callable[[Summation, str], Fields]
    reply: type[SumReply]
    read: Callable[[Summation, str, Any, list[Model]], Any]
    take: Callable[[Collector, Mapping[str, Any]], Any]


def _shares(told: Mapping[str, bytes]) -> dict[str, int]:
    return {name: int.from_bytes(each) for name, each in told.items()}


def _to_deal(summation: Summation, node: str) -> Fields:
    return {"keys": tuple(map(SignedKeys.of, summation.told)), "threshold": summation.collector.threshold}


def _to_train(summation: Summation, node: str) -> Fields:
    cohort = summation.cohort
    return {"drawn_as": cohort.draws, "round": cohort.round, "clients": summation.nodes, "shares": summation.told[node]}


def _read_masked(summation: Summation, node: str, head: MaskedReply, models: list[Model]) -> Any:
    """Return a node's masked numbers, if its clients and their samples are as expected."""
    if tuple(each.client for each in head.work) != summation.nodes[node]:
        return "wrong_sender"
    for each in head.work:
        is_agreed = each.samples == summation.samples.get(each.client, each.samples)
        if not is_agreed or not summation.agreement.can_pass(each.passed, each.samples):
            return "wrong_count"
    if len(models) != 1 or form_of(models[0]) != summation.agreement.sent_form:
        return "wrong_form"
    summation.work[node] = head.work
    return flat(models[0], summation.agreement.sent_form)


STEPS = (
    ProtocolStep(
        "sum-keys", KeysRequest, lambda _, __: {}, KeysReply,
        lambda _, __, head, models: head.keys.keys, Collector.take_keys,
    ),
    ProtocolStep(
        "sum-shares", SharesRequest, _to_deal, SharesReply,
        lambda _, __, head, models: head.shares, Collector.take_dealt,
    ),
    ProtocolStep("sum-masked", MaskedRequest, _to_train, MaskedReply, _read_masked, Collector.take_masked),
    ProtocolStep(
        "sum-survivors", SurvivorsRequest, lambda summation, _: {"survivors": summation.told}, SurvivorsReply,
        lambda _, __, head, models: head.signature, Collector.take_signatures,
    ),
    ProtocolStep(
        "sum-unmask", UnmaskRequest, lambda summation, _: {"signatures": summation.told}, UnmaskReply,
        lambda _, __, head, models: Revealed(_shares(head.own), _shares(head.others)), Collector.take_revealed,
    ),
)  # fmt: skip


class SecureSums:
    """Carries out secure sums, all sums of a call concurrently; thread-safe.

    Attributes:
        false: nodes that broke the protocol, and how; they are in no later sum of this server's process.
    """

    def __init__(self, fleet: Fleet, agreement: Agreement, deadline_seconds: float) -> None:
        self._fleet, self._agreement, self._deadline = fleet, agreement, deadline_seconds
        self.false: dict[str, str] = {}

    def carry_out(self, sums: Sequence[Summation], tell: Callable[[str], None] = lambda _: None) -> None:
        """Carry out sums; afterwards each has a `total`, or the reason `why` not."""
        for step in STEPS:
            going = [number for number, each in enumerate(sums) if not each.why]
            told = self._ask(step, {number: sums[number] for number in going}, tell)
            for number in going:
                try:
                    sums[number].told = step.take(sums[number].collector, told[number])
                except NotSummed as error:
                    sums[number].why = str(error)
        for each in sums:
            each.finish()
            self._judge(each, tell)

    def _judge(self, summation: Summation, tell: Callable[[str], None]) -> None:
        """Leave nodes out of later sums: with false shares, or with shares that more cannot open than may be lying."""
        collector = summation.collector
        most = collector.planned - collector.threshold
        accused = {name: by for name, by in summation.accused.items() if len(by) > max(most, 1)}
        found = {name: f"dealt shares that {len(by)} nodes cannot open" for name, by in accused.items()}
        found |= collector.false
        for name in found.keys() - self.false.keys():
            tell(f"node {name!r} {found[name]}: it is in no further secure sum of this run")
        self.false |= found

    def _ask(
        self, step: ProtocolStep, sums: Mapping[int, Summation], tell: Callable[[str], None]
    ) -> dict[int, dict[str, Any]]:
        """Ask the remaining nodes of each sum; return replies by sum and node."""
        calls = [self._call(step, number, each) for number, each in sums.items()]
        told: dict[int, dict[str, Any]] = {number: {} for number in sums}
        for reply in gather(self._fleet, [call for call in calls if call.asked], self._deadline, tell):
            summation, node = sums[reply.call.number], reply.sender
            asked = reply.call.asked.get(node)
            if asked is None or node in told[reply.call.number] or node in summation.reasons:
                continue  # unexpected and repeated replies change nothing
            said = self._read(step, summation, asked, reply)
            if isinstance(said, str):
                summation.reasons[node] = said  # type: ignore[assignment]  # one of `Reason`
                continue
            told[reply.call.number][node] = said
            if step.reply is MaskedReply:
                summation.seconds[node] = reply.seconds
        return told

    def _call(self, step: ProtocolStep, number: int, summation: Summation) -> Call:
        nonces = {node: secrets.token_hex(16) for node in summation.collector.left}
        instance = summation.collector.instance
        common: Fields = {"token": instance.token, "event": instance.event}
        common |= {"repeat": instance.repeat, "cluster": instance.cluster, "work": instance.work}
        heads = {
            node: encode(
                step.request(settings_digest=instance.digest, nonce=nonce, **common, **step.fields(summation, node))
            )
            for node, nonce in nonces.items()
        }
        asked = {node: Expected(node, summation.nodes[node][0], nonce, {}) for node, nonce in nonces.items()}
        return Call(number, step.task, heads, summation.start if step.request is MaskedRequest else b"", asked)

    def _read(self, step: ProtocolStep, summation: Summation, asked: Expected, reply: Reply) -> Any:
        """Return a reply's content, or, as a text, why it is rejected."""
        content = reply.content
        if isinstance(content, Failure):
            return "oversized" if content.reason == "too_large" else content.reason
        form: Form = self._agreement.sent_form if step.reply is MaskedReply else {}
        opened = open_reply(content, step.reply, most_bytes(form))
        if isinstance(opened, str):
            if opened == "wrong_keys" and (about := decode(content, Refusal)[0].about or "") in summation.nodes:
                summation.accused.setdefault(about, set()).add(asked.node)
            return opened
        head, models = opened
        if head.nonce != asked.nonce:
            return "repeated"
        return step.read(summation, asked.node, head, models)
