"""A worker of the executor `ray`, which runs in a process on any of the cluster's machines."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from atoll.engine.cohorts import ClientTrainer
from atoll.executors.cores.cores_workers import Answer, try_to_answer
from atoll.executors.distributed import Measuring, Training, train_unit
from atoll.executors.packing import Packed, pack, unpack
from atoll.executors.serial import Serial
from atoll.executors.weighted import Weighted
from atoll.local.models import Model
from atoll.support.environment import BITS_DEPEND_ON, package_versions
from atoll.support.errors import RunError
from atoll.support.process import keep_freed_memory


class Worker:
    """Holds the trainer, with the pool and the model's layers, and answers one request at a time."""

    def greet(self) -> Answer:
        """Confirm that the process is alive."""
        return None, None

    def prepare(self, paths: Sequence[str], versions: Mapping[str, str | None], held: Sequence[Any]) -> Answer:
        """Prepare for requests.

        Args:
            paths: where the run's process finds modules, including the user's.
            versions: `package_versions` of the run's process.
            held: a reference to the trainer and whether it trains whole cohorts; in a list, since Ray would otherwise
                resolve it before the paths are known.
        """
        torch.set_num_threads(1)
        keep_freed_memory()
        sys.path.extend(path for path in paths if path not in sys.path)
        return try_to_answer(lambda reference: self._prepare(versions, reference), held[0], lambda _: "a Ray worker")

    def answer(self, request: Training | Measuring, models: Sequence[Packed]) -> Answer:
        """Return the answer to a request about these models.

        For training: the `Trained` of each client, subtree or cohort. For evaluation: the losses [samples, models].
        """
        return try_to_answer(lambda it: self._answer(it, [unpack(model) for model in models]), request, str)

    def _prepare(self, versions: Mapping[str, str | None], reference: Any) -> None:
        require_same(versions)
        trainer, whole = importlib.import_module("ray").get(reference)
        self._trainer: ClientTrainer = trainer
        self._serial = Serial(trainer)
        self._weighted = Weighted(trainer) if whole else None

    def _answer(self, request: Training | Measuring, models: list[Model]) -> Any:
        if isinstance(request, Measuring):
            return self._trainer.sample_losses(models, request.rows)
        trained = train_unit(request.unit, models[0], request.states, self._serial, self._weighted)
        return [(pack(model), outcome, states) for model, outcome, states in trained]


def require_same(versions: Mapping[str, str | None]) -> None:
    """Reject package versions that differ from those of the run's process."""
    for name in BITS_DEPEND_ON:
        if (here := package_versions()[name]) != versions[name]:
            raise RunError(
                f"run.executor = 'ray': a worker has {name} {here}, the run's process {versions[name]}; "
                "all machines need the same version"
            )
