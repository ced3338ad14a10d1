"""The executor for a fleet: cohorts train where their data are."""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TypeVar

import numpy as np

from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.fleet.agreed.agreement import Agreement
from atoll.fleet.agreed.messages import pack
from atoll.fleet.agreed.transport import Fleet, clients_of
from atoll.fleet.folder.peers import public_keys
from atoll.fleet.node.versions import named
from atoll.fleet.server.attendance import Attendance
from atoll.fleet.server.cohort_sum import Summation, begin
from atoll.fleet.server.collected import Collected, Replies, average_sound, leave_out_unusual
from atoll.fleet.server.gathering import Call, Reply, gather
from atoll.fleet.server.joining import ask_again
from atoll.fleet.server.measured_times import MeasuredTimes
from atoll.fleet.server.notices import Notices
from atoll.fleet.server.replies import CheckedUpdate, Expected, Reason, read_losses, read_trained
from atoll.fleet.server.secure_sums import SecureSums
from atoll.local.models import Model
from atoll.support.arrays import Floats, Ids

Result = TypeVar("Result")


class FleetExecutor(Executor):
    """Trains clients on the nodes of a fleet; thread-safe.

    All cohorts are asked at once, with one deadline. Every reply is checked before it counts; clients without a good
    reply by then are left out, and combine rules see only the others' weights. If all clients answer, results are
    bit-identical to `Serial` on the same kind of processor with the same packages; measured losses agree to rounding,
    since nodes use batches of their own.

    Attributes:
        left_out: names of nodes that are never asked, since their descriptions are impossible.
        refused: number of missing or rejected results so far, by reason
            (`fleet.server.replies.REASONS`).
        latest: `State.clients` after the last event, which the run goes on from if it is stopped before the next.
    """

    bits = "fleet"

    def __init__(
        self,
        fleet: Fleet,
        nodes: Mapping[int, str],
        agreement: Agreement,
        deadline_seconds: float,
        samples: Mapping[int, int] | None = None,
        is_sound: Callable[[Model], bool] = lambda _: True,
        attendance: Attendance | None = None,
        notices: Notices | None = None,
    ) -> None:
        """Train on this fleet.

        Args:
            fleet: delivers tasks to nodes; closed with the executor.
            nodes: each present client's node; others may join later, if the fleet knows them.
            deadline_seconds: from the request to the last reply.
            samples: reported number of samples by client; any number is accepted for clients not listed.
            is_sound: whether a combined model can be used; otherwise none of its replies counts.
            attendance: decides who is asked; None: everyone, always.
        """
        self.fleet = fleet
        self.nodes = dict(nodes)
        self.agreement = agreement
        self.deadline_seconds = deadline_seconds
        self.samples = dict(samples or {})
        self.is_sound = is_sound
        self.attendance = attendance or Attendance()
        self.notices = notices or Notices()
        self.measured = MeasuredTimes(agreement.clients)
        self.left_out: set[str] = set()
        self.refused: Counter[str] = Counter()
        self.latest: Mapping[int, Model] = {}
        self._resumable: Sequence[Mapping[int, Model]] = ()
        self._sums = None if agreement.fixed is None else SecureSums(fleet, agreement, deadline_seconds)
        self._lock = Lock()

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in order; replies are checked more strictly than simulated results."""
        screening = screening or Screening(tolerate=False)
        limit = screening.max_update_norm
        starts = {id(cohort.start): cohort.start for cohort in cohorts}  # cohorts may share one
        bodies = {key: pack([self._sent(start)]) for key, start in starts.items()}
        groups = [cohort.clients for cohort in cohorts]
        aside = self.attendance.take_turn(groups)
        if self._sums is not None:
            return self._sum(self._sums, cohorts, [bodies[id(cohort.start)] for cohort in cohorts], aside)
        calls = [
            call
            for number, cohort in enumerate(cohorts)
            for call in self._ask_to_train(number, _without(cohort, aside[number]), bodies[id(cohort.start)], limit)
        ]
        collected = self._collect(groups, calls, self._read_trained, aside)
        if screening.learns_norms:
            leave_out_unusual(cohorts, collected, screening, self._refuse, lambda client: repr(self.nodes[client]))
        return average_sound(cohorts, combine, collected, self.is_sound, self._refuse)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]; NaN if not reported."""
        body = pack([self._sent(model) for model in models])
        calls = []
        aside = self.attendance.take_turn([clients])
        for nodes in self._split(clients[~np.isin(clients, list(aside[0]))]):
            asked = {
                node: Expected(node, client, secrets.token_hex(16), self.agreement.form, models=len(models))
                for node, client in nodes.items()
            }
            heads = {node: each.head_to_measure(self.agreement.digest, round_) for node, each in asked.items()}
            calls.append(Call(0, "losses", heads, body, asked))
        (replies,) = self._collect([clients], calls, lambda a, r: read_losses(a, r.sender, r.content), aside)
        unknown = np.full(len(models), np.nan)
        told = [replies.results.get(client, unknown) for client in clients.tolist()]
        return np.array(told).reshape(len(clients), len(models))

    def keep_resumable(self, states: Sequence[Mapping[int, Model]]) -> None:
        """Let nodes drop all client states but the `latest` and these: `State.clients` of each existing checkpoint."""
        self._resumable = tuple(states)

    def close(self) -> None:
        """Leave the fleet; the nodes keep running."""
        self.fleet.close()

    def _sent(self, model: Model) -> Model:
        """Return the tensors that nodes need, without the server's clipping norm."""
        return {name: tensor for name, tensor in model.items() if name in self.agreement.form}

    def _ask_to_train(self, number: int, cohort: Cohort, body: bytes, limit: float | None) -> Iterator[Call]:
        for nodes in self._split(cohort.clients):
            asked = {node: self._asked_to_train(node, client, cohort, limit) for node, client in nodes.items()}
            digest, resumable = self.agreement.digest, (*self._resumable, self.latest)
            heads = {node: each.head_to_train(digest, cohort, resumable) for node, each in asked.items()}
            yield Call(number, "train", heads, body, asked)

    def _asked_to_train(self, node: str, client: int, cohort: Cohort, limit: float | None) -> Expected:
        nonce = secrets.token_hex(16)
        return Expected(
            node=node,
            client=client,
            nonce=nonce,
            form=self.agreement.form,
            event=cohort.event,
            repeat=cohort.repeat,
            start=cohort.start,
            samples=self.samples.get(client),
            max_update_norm=limit,
            state=named(nonce) if self.agreement.keeps_state else None,
            stages=self.agreement.stages,
            can_pass=self.agreement.can_pass,
        )

    def _split(self, clients: Ids) -> list[dict[str, int]]:
        """Return groups of clients by node, at most one client per node; clients without a node are left out."""
        nodes = self._find(clients.tolist())
        groups: list[dict[str, int]] = []
        for client, node in nodes.items():
            free = next((group for group in groups if node not in group), None)
            if free is None:
                groups.append(free := {})
            free[node] = client
        return groups

    def _find(self, clients: Sequence[int]) -> dict[int, str]:
        """Return each client's node; if some have none, look for new nodes, which describe themselves first."""
        if any(client not in self.nodes for client in clients):
            there = {name: known for name, known in self.fleet.nodes().items() if name not in self.left_out}
            present = {client: name for name, known in there.items() for client in clients_of(known)}
            new = {client: name for client, name in present.items() if client not in self.nodes}
            said = ask_again(self.fleet, self.agreement, new, self.deadline_seconds) if new else {}
            samples = {client: report.samples for client, report in said.items()}
            with self._lock:
                self.nodes, self.samples = present | self.nodes, samples | self.samples
        return {client: self.nodes[client] for client in clients if client in self.nodes}

    def _collect(
        self,
        groups: Sequence[Ids],
        calls: Sequence[Call],
        read: Callable[[Expected, Reply], Result | Reason],
        aside: Sequence[set[int]],
    ) -> list[Collected[Result]]:
        """Make the calls; return each group's replies, by number.

        Only a client's first reply counts.
        """
        collected = [Collected[Result]({}, Counter()) for _ in groups]
        settled: dict[tuple[int, int], str] = {}
        for reply in gather(self.fleet, calls, self.deadline_seconds, self.notices.say):
            into = collected[reply.call.number]
            asked = reply.call.asked.get(reply.sender)
            key = reply.call.number, -1 if asked is None else asked.client
            result = read(asked, reply) if asked and key not in settled else "repeated" if asked else "wrong_sender"
            settled.setdefault(key, result if isinstance(result, str) else "")
            if isinstance(result, str):
                into.refused[result] += 1
                self.notices.add(reply.sender, result)
            else:
                into.results[key[1]] = result
                self.notices.forget(reply.sender)
        for number, (clients, into) in enumerate(zip(groups, collected, strict=True)):
            for client in clients.tolist():
                if (number, client) not in settled:
                    reason = "aside" if client in aside[number] else "gone"
                    into.refused[reason] += 1
                    self.notices.add(self.nodes.get(client, f"of client {client}"), reason)
        self._settle(settled, [into.refused for into in collected])
        return collected

    def _sum(
        self, secure: SecureSums, cohorts: Sequence[Cohort], bodies: Sequence[bytes], aside: Sequence[set[int]]
    ) -> list[ClusterUpdate]:
        """Return each cluster's sum without revealing any single update."""
        nodes = self._find([client for cohort in cohorts for client in cohort.clients.tolist()])
        known = public_keys(self.fleet.nodes())
        sums = [
            begin(cohort, nodes, spared, self.agreement, known, self.samples, body, secure.false)
            for cohort, spared, body in zip(cohorts, aside, bodies, strict=True)
        ]
        secure.carry_out(sums, self.notices.say)
        for each in sums:
            self._note(each)
        updates = [each.update() for each in sums]
        settled = {
            (number, client): each.reason_of(client) or ""
            for number, each in enumerate(sums)
            for client in set(each.cohort.clients.tolist()) - each.aside
        }
        self._settle(settled, [update.refused for update in updates])
        return updates

    def _note(self, summed: Summation) -> None:
        """Report a failed sum, and record missing answers and measured times."""
        if summed.why:
            where = f"event {summed.cohort.event}, cluster {summed.cohort.cluster}"
            self.notices.say(f"{where}: no secure sum, so nothing of this cohort counts: {summed.why}")
        for node, reason in summed.reasons.items():
            self.notices.add(node, reason)
        for client in summed.aside:
            self.notices.add(self.nodes.get(client, f"of client {client}"), "aside")
        for node in () if summed.why else summed.collector.summed:
            self.notices.forget(node)
        for node, done in summed.work.items():
            for each in done:
                self.measured.add(each.client, each.passed, each.seconds, summed.seconds[node])

    def _settle(self, settled: Mapping[tuple[int, int], str], refused: Iterable[Mapping[str, int]]) -> None:
        """Record what was refused, who answered and who was late; clients whose node is gone are neither."""
        with self._lock:
            for each in refused:
                self.refused.update(each)
        late = {client: self.nodes[client] for (_, client), reason in settled.items() if reason == "late"}
        came = {client: reason for (_, client), reason in settled.items() if reason not in ("late", "gone")}
        came.pop(-1, None)  # clients that were not asked
        self.attendance.take(late, set(came), {client for client, reason in came.items() if not reason})

    def _refuse(self, replies: Replies, client: int, reason: str) -> None:
        """Count a client's result no longer."""
        del replies.results[client]
        replies.refused[reason] += 1
        self.notices.add(self.nodes[client], reason)
        with self._lock:
            self.refused[reason] += 1

    def _read_trained(self, asked: Expected, reply: Reply) -> CheckedUpdate | Reason:
        result = read_trained(asked, reply.sender, reply.content)
        if isinstance(result, CheckedUpdate):
            self.measured.add(asked.client, result.passed, result.seconds, reply.seconds)
        return result


def _without(cohort: Cohort, clients: set[int]) -> Cohort:
    kept = ~np.isin(cohort.clients, list(clients))
    return replace(cohort, clients=cohort.clients[kept], weights=cohort.weights[kept]) if clients else cohort
