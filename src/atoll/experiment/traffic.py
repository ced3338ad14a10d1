"""The size in bytes of a run's models, messages and updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from atoll.engine.stages import sent_form
from atoll.experiment.client_training import ClientTraining
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.planned_method import PlannedMethod
from atoll.local.models import form_of
from atoll.local.weights import bytes_of_form, count_bytes, first_moments
from atoll.schedules.events import Event


@dataclass(frozen=True, eq=False)
class Traffic:
    """The size in bytes of a run's models, messages and updates."""

    initial: InitialModel
    planned: PlannedMethod
    training: ClientTraining

    @property
    def model_bytes(self) -> int:
        """Bytes of the communicated part of a model."""
        return self.initial.bytes_without(self.planned.method.stays)

    @cached_property
    def message_bytes(self) -> int:
        """Bytes of a communicated model, including moments (CFL-MGD's u_p)."""
        method = self.planned.method
        known = self.model_bytes + count_bytes(first_moments(method.rule, self.initial.copy()))
        changed = method.trainer is not None or any(stage.is_at_client for stage in method.stages)
        update = self.training.rehearse() if changed else None
        return known if update is None else max(known, count_bytes(update.model))

    @cached_property
    def update_bytes(self) -> int:
        """Bytes of a client's upload: a message, or the output of its last stage."""
        stages = self.planned.method.stages
        if not any(stage.form for stage in stages):
            return self.message_bytes
        update = self.training.rehearse()
        form = form_of(self.training.start() if update is None else update.model)
        sent = sent_form(stages, form)
        return self.message_bytes if sent is form else bytes_of_form(sent)

    def bytes_up(self, messages: int, updates: int) -> int:
        """Return the uploaded bytes of a number of messages, some of which are clients' updates."""
        return updates * self.update_bytes + (messages - updates) * self.message_bytes

    def bytes_of(self, events: Sequence[Event]) -> tuple[int, int]:
        """Return the bytes that the schedule's events upload and download."""
        up, down, updates = (
            sum(getattr(event, name) for event in events) for name in ("models_up", "models_down", "client_updates")
        )
        return self.bytes_up(up, updates), self.message_bytes * down
