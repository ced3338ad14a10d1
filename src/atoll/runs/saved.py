"""The model in a run's folder, finished or not: its latest intact checkpoint, read without rebuilding the run."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atoll.engine.run_state import State
from atoll.experiment.experiment import Experiment
from atoll.fleet.server.clustering_log import as_told, read_clusterings
from atoll.local.models import Model
from atoll.runs.checkpoint import DAMAGED, FORMAT, read_note, read_state
from atoll.runs.run_files import CLUSTERINGS
from atoll.runs.run_scores import mean_of_aggregators
from atoll.settings.validation import Settings, validate
from atoll.support.errors import InputError, refusing
from atoll.support.requiring import require, require_path
from atoll.support.untrusted import read_toml


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run as saved in its folder.

    Attributes:
        state: of the latest intact checkpoint.
        is_finished: whether the run is finished, and the state is its final one.
    """

    folder: Path
    settings: Settings
    state: State
    is_finished: bool

    def model(self, cluster: int | None = None) -> Model:
        """Return a cluster's model or, by default, the run's: the one at which its metrics are measured.

        That is the server's model or, in FedUC's decentralised patterns, the mean of the aggregators' models weighted
        by their samples, for which the data is read. Optimiser moments that models carry are left out.

        Args:
            cluster: counted from 0. With a server, a cluster's model is the last average of its clients; without one,
                it is their next start model.
        """
        chosen = self._whole() if cluster is None else self._of_cluster(cluster)
        return {name: tensor for name, tensor in chosen.items() if "@" not in name}

    def experiment(self) -> Experiment:
        """Return the run's experiment, of one on a fleet with the samples and clusterings that its server used."""
        experiment, path = Experiment(self.settings), self.folder / CLUSTERINGS
        lines = read_clusterings(path, len(experiment.population)) if path.exists() else []
        told = [(line.round, as_told(experiment.population, line)) for line in lines]
        return experiment.given(replace(told[-1][1], later=told)) if told else experiment

    def _of_cluster(self, cluster: int) -> Model:
        models = self.state.starts if self.state.server is None else self.state.published
        if not 0 <= require("cluster", cluster, int) < len(models):
            has = f"the clusters 0 to {len(models) - 1}" if len(models) > 1 else "only cluster 0"
            raise InputError(f"cluster {cluster}: {self.folder} has {has}")
        return models[cluster]

    def _whole(self) -> Model:
        state = self.state
        if state.server is not None or len(state.starts) == 1:
            return state.server or state.starts[0]
        experiment = self.experiment()
        if experiment.method.finds_clusters:
            raise InputError(
                f"{self.folder}: method.name = {self.settings.method.name!r} makes {len(state.starts)} models, none "
                f"for all clients; choose a cluster from 0 to {len(state.starts) - 1} by cluster=, or --cluster"
            )
        return mean_of_aggregators(experiment, state)[0]


def read_saved(folder: Path | str) -> SavedRun:
    """Read a run's settings and its latest intact checkpoint, onto the CPU."""
    folder = require_path("run", folder)
    config = folder / "config.toml"
    if not config.is_file():
        several = sorted(child.name for child in folder.glob("*/") if (child / "config.toml").is_file())
        fault = f"holds several runs; give one of them: {', '.join(several)}" if several else "is not a run"
        raise InputError(f"{folder} {fault if folder.exists() else 'does not exist'}")
    with refusing(f"{config} cannot be read", ValueError):
        settings = validate(read_toml(config, folder))
    paths = sorted((folder / "checkpoint").glob("event-*.json"), reverse=True)
    for path in paths:
        try:
            note = read_note(path)
            if note["format"] != FORMAT:
                raise InputError(f"{path}: has format {note['format']}, but this version of Atoll reads {FORMAT}")
            state = read_state(path, note, torch.device("cpu"))
        except DAMAGED:
            continue
        return SavedRun(folder, settings, state, (folder / "summary.json").is_file() and path == paths[0])
    fault = "all its checkpoints are damaged" if paths else "it has no checkpoint yet"
    raise InputError(f"{folder}: {fault}, so there is no model")
