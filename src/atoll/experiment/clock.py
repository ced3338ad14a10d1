"""From settings to the duration of clients' work."""

import numpy as np

from atoll.experiment.networks import speeds, uploads
from atoll.local.rule import LocalRule
from atoll.schedules.events import Clock
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids


def make_clock(settings: Settings, clients: int, sizes: Ids, rule: LocalRule, share: float) -> Clock:
    """Return the duration of each client's training and upload.

    Args:
        settings: the run's settings.
        clients: number of clients that the partition makes.
        sizes: samples of those that train, which differ from the partition's for pooled data and parties.
        rule: the local rule.
        share: bytes of an uploaded update, relative to the model's.
    """
    local, deadline = settings.local, settings.faults.deadline_seconds
    batch = sizes if local.batch_size == "full" else np.full(len(sizes), local.batch_size)
    zeta, sending = speeds(settings, clients), uploads(settings, clients)
    if len(sizes) != len(zeta):  # pooled data and parties belong to no one client
        zeta, sending = np.full(len(sizes), zeta.mean()), np.full(len(sizes), sending.mean())
    steps = np.array([rule.steps_of(size) for size in sizes.tolist()])
    compute = np.asarray(batch * steps * zeta, float)
    return Clock(compute, sending * share, np.inf if deadline is None else deadline)
