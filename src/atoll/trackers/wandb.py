"""Weights & Biases: offline files in the run's folder for ``wandb sync``, or the mode in ``WANDB_MODE``."""

import os
import secrets
import shutil
from collections.abc import Mapping
from typing import Any

from atoll.support.wording import slug
from atoll.trackers.tracker import Opened, Tracked, hyperparameters, import_extra

_QUIET: dict[str, Any] = {"silent": True, "console": "off", "save_code": False} | dict.fromkeys(
    ("disable_git", "disable_job_creation", "x_disable_stats", "x_disable_meta"), True
)


def require_wandb() -> Any:
    """Return the package; its error reports, which it sends over the network, are off unless enabled explicitly."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return import_extra("wandb", "wandb")


def open_wandb(run: Tracked) -> Opened:
    """Open a run of a project with the experiment's name (or that in ``WANDB_PROJECT``)."""
    return _Wandb(run)


class _Wandb:
    def __init__(self, run: Tracked) -> None:
        wandb = require_wandb()
        mode = os.environ.get("WANDB_MODE") or "offline"
        id_ = (run.note() if run.goes_on else {}).get("id") or secrets.token_hex(4)
        run.write_note(id=id_)
        if mode == "offline":  # offline files cannot be continued: the whole run is written again from its rows
            for before in run.folder.glob("offline-run-*"):
                shutil.rmtree(before)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or slug(run.settings.name) or "atoll",
            id=id_,
            name=run.title,
            dir=str(run.folder.parent),  # it makes the folder wandb there
            mode=mode,
            config=hyperparameters(run.settings),
            resume=None if mode == "offline" else "allow",
            reinit="create_new",
            settings=wandb.Settings(**_QUIET),
        )
        self.logged = -1 if mode == "offline" else int(self._run.starting_step) - 1

    def log(self, event: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=event)
        self.logged = event

    def close(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._run.finish(exit_code=0 if summary is not None else 130)
