"""Weights & Biases: offline files in the run's folder for ``wandb sync``, or whatever ``WANDB_MODE`` says."""

import os
import secrets
import shutil
from collections.abc import Mapping
from typing import Any

from atoll.runs.run_folder import slug
from atoll.trackers.tracker import Opened, Tracked, hyperparameters, import_extra


def require_wandb() -> Any:
    """Return the package; its error reports, which it would send over the network, stay off unless asked for.

    Raises:
        InputError: it is not installed.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return import_extra("wandb", "wandb")


def open_wandb(run: Tracked) -> Opened:
    """Open a run of a project with the experiment's name (or ``WANDB_PROJECT``)."""
    return _Wandb(run)


class _Wandb:
    def __init__(self, run: Tracked) -> None:
        wandb = require_wandb()
        mode = os.environ.get("WANDB_MODE") or "offline"
        id_ = (run.note() if run.goes_on else {}).get("id") or secrets.token_hex(4)
        run.write_note(id=id_)
        if mode == "offline":  # which cannot be gone on with: the run is written again, whole, from its rows
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
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_git=True,
                disable_job_creation=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
        self.logged = -1 if mode == "offline" else int(self._run.starting_step) - 1

    def log(self, event: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=event)
        self.logged = event

    def close(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._run.finish(exit_code=0 if summary is not None else 130)
