"""MLflow: a store in the run's folder, or the server or database in ``MLFLOW_TRACKING_URI``."""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from atoll.trackers.tracker import MARK, Opened, Tracked, hyperparameters, import_extra

_BATCH = 100  # parameters that a server accepts at a time
_METRICS = 1000
_LONGEST = 500  # characters of a parameter that every server accepts


def require_mlflow() -> Any:
    """Return the package; its usage statistics, which it sends over the network, are off unless enabled explicitly."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    return import_extra("mlflow", "mlflow")


def open_mlflow(run: Tracked) -> Opened:
    """Open a run under the experiment's name (or ``MLFLOW_EXPERIMENT_NAME``)."""
    return _MLflow(run)


def _place(run: Tracked) -> tuple[str, str]:
    """Return where the run is logged, as a name that stays valid if the folder moves, and as a URI."""
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return uri, uri
    # MLflow wants plain file stores to be enabled explicitly; a database per run would take 7 s and 1 MB.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    # A process creates a store of a given name only once, even if the folder is replaced.
    store = next(run.folder.glob("store-*"), run.folder / f"store-{secrets.token_hex(4)}")
    return store.name, store.resolve().as_uri()


class _MLflow:
    def __init__(self, run: Tracked) -> None:
        mlflow = require_mlflow()
        self._entities = mlflow.entities
        where, uri = _place(run)
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        note = run.note() if run.goes_on else {}
        self.logged, self._id = -1, ""
        if note.get("where") == where:
            self._id, self.logged = self._find(note.get("id", ""))
        if not self._id:
            self._id = self._begin(run)
            run.write_note(where=where, id=self._id)

    def log(self, event: int, numbers: Mapping[str, float]) -> None:
        # The mark comes last, so that a partially written row is written again.
        ordered = {**{name: value for name, value in numbers.items() if name != MARK}, MARK: numbers[MARK]}
        self._log_metrics(event, ordered)
        self.logged = event

    def close(self, summary: Mapping[str, float] | None) -> None:
        if summary is not None:
            logged = self._client.get_run(self._id).data.metrics
            new = {f"summary/{name}": each for name, each in summary.items() if logged.get(f"summary/{name}") != each}
            self._log_metrics(max(self.logged, 0), new)
        self._client.set_terminated(self._id, status="KILLED" if summary is None else "FINISHED")

    def _find(self, id_: str) -> tuple[str, int]:
        """Set the run of this id to running; return the id and its last event, or an empty id if it is gone."""
        try:
            self._client.update_run(id_, status="RUNNING")
            history = self._client.get_metric_history(id_, MARK)
        except Exception as error:
            if getattr(error, "error_code", "") not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise  # such as a server that is away
            return "", -1
        return id_, max((metric.step for metric in history), default=-1)

    def _begin(self, run: Tracked) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.settings.name
        if (experiment := self._client.get_experiment_by_name(name)) is None:
            with suppress(Exception):  # another process may have just made it; other errors recur below
                self._client.create_experiment(name)
            experiment = self._client.get_experiment_by_name(name)
        id_: str = self._client.create_run(experiment.experiment_id, run_name=run.title).info.run_id
        given = hyperparameters(run.settings).items()
        parameters = [self._entities.Param(key, str(value)[:_LONGEST]) for key, value in given]
        for low in range(0, len(parameters), _BATCH):
            self._client.log_batch(id_, params=parameters[low : low + _BATCH])
        return id_

    def _log_metrics(self, event: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, event) for name, value in numbers.items()]
        for low in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._id, metrics=metrics[low : low + _METRICS])
