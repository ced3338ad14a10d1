"""What stages do to updates on their way: a codec, optionally with error feedback, and clipping."""

from dataclasses import dataclass
from typing import Any

import torch

from atoll.aggregation.reductions import update_norm
from atoll.codecs.coding import Coding, add, as_received, as_sent, subtract
from atoll.engine.stages import Need, Stage
from atoll.local.models import Form, Model, form_of
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.weights import with_variances
from atoll.support.seeds import generator


@dataclass(frozen=True, eq=False)
class Coder:
    """Both halves of the stage.

    With the start model W, the trained model w and the kept error e, the server gets ``W + d``, where
    ``d = decode(encode(w - W + e))``, and the client keeps ``e <- (w - W + e) - d`` (Seide et al. 2014; Karimireddy et
    al. 2019). Without feedback e is zero.
    """

    coding: Coding
    feedback: bool
    seed: int

    def send(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return the encoded update, and e as the state."""
        kept = task.state or {}
        change = subtract(update.model, task.start)
        wanted = {name: own + kept[name] if name in kept else own for name, own in change.items()}
        payload = self.coding.encode(wanted, generator(self.seed, "codec", *task.key))
        return ClientUpdate(as_sent(payload), update.loss, self._lost(wanted, payload) if self.feedback else None)

    def receive(self, sent: Model, start: Model, form: Form) -> Model:
        """Return the start model plus the decoded update; what was lost of a running variance leaves it at least 0."""
        return with_variances(add(start, self.coding.decode(as_received(sent), form)))

    @torch.no_grad()
    def _lost(self, wanted: Model, payload: bytes) -> Model:
        decoded = self.coding.decode(payload, form_of(wanted))
        return {name: own - decoded[name].to(own.device) for name, own in wanted.items() if own.is_floating_point()}


def code_updates(coding: Coding, feedback: bool, seed: int, is_own: bool = False, digest: Any = None) -> Stage:
    """Return the stage that sends updates as a codec's bytes; `is_own`: it is a user's code."""
    coder = Coder(coding, feedback, seed)
    lacks = {Need.NUMBERS: coding.told}
    lacks |= {Need.NO_STATE: f"{coding.told} and travel.feedback = true"} if feedback else {}
    lacks |= {Need.KNOWN_CODE: coding.told} if is_own else {}
    return Stage(
        name="codec",
        told=coding.told,
        send=coder.send,
        receive=coder.receive,
        form=coding.sent_form,
        keeps_state=feedback,
        digest=digest,
        needs={
            Need.NUMBERS: "updates are already encoded by then",
            Need.UPDATES: "clients send nothing",
            Need.NO_REGROUPING: "clusters are found from what clients train",
        },
        lacks=lacks,
    )


@torch.no_grad()
def send_clipped(longest: float, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
    """Return the model, at most this far from the start model; moments are unchanged."""
    norm = update_norm(update.model, task.start)
    if not norm > longest:
        return update
    moved = {
        name: task.start[name].lerp(own, longest / norm)
        for name, own in update.model.items()
        if own.is_floating_point() and "@" not in name
    }
    return ClientUpdate(update.model | moved, update.loss)
