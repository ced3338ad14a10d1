"""A finished run as a value, for scripts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from atoll.engine.run_state import State
from atoll.experiment.experiment import Experiment
from atoll.local.models import Model
from atoll.runs.export import load_module, predict
from atoll.runs.probes import Probes
from atoll.runs.run_folder import Row, RunFolder
from atoll.runs.saved import SavedRun, read_saved
from atoll.settings.given_objects import named
from atoll.settings.validation import Settings, validate
from atoll.support.arrays import Floats
from atoll.support.errors import InputError
from atoll.support.extras import load_extra

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run, held in memory.

    Attributes:
        settings: all settings of the run.
        folder: its folder; None if it was not kept.
        history: metrics by column, float64 [rows]; NaN if missing. Every run has
            ``event``, ``round``, ``virtual_time`` and ``wall_time`` (seconds), ``train_loss``, ``test_loss``,
            ``test_accuracy`` (0 to 1), ``client_updates``, ``bytes_up`` and ``bytes_down`` (cumulative). Metrics of
            clusters have shape [rows, clusters].
        summary: content of ``summary.json``.
        state: the final models, on the CPU.
        warnings: sentences for the user.
    """

    settings: Settings
    folder: Path | None
    history: dict[str, Floats]
    summary: dict[str, Any]
    state: State
    warnings: tuple[str, ...] = ()

    def frame(self) -> "pandas.DataFrame":
        """Return `history` as a pandas data frame; the column of cluster 0 is ``cluster_accuracy/0``.

        Raises:
            InputError: pandas is not installed.
        """
        pandas = load_extra("pandas", "pandas", "frame()")
        columns = {}
        for name, values in self.history.items():
            for place in np.ndindex(values.shape[1:]):
                columns["/".join([name, *map(str, place)])] = values[(slice(None), *place)]
        return pandas.DataFrame(columns)

    def __repr__(self) -> str:
        title = ", ".join(filter(None, (self.settings.name, self.settings.panel, self.settings.label)))
        rows, place = len(self.history["event"]), None if self.folder is None else str(self.folder)
        return f"Result({title!r}, {rows} rows, {self.summary['events']} events, folder={place!r})"

    def model(self, cluster: int | None = None) -> Model:
        """Return the run's model as tensors by name, or a cluster's (counted from 0), as `SavedRun.model` chooses it.

        Raises:
            InputError: no such cluster; or each cluster has a model, and there is no common one.
        """
        place = self.folder or Path(self.settings.name)
        return SavedRun(place, self.settings, self.state, is_finished=True).model(cluster)

    def module(self, cluster: int | None = None) -> nn.Module:
        """Return the same model as a module in evaluation mode; reads the shape of the data again."""
        return load_module(self.settings, self.model(cluster))

    def predict(self, inputs: Any, cluster: int | None = None, probabilities: bool = False) -> npt.NDArray[Any]:
        """Return the model's predictions for inputs as the data set stores them; their scaling is applied.

        Args:
            inputs: [n, *shape], such as ``dataset.test_inputs``; of a table also a data frame of new rows.
            cluster: whose model, as for `model`.
            probabilities: each class's instead of the likeliest class.

        Returns:
            Classes, int64 [n], or probabilities [n, classes]; for several labels 0 or 1, [n, labels]; for regression
            real numbers, [n] or [n, numbers].

        Raises:
            InputError: inputs of another shape, rows that lack a column, data that has changed; or as for `model`.
        """
        return predict(self.settings, self.model(cluster), inputs, probabilities, self.folder)

    def clients(self) -> dict[str, npt.NDArray[Any]]:
        """Return the final results of single clients: arrays [clients] by column, ready for ``pandas.DataFrame``.

        ``client`` and ``samples``; ``cluster``, which it belongs to or would choose; and ``accuracy`` on test samples
        like its own, with the model it would receive or its personal one, as the probe ``client_accuracy`` measures it
        (NaN where it is not measured); in regression ``loss`` on its own training samples, as ``client_loss``. The data
        is read again.
        """
        column = "accuracy" if np.isfinite(self.history["test_accuracy"]).any() else "loss"
        run = {**dict(self.settings.run), "probes": [f"client_{column}"], "trackers": []}
        fleet = {**dict(self.settings.fleet), "recluster_every": None}  # the last clustering is in force
        settings, place = validate({**self.settings.model_dump(), "run": run, "fleet": fleet}), self.folder
        experiment = SavedRun(place, settings, self.state, True).experiment() if place else Experiment(settings)
        probes = Probes(experiment)
        probes.measure(self.state)
        sizes, labels = experiment.clients.dealt.sizes, probes.labels(self.state)
        return {
            "client": np.arange(len(sizes)),
            "samples": sizes,
            "cluster": labels if len(labels) == len(sizes) else np.zeros_like(sizes),  # pooled data have one model
            column: probes.by_client[f"client_{column}"],
        }


def read_result(folder: Path | str, warnings: Sequence[str] = (), **given: Any) -> Result:
    """Read a finished run from its folder.

    Args:
        given: what the run was given directly, such as ``data=dataset``; this process knows it from then on.

    Raises:
        InputError: there is no run, it is not finished, or it is damaged.
    """
    named(given)  # which remembers what it names
    saved = read_saved(folder)
    place = RunFolder(saved.folder)
    if not saved.is_finished:
        told = "has lost its last checkpoint; delete summary.json and" if place.is_finished else "is not finished;"
        raise InputError(f"{folder}: the run {told} continue it by `atoll run` with --resume")
    return Result(saved.settings, saved.folder, columns_of(place.rows()), place.summary(), saved.state, tuple(warnings))


def columns_of(rows: Sequence[Row]) -> dict[str, Floats]:
    """Return each column of rows of metrics as an array [rows, ...]; missing values are NaN."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> Floats:
    shape = next((np.shape(value) for value in values if value is not None), ())
    return np.array([np.full(shape, np.nan) if value is None else value for value in values], np.float64)
