"""From settings to the seconds that clients' work takes."""

import numpy as np

from atoll.experiment.networks import speeds, uploads
from atoll.local.rule import LocalRule
from atoll.schedules.events import Clock
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids


def make_clock(settings: Settings, clients: int, sizes: Ids, rule: LocalRule, share: float) -> Clock:
    """Return the seconds of each client's training and upload.

    Args:
        settings: of the run.
        clients: how many the partition makes.
        sizes: samples of those who train; for pooled data, or parties, other ones than the partition's.
        rule: the local rule.
        share: bytes of an update as it is uploaded, as a share of the model's.
    """
    local, deadline = settings.local, settings.faults.deadline_seconds
    batch = sizes if local.batch_size == "full" else np.full(len(sizes), local.batch_size)
    zeta, sending = speeds(settings, clients), uploads(settings, clients)
    if len(sizes) != len(zeta):  # the pooled data, or parties, are nobody's in particular
        zeta, sending = np.full(len(sizes), zeta.mean()), np.full(len(sizes), sending.mean())
    steps = np.array([rule.steps_of(size) for size in sizes.tolist()])
    compute = np.asarray(batch * steps * zeta, float)
    return Clock(compute, sending * share, np.inf if deadline is None else deadline)
