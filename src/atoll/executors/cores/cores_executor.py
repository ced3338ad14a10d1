"""One single-threaded process per core: clients train in parallel, bit-identical to one after the other."""

import math
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from atoll.aggregation.mean import Combine, needs_only_mean
from atoll.aggregation.screening import Screening
from atoll.aggregation.sum_tree import LEAF
from atoll.engine.cohorts import ClientTrainer, ClusterUpdate, Cohort, Executor, Rows
from atoll.engine.combining import PartialSum
from atoll.executors.cores.cores_workers import Workers
from atoll.executors.distributed import (
    Distributed,
    Measuring,
    Training,
    TrainingUnit,
    ending_on_error,
    train_unit,
    update_of,
)
from atoll.executors.serial import Serial
from atoll.local.batches import cut_rows, mean_by_client
from atoll.local.models import Model
from atoll.local.task import ClientUpdate
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError, RunError

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Name, type and shape of each tensor of a model, in order."""

_ALIGNMENT = 16  # bytes: the largest element of any type
_SPARE_BYTES = 4096 * _ALIGNMENT  # to align this many tensors


class SharedModels:
    """Slots of equal size for one model each; unused slots take no memory.

    The memory is anonymous, so it is freed with the last process that has it.
    """

    def __init__(self, slots: int, model_bytes: int) -> None:
        """Reserve the slots, each for a model of at most `model_bytes` bytes; an OSError if memory has no room."""
        self.model_bytes = model_bytes
        self._slot_bytes = math.ceil(model_bytes / _ALIGNMENT) * _ALIGNMENT + _SPARE_BYTES
        self._memory = torch.frombuffer(mmap.mmap(-1, slots * self._slot_bytes), dtype=torch.uint8)

    def write(self, slot: int, model: Model) -> Layout:
        """Copy a model into a slot; return its layout."""
        layout = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in model.items())
        for shared, tensor in zip(self.view(slot, layout).values(), model.values(), strict=True):
            shared.copy_(tensor)
        return layout

    def view(self, slot: int, layout: Layout) -> Model:
        """Return the model in a slot; its tensors are views of the shared memory."""
        model, low = {}, slot * self._slot_bytes
        end = low + self._slot_bytes
        for name, dtype, shape in layout:
            high = low + math.prod(shape) * dtype.itemsize
            if high > end:
                raise RunError(f"a model does not fit into the {self.model_bytes} bytes reserved for it; use 'serial'")
            model[name] = self._memory[low:high].view(dtype).view(shape)
            low = math.ceil(high / _ALIGNMENT) * _ALIGNMENT
        return model


_EARLY_BYTES = 1 << 28  # of models that may wait for a sum that comes before them
_MOST_CLIENTS = 256  # of whom a pipe's buffer holds the numbers and weights, and the losses, on any platform
_MOST_TENSORS = 64  # whose names, types and shapes it then holds, too


@dataclass(frozen=True, eq=False)
class _PlacedTraining(Training):
    """Models are in slots, but not client states, whose size is unknown before a client has trained.

    Attributes:
        start: the start model's slot.
        result: the slot for the result.
    """

    start: int
    layout: Layout
    result: int


@dataclass(frozen=True, eq=False)
class _PlacedMeasuring(Measuring):
    """The models are in these slots."""

    models: tuple[tuple[int, Layout], ...]


class Cores(Distributed):
    """Trains clients in single-threaded processes that share the data and the models with this one.

    Results are combined here in the order of the clients, or summed in the workers by subtrees of the same `SumTree`,
    so they are bit-identical to those of `Serial`, or of `by_cohort`, for any number of workers. Units go one at a time
    to whichever worker is free, the last ones by decreasing cost, so that the workers finish together, however unequal
    they or the clients are. Workers are forked when there is work for them, preferably before this process has started
    threads that hold locks.
    """

    finest = 24  # memory is fast, so it is more important that workers finish together

    def __init__(
        self, trainer: ClientTrainer, workers: int, model_bytes: int, by_cohort: Executor | None = None
    ) -> None:
        """Train with this many workers.

        Args:
            trainer: trains a client, on the CPU.
            workers: maximum number of processes.
            model_bytes: maximum bytes of a communicated model, including moments.
            by_cohort: trains a whole cohort in a worker, such as `Weighted`, if the combine rule is the mean of models;
                None: workers train clients one by one.

        Raises:
            InputError: fewer than one worker, more than memory has room for, or a platform that cannot fork processes.
        """
        self.trainer = trainer
        self.by_cohort = by_cohort
        self._serial = Serial(trainer)
        self.workers = Workers(workers, self._answer)
        self._ahead, self._ahead_of_sums = _ahead_of(workers, model_bytes)
        if reason := why_no_room(workers, model_bytes):
            raise InputError(f"run.workers = {workers}: {reason}; use fewer, or run.executor = 'serial'")
        self._models = SharedModels(2 * self._ahead_of_sums, model_bytes)

    def close(self) -> None:
        """End the workers; new ones are forked if there is more to train."""
        self.workers.close()

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts.

        Raises:
            RunError: as in `Serial`, or workers died repeatedly on the same client.
        """
        units = list(self.units(cohorts, combine, screening, self.workers.count))
        with ending_on_error(self.close):
            return self.merge(cohorts, combine, self._train(units, kept=not needs_only_mean(combine)), screening)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        rows = self.trainer.identity_rows(clients, round_)
        slots = 2 * self._ahead
        with ending_on_error(self.close):
            columns = [self._measure(models[low : low + slots], rows) for low in range(0, len(models), slots)]
        return np.hstack(columns)

    def _train(self, units: Sequence[TrainingUnit], kept: bool) -> Iterator[ClientUpdate | PartialSum]:
        """Yield the units' updates in order; with `kept`, and of more than one client, each in its own memory.

        Otherwise a model is valid only until the next one is requested, since its slot may then be overwritten. Early
        results come only from the last units, whose slots are not reused.
        """
        # Client states, as large as models, layouts and what is told of each client are in both requests and answers.
        sizes = ((len(unit.cohort.clients), len(unit.cohort.start)) for unit in units)
        large = any(clients > _MOST_CLIENTS or tensors > _MOST_TENSORS for clients, tensors in sizes)
        self.workers.at_a_time = 1 if large or self.trainer.keeps_state else 2
        ahead = self._ahead_of_sums if any(unit.span for unit in units) else self._ahead
        order = self._order([unit.cohort for unit in units], ahead)
        early: dict[int, ClientUpdate | PartialSum] = {}
        due = 0
        requests = self._place((units[i] for i in order), ahead)
        for number, (layout, outcome, states) in enumerate(self.workers.map(requests, len(units), ahead)):
            unit, model = units[order[number]], self._models.view(number % ahead, layout)
            if kept or unit.whole or unit.span:
                model = {name: tensor.clone() for name, tensor in model.items()}
            early[order[number]] = update_of(outcome, model, states)
            while due in early:
                yield early.pop(due)
                due += 1

    def _order(self, units: Sequence[Cohort], ahead: int) -> list[int]:
        """Return the order in which units are sent: unchanged, except that the last ones go costliest first.

        They are few, so holding their results until the earlier ones have arrived takes little memory.
        """
        last = range(max(0, len(units) - ahead), len(units))
        samples = self.trainer.samples_a_step
        return [*range(last.start), *sorted(last, key=lambda i: -units[i].repeats * samples(units[i].clients))]

    def _place(self, units: Iterable[TrainingUnit], ahead: int) -> Iterator[_PlacedTraining]:
        """Put the units' start models into slots; consecutive units with the same start share one.

        At most `ahead` units are under way at a time, and so at most as many start models.
        """
        start, layout, slot = None, None, -1
        for number, unit in enumerate(units):
            if layout is None or unit.cohort.start is not start:
                start, slot = unit.cohort.start, (slot + 1) % ahead
                layout = self._models.write(ahead + slot, start)
            yield _PlacedTraining(*unit.packed(), ahead + slot, layout, number % ahead)

    def _measure(self, models: Sequence[Model], rows: Sequence[Rows]) -> Floats:
        """Return the mean losses of at most as many models as there are slots, [clients, models]."""
        placed = tuple((slot, self._models.write(slot, model)) for slot, model in enumerate(models))
        parts = [_PlacedMeasuring(part, placed) for part in cut_rows(rows)]
        self.workers.at_a_time = 1 if sum(map(len, models)) > _MOST_TENSORS else 2
        return mean_by_client(np.concatenate(list(self.workers.map(parts, len(parts), len(parts)))), rows)

    def _answer(self, work: _PlacedTraining | _PlacedMeasuring) -> Any:
        """Do a unit of work, in a worker."""
        if isinstance(work, _PlacedMeasuring):
            return self.trainer.sample_losses([self._models.view(*placed) for placed in work.models], work.rows)
        start = self._models.view(work.start, work.layout)
        ((model, outcome, states),) = train_unit(work.unit, start, work.states, self._serial, self.by_cohort)
        return self._models.write(work.result, model), outcome, states


def why_no_room(workers: int, model_bytes: int) -> str:
    """Return why this machine's memory is too small for these workers' models; empty if it may do."""
    slots = 2 * _ahead_of(workers, model_bytes)[1]
    try:
        SharedModels(slots, model_bytes)
    except (OSError, OverflowError):
        return f"{slots} models of {model_bytes / 1e9:.3g} GB do not fit into memory"
    return ""


def _ahead_of(workers: int, model_bytes: int) -> tuple[int, int]:
    """Return how many units may be under way at a time: single clients, and sums among them."""
    ahead = 2 * workers + 4  # so that one slow worker does not block the others
    # While a worker trains a leaf the others may train as many single clients each.
    return ahead, ahead + min(LEAF * workers, _EARLY_BYTES // max(1, model_bytes))
