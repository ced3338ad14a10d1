"""TensorBoard: event files in the run's folder, found by ``tensorboard --logdir runs``."""

import math
from collections.abc import Mapping
from typing import Any

from atoll.trackers.tracker import MARK, Opened, Tracked, hyperparameters, import_extra


def require_tensorboard() -> Any:
    """Return the module that writes event files."""
    return import_extra("torch.utils.tensorboard", "tensorboard")


def open_tensorboard(run: Tracked) -> Opened:
    """Open the event files of a run."""
    return _TensorBoard(run)


class _TensorBoard:
    def __init__(self, run: Tracked) -> None:
        last = _last_event(run) if run.goes_on else -1
        # The last row may be incomplete: `purge_step` makes readers drop it, and it is written again.
        self.logged = last - 1 if last >= 0 else -1
        self._writer = require_tensorboard().SummaryWriter(str(run.folder), purge_step=last if last >= 0 else None)
        self._event = max(last, 0)
        if last < 0:
            self._log_hyperparameters(run)

    def log(self, event: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, event)
        self._writer.flush()
        self.logged = self._event = event

    def close(self, summary: Mapping[str, float] | None) -> None:
        for name, value in (summary or {}).items():
            self._writer.add_scalar(f"summary/{name}", value, self._event)
        self._writer.close()

    def _log_hyperparameters(self, run: Tracked) -> None:
        """Write the data of the HPARAMS page into the run itself; `add_hparams` would make a second run."""
        summary = import_extra("torch.utils.tensorboard.summary", "tensorboard")
        curves = dict.fromkeys(("test_accuracy", "train_loss"), math.nan)
        for proto in summary.hparams(hyperparameters(run.settings), curves):
            self._writer.file_writer.add_summary(proto)


def _last_event(run: Tracked) -> int:
    """Return the last event whose row was begun, or -1."""
    loading = import_extra("tensorboard.backend.event_processing.event_file_loader", "tensorboard")
    last = -1
    for file in sorted(run.folder.glob("events.out.tfevents.*")):
        for event in loading.EventFileLoader(str(file)).Load():
            if any(value.tag == MARK for value in event.summary.value):
                last = max(last, event.step)
    return last
