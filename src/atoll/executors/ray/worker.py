"""What a worker of the executor `ray` does; it runs in a process of the cluster, on any of its machines."""

import importlib.metadata
import sys
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from atoll.aggregation.mean import average_models
from atoll.engine.cohorts import ClientTrainer, ClusterUpdate, Cohort, Rows, only_model, split_clients
from atoll.executors.cores.workers import Answer, try_to_answer
from atoll.executors.serial import Serial
from atoll.executors.weighted import Weighted
from atoll.local.batches import Batches
from atoll.local.models import Model
from atoll.local.trainer import Trainer
from atoll.methods.party_trainer import PartyTrainer
from atoll.support.errors import RunError
from atoll.support.process import keep_freed_memory

Packed = tuple[tuple[str, torch.dtype, tuple[int, ...], npt.NDArray[np.uint8]], ...]
"""Name, type, shape and bytes of each tensor of a model, in order."""


@dataclass(frozen=True, eq=False)
class Training:
    """Clients of one cohort to train, their start model left out: as one pass, or one by one."""

    cohort: Cohort
    whole: bool

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.cohort.clients))
        clients = "" if self.whole else f", {'client' if len(self.cohort.clients) == 1 else 'clients'} {listed}"
        return f"event {self.cohort.event}, cluster {self.cohort.cluster}{clients}: training"


@dataclass(frozen=True, eq=False)
class Measuring:
    """Samples to measure models on."""

    rows: Rows

    def __str__(self) -> str:
        return "measuring the models on the clients' samples"


class Worker:
    """Holds the trainer, and with it the pool and the model's layers, and answers one request at a time."""

    def greet(self) -> Answer:
        """Say that the process is there."""
        return None, None

    def prepare(self, paths: Sequence[str], versions: dict[str, str], held: Sequence[Any]) -> Answer:
        """Make ready for requests.

        Args:
            paths: where the run's process finds modules, the user's own among them.
            versions: what `package_versions` is there.
            held: a reference to what `hold` returned; in a list, since Ray would resolve it before the paths are known.
        """
        torch.set_num_threads(1)
        keep_freed_memory()
        sys.path.extend(path for path in paths if path not in sys.path)
        return try_to_answer(lambda reference: self._prepare(versions, reference), held[0], lambda _: "a Ray worker")

    def answer(self, request: Training | Measuring, models: Sequence[Packed]) -> Answer:
        """Return what a request comes to with these models.

        To train: for each client, or for the cohort, the model and its loss. To measure: the losses [samples, models].
        """
        return try_to_answer(lambda it: self._answer(it, [unpack(model) for model in models]), request, str)

    def _prepare(self, versions: dict[str, str], reference: Any) -> None:
        require_same(versions)
        ray = importlib.import_module("ray")
        trainer, whole = ray.get(reference)
        if isinstance(trainer, Trainer | PartyTrainer):
            with warnings.catch_warnings():  # all workers of a machine read the same pool, and none may write to it
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                trainer.batches = Batches(trainer.population.data, trainer.module)
        self._trainer: ClientTrainer = trainer
        self._serial = Serial(trainer)
        self._weighted = Weighted(trainer) if whole else None

    def _answer(self, request: Training | Measuring, models: list[Model]) -> Any:
        if isinstance(request, Measuring):
            return self._trainer.sample_losses(models, request.rows)
        averages = self._train(replace(request.cohort, start=models[0]), request.whole)
        return [(pack(average.model), average.loss) for average in averages]

    def _train(self, cohort: Cohort, whole: bool) -> list[ClusterUpdate]:
        if whole and self._weighted is not None:
            return self._weighted.train([cohort], average_models)
        return [self._serial.train([alone], only_model)[0] for alone in split_clients(cohort)]


def hold(trainer: ClientTrainer, whole: bool) -> tuple[ClientTrainer, bool]:
    """Return what workers hold: the pool once, as arrays that all workers of a machine share.

    Another trainer, such as `attacks.Attacked`, is sent as it is, and every worker has a copy of its pool.
    """
    light = copy(trainer)
    if isinstance(trainer, Trainer | PartyTrainer):
        del vars(light)["batches"]  # tensors would be copied into every worker
    return light, whole


def pack(model: Model) -> Packed:
    """Return a model as arrays of bytes, which the object store takes as they are, whatever their type."""
    return tuple(
        (name, tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        for name, tensor in model.items()
    )


def unpack(packed: Packed) -> Model:
    """Return a copy of the model; the arrays may lie in memory that others read."""
    model = {}
    for name, dtype, shape, array in packed:
        model[name] = torch.empty(shape, dtype=dtype)
        model[name].reshape(-1).view(torch.uint8).numpy()[:] = array
    return model


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that bits depend on."""
    return {name: importlib.metadata.version(name) for name in ("atoll", "torch", "numpy")}


def require_same(versions: dict[str, str]) -> None:
    """Refuse to train with other packages than the run's process has.

    Raises:
        RunError: names the package and both versions.
    """
    for name, here in package_versions().items():
        if here != versions[name]:
            raise RunError(
                f"run.executor = 'ray': a worker has {name} {here}, the run's process {versions[name]}; "
                "all machines need the same version"
            )
