"""Rows of metrics, made from states, and their summary."""

import itertools
import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from atoll.aggregation.screening import REASONS
from atoll.aggregation.usual_norms import limit_of
from atoll.engine.run_state import State
from atoll.experiment.experiment import Experiment
from atoll.experiment.faults import is_counted, usual_norms
from atoll.privacy.ledger import RunLedger
from atoll.privacy.privacy_plan import finite
from atoll.runs.columns import LOSSES, SPENT
from atoll.runs.probes import Probes
from atoll.runs.run_folder import Row
from atoll.runs.run_scores import make_scorer
from atoll.runs.stopping import stop_rules
from atoll.schedules.events import Event
from atoll.schedules.packed import pack
from atoll.support.arrays import Ids
from atoll.support.errors import InputError, NotFinite, RunError, blaming


class Recorder:
    """Turns states into rows of metrics, and rows into the summary.

    Attributes:
        ledger: epsilon spent by a private run on a fleet; None: as planned.
        rules: the conditions of `run.stop_at`.
    """

    ledger: RunLedger | None = None

    def __init__(self, experiment: Experiment, is_live: bool = False) -> None:
        """Sum up the schedule's costs; in a live run they are planned ones, until `take` gets the actual event."""
        self.experiment = experiment
        self.schedule = experiment.method.schedule
        self.probes = Probes(experiment)
        self.rules = stop_rules(experiment, [*self.probes.rehearse()])
        self.score, self.samples = make_scorer(experiment)
        self._is_live = is_live
        self.events = list(self.schedule.events) if is_live else self.schedule.events
        self.rounds = array("q", (event.round for event in self.events))
        self.reasons: tuple[str, ...] = REASONS
        if is_live:
            from atoll.fleet.server.replies import REASONS as OF_REPLIES

            self.reasons = tuple(dict.fromkeys((*REASONS, *OF_REPLIES)))
        loses = any(getattr(event, name) for event in self.events for name in LOSSES)
        counted = LOSSES if is_live or loses or is_counted(experiment.settings) else ()
        self.sums = {
            name: array("q", itertools.accumulate(map(attrgetter(name), self.events), initial=0))
            for name in ("client_updates", "models_down", "models_up", *counted)
        }
        self.losses = counted
        self.learns_norms = usual_norms(experiment.settings) != "off"

    def take(self, event: Event) -> None:
        """Record the next event of a live run as it happened."""
        assert isinstance(self.events, list), "only a live run's events are not known in advance"
        self.events[event.index] = event
        for name, sums in self.sums.items():
            sums[event.index + 1] = sums[event.index] + attrgetter(name)(event)

    def is_due(self, events_done: int, every: int) -> bool:
        """Return whether this event completed a multiple of `every` rounds, or was the last."""
        before, now = (self.schedule.rounds_done(max(e, 0)) // every for e in (events_done - 1, events_done))
        return now > before or events_done == len(self.schedule)

    def watch(self, state: State) -> None:
        """Let probes see an event without a row, in a round whose end has one."""
        done = state.events_done
        if self.probes.watches and self.is_due(self._end_of_round(done), self.experiment.settings.run.evaluate_every):
            self.probes.watch(state, self.events[done - 1].round)

    def may_resume_from(self, events_done: int) -> bool:
        """Return whether later rows need nothing of earlier events: what probes watch restarts with every round."""
        return not self.probes.watches or events_done == self._end_of_round(events_done)

    def _end_of_round(self, events_done: int) -> int:
        """Return the number of events done at the end of the last one's round."""
        return bisect_right(self.rounds, self.rounds[events_done - 1], lo=events_done)

    def require_all(self, rows: Sequence[Row], events_done: int, is_over: bool = False) -> None:
        """Reject rows if one is missing, repeated or out of order; a run that is over has one of its last event."""
        every, last = self.experiment.settings.run.evaluate_every, events_done if is_over else 0
        wanted = [0, *(done for done in range(1, events_done + 1) if done == last or self.is_due(done, every))]
        for event, row in itertools.zip_longest(wanted, rows, fillvalue=None):
            if event is None or row is None or row["event"] != event:
                raise InputError(
                    f"--resume: metrics.jsonl is damaged (the row of event {event} is missing or misplaced); "
                    "add --overwrite to start again"
                )

    def measure(self, state: State, local_loss: float | None, wall_time: float) -> Row:
        """Return the metrics row of a state."""
        done = state.events_done
        most, refused = self.experiment.settings.faults.max_update_norm, state.refused.get("too_large", 0)
        updates = self.sums["client_updates"][done]
        results = updates + (refused if self._is_live else 0)  # a live run's events count accepted ones alone
        if most is not None and 0 < results <= refused:
            raise RunError(
                f"{self._where(done)}: all {results} results are longer than faults.max_update_norm = {most:g}"
            )
        with blaming(f"{self._where(done)}: measuring the model failed", RunError):
            scored = self.score(state)
        row: Row = {
            "event": done,
            "round": self.schedule.rounds_done(done),
            "virtual_time": self.events[done - 1].seconds if done else 0.0,
            "wall_time": round(wall_time, 3),
            **scored,
            **self._probe(state),
            "local_loss": local_loss,
            **self._rate(done),
            "client_updates": updates,
            "bytes_up": self.experiment.traffic.bytes_up(self.sums["models_up"][done], updates),
            "bytes_down": self.sums["models_down"][done] * self.experiment.traffic.message_bytes,
            **self._count_faults(state),
            **self._spent(done),
        }
        if broken := [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]:
            raise NotFinite(f"{self._where(done)}: {broken[0]} is not finite; the rows before it are kept")
        return row

    def _rate(self, done: int) -> Row:
        """Return the learning rate of the last event's round; nothing if it never changes."""
        rule = self.experiment.method.rule
        if rule.is_constant:
            return {}
        return {"learning_rate": rule.lr_at(self.events[done - 1].round) if done else None}

    def _probe(self, state: State) -> Row:
        try:
            return dict(self.probes.measure(state))
        except InputError as error:
            raise RunError(f"{self._where(state.events_done)}: {error}; the rows before it are kept") from error

    def _count_faults(self, state: State) -> Row:
        """Return how many client results were lost so far, and why; nothing for a run without faults."""
        if not self.losses:
            return {}
        lost = {name: self.sums[name][state.events_done] for name in self.losses}
        lost |= {f"refused_{reason}": state.refused.get(reason, 0) for reason in self.reasons}
        return lost | ({"norm_limit": finite(limit_of(state.norms))} if self.learns_norms else {})

    def _spent(self, done: int) -> Row:
        """Return the epsilon spent by the worst client; nothing without privacy."""
        private = self.experiment.planned.private
        if private is None:
            return {}
        return {SPENT: finite(private.plan.epsilon_after(done) if self.ledger is None else self.ledger.epsilon)}

    def warn_of(self, first: Row) -> list[str]:
        """Return warnings about the row before training."""
        taken = first.get("cluster_clients", [])
        learned = self.experiment.method.labels is not None  # perhaps all in one cluster at first
        if learned or len(taken) < 2 or sum(count > 0 for count in taken) > 1:
            return []
        return [
            f"at the start all clients choose cluster {taken.index(max(taken))} of {len(taken)}, so others may stay "
            "unused; method.restarts tries several starts"
        ]

    def _where(self, done: int) -> str:
        if not done:
            return "before training"
        event = self.events[done - 1]
        clusters = ", ".join(map(str, event.active))
        return f"after event {event.index}, cluster {clusters}, clients {first_of(event.cohort)}"

    def summarize(self, rows: list[Row], done: int, stopped: str) -> dict[str, Any]:
        """Return the content of ``summary.json`` after so many events; `stopped` is why the run ended early, if so."""
        update = self.experiment.traffic.update_bytes
        happened = replace(self.schedule, events=pack(itertools.islice(self.events, done)))
        accuracies = [row["test_accuracy"] for row in rows if row["test_accuracy"] is not None]
        summary: dict[str, Any] = {
            "final": rows[-1],
            "best_test_accuracy": max(accuracies, default=None),
            **({"stopped": stopped} if stopped else {}),
            **({"own_seconds": True} if self.experiment.method.own_seconds else {}),
            "events": done,
            "rounds": self.schedule.rounds_done(done),
            "clients": len(self.experiment.population),
            **({"groups": list(told)} if (told := self.experiment.population.data.names.get("groups")) else {}),
            "cluster_sizes": self.experiment.planned.clustering.sizes.tolist(),
            "clients_left_out": self.experiment.clustering.left_out.tolist(),
            "model_bytes": self.experiment.traffic.model_bytes,
            "message_bytes": self.experiment.traffic.message_bytes,
            **({"update_bytes": update} if update != self.experiment.traffic.message_bytes else {}),
            "cluster_frequencies": happened.frequencies.tolist(),
            "max_staleness": max((max(event.staleness, default=0) for event in happened.events), default=0),
            "train_loss_samples": self.samples,
            "executor": str(self.experiment.execution.choice),
            "max_updates_per_client_round": happened.max_updates_per_client_round(),
        }
        if "cluster_clients" in rows[-1]:
            idle = [c for c, count in enumerate(rows[-1]["cluster_clients"]) if not count]
            summary["clusters_nobody_chooses"] = idle
        for name in ("h_device", "h_cluster"):
            if name in rows[-1]:
                summary[f"max_{name}"] = max(row[name] for row in rows)
        return summary


def first_of(numbers: Ids) -> str:
    """Format the first few of these numbers."""
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
