"""Many clients in one batch: their models as a stack of tensors [clients, ...]."""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Literal

import numpy as np
import torch

from atoll.aggregation.mean import Combine, needs_only_mean
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort, Executor
from atoll.engine.combining import combine_updates
from atoll.executors.serial import where
from atoll.executors.stacked.draws import Draws
from atoll.executors.stacked.fit import try_stack
from atoll.executors.stacked.graphs import Graphs, rounded_size
from atoll.executors.stacked.memory import client_bytes, count_samples, default_bytes, is_out_of_memory
from atoll.executors.stacked.streams import make_streams
from atoll.executors.stacked.tensors import add, pick, weigh
from atoll.executors.stacked.training import TrainedStack, join, kind_of, train_stack
from atoll.local.models import Model
from atoll.local.precision import products_in
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import AtollError, InputError, RunError
from atoll.support.process import one_thread
from atoll.support.requiring import require_has
from atoll.support.wording import show

_FAILS_CLEANLY = torch.__version__ >= "2.13"  # before, a capture that failed left the allocator as if it went on


class Stacked(Executor):
    """Trains many clients in one batch, on the batches that they would draw one by one.

    The sum of independent losses has independent gradients, so an optimiser that treats every number on its own
    drives all models at once, and the result is that of `Serial` to rounding. Clients of several cohorts share a
    stack where their learning rates and their optimisers' counts of steps are equal. Where a batch is all that a
    client has, shorter ones are padded with samples of weight zero, to at most twice their length.
    """

    bits = "stacked"

    def __init__(
        self,
        trainer: Trainer,
        stack_bytes: int | None = None,
        cuda_graphs: bool | Literal["auto"] = "auto",
        others: Sequence[str] = (),
    ) -> None:
        """Use this trainer, whose rule and module must fit, and stacks of about so many bytes at most.

        `client_bytes` says how they are estimated; the default is half of a GPU's memory, or `STACK_BYTES`, and then a
        stack has one client at least. With `cuda_graphs` a GPU captures local steps once and replays them: faster where
        models are small, so ``"auto"`` does it with stacks of at most a sixteenth of these bytes that come often. With
        `others`, further devices, clients are cut into at least as many stacks as devices, which are trained at once,
        each by a thread of its own. A GPU that is named again computes so many parts of a stack at once.

        Raises:
            InputError: `stack_bytes` is not positive or has no room for a client, or CUDA graphs without one GPU alone.
            ValueError: the rule or the module does not fit; `try_stack` says why.
        """
        require_has("trainer", trainer, "module", "an atoll.Trainer")
        if stack_bytes is not None and stack_bytes <= 0:
            raise InputError(f"run.stack_bytes = {stack_bytes}: must be a positive number of bytes")
        device = next(trainer.module.parameters()).device
        is_first = device.type == "cuda" and device.index == torch.cuda.current_device()
        if cuda_graphs is True and not is_first:
            raise InputError(f"run.cuda_graphs = true: needs run.device = 'cuda', not {str(device)!r}")
        named = [device, *(torch.empty(0, device=each).device for each in others)]
        again = [each for place, each in enumerate(named) if each.type == "cuda" and each in named[:place]]
        others = [own for own, each in zip(others, named[1:], strict=True) if each not in again]
        if cuda_graphs is True and others:  # one's capture must not see the other's allocations
            raise InputError(f"run.cuda_graphs = true: needs a single GPU, but {len(others) + 1} devices are named")
        self.fit = try_stack(trainer)
        if self.fit.reason:
            raise ValueError(self.fit.reason)
        size, largest = trainer.rule.batch_size, int(trainer.population.sizes.max())
        samples = largest // max(1, trainer.rule.resample_parts) if size == "full" else size
        least = client_bytes(trainer, self.fit, samples)
        if stack_bytes is not None and stack_bytes < least:
            raise InputError(f"run.stack_bytes = {stack_bytes}: must be at least {least}, about what one client takes")
        self.trainer, self.trainers = trainer, [trainer, *map(trainer.on, others)]
        self.threads = ThreadPoolExecutor(len(others) + 1, "stack", torch.set_num_threads, (1,)) if others else None
        self.streams = {own: make_streams(own.batches.inputs.device, again) for own in self.trainers}
        self.stack_bytes = stack_bytes or default_bytes(device)
        has_graphs = is_first and not others and (cuda_graphs is True or (cuda_graphs == "auto" and _FAILS_CLEANLY))
        self.graphs = Graphs(cuda_graphs is True) if has_graphs else None
        if device.type == "cuda":  # graphs fill stacks up
            self.bits = f"stacked, with run.cuda_graphs = {show(cuda_graphs)}"
        self.draws = {own: Draws.of(own, least) for own in self.trainers if device.type == "cuda"}
        self.most_clients: int | None = None  # trained at once, when memory has run out

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts.

        A combine rule that needs no more than the clients' weighted mean is given that mean, with their whole weight.
        """
        tasks = [task for cohort in cohorts for task in cohort.tasks]
        if screening is None and needs_only_mean(combine):
            return self._average(cohorts, tasks, combine)
        return combine_updates(cohorts, combine, self._train_one_by_one(tasks), screening)

    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        return self.trainer.losses(models, clients, round_)

    @one_thread()
    def _average(self, cohorts: Sequence[Cohort], tasks: Sequence[ClientTask], combine: Combine) -> list[ClusterUpdate]:
        """Take each cohort's weighted mean on the stacks, which may hold clients of several cohorts."""
        cohort_of = np.repeat(np.arange(len(cohorts)), [len(cohort.clients) for cohort in cohorts])
        shares = np.concatenate([cohort.weights / cohort.weights.sum() for cohort in cohorts])
        losses = np.empty(len(tasks))
        means: list[Model] = [{} for _ in cohorts]
        for places, trained in self._train_all(tasks, by_samples=True):
            losses[places] = trained.losses
            for c in np.unique(cohort_of[places]):
                low, high = np.searchsorted(cohort_of[places], [c, c + 1])
                part = weigh(pick(trained.stack, slice(low, high)), shares[places[low:high]])
                means[c] = add(means[c], part) | trained.common

        def combined(c: int, cohort: Cohort) -> ClusterUpdate:
            pair = float(cohort.weights.sum()), self._complete(means[c], cohort.start)
            model = combine([pair], cohort.start, cohort.event_weight)
            return ClusterUpdate(model, float(np.average(losses[cohort_of == c], weights=cohort.weights)))

        return [combined(c, cohort) for c, cohort in enumerate(cohorts)]

    def _train_one_by_one(self, tasks: Sequence[ClientTask]) -> Iterator[ClientUpdate]:
        """Yield what each client sends back, in order."""
        for places, trained in self._train_all(tasks, by_samples=False):
            for client, place in enumerate(places):
                model = self._complete(pick(trained.stack, client) | trained.common, tasks[place].start)
                yield ClientUpdate(
                    {name: tensor.clone() for name, tensor in model.items()}, float(trained.losses[client])
                )

    def _complete(self, trained: Model, start: Model) -> Model:
        """Return a model with all its names: parameters and moments as trained, buffers as they were sent."""
        module = self.trainer.module
        first_names = {id(parameter): name for name, parameter in module.named_parameters()}
        names = {name: first_names[id(own)] for name, own in module.named_parameters(remove_duplicate=False)}
        sent = (name for name in module.state_dict() if name in start)
        model = {name: trained[names[name]] if name in names else start[name] for name in sent}
        return model | {name: tensor for name, tensor in trained.items() if "@" in name}

    def close(self) -> None:
        """End the threads of several devices."""
        if self.threads:
            self.threads.shutdown()

    def _train_all(self, tasks: Sequence[ClientTask], by_samples: bool) -> Iterator[tuple[Ids, TrainedStack]]:
        """Yield stacks with their clients' places among the tasks, in order or, to pad less, by samples in a batch."""
        stacks = self._cut(tasks, by_samples)
        while these := list(islice(stacks, len(self.trainers))):
            train = partial(self._train_some, tasks=tasks)
            with products_in(self.trainer.precision), one_thread():  # which are the process's, not a thread's
                done = list((self.threads.map if self.threads else map)(train, these, self.trainers))
            yield from done

    def _cut(self, tasks: Sequence[ClientTask], by_samples: bool) -> Iterator[list[int]]:
        """Yield the tasks' places in each stack."""
        kinds: dict[object, int] = {}
        kind = [kinds.setdefault(kind_of(task, self.trainer, self.fit), len(kinds)) for task in tasks]
        samples = [count_samples(task, self.trainer) for task in tasks]
        order = sorted(range(len(tasks)), key=lambda i: (kind[i], -samples[i])) if by_samples else range(len(tasks))
        held: list[int] = []
        least = most = 0
        for i in order:
            least, most = (min(least, samples[i]), max(most, samples[i])) if held else (samples[i], samples[i])
            alike = not held or (kind[i] == kind[held[0]] and most <= least * (2 if self.fit.independent else 1))
            room = self.stack_bytes // client_bytes(self.trainer, self.fit, most)
            room = rounded_size(room, up=False) if self.graphs and self.graphs.asked else room
            room = min(room, -(-len(tasks) // len(self.trainers)))  # so that no device is idle
            if held and (not alike or len(held) >= room):
                yield held
                held, least, most = [], samples[i], samples[i]
            held.append(i)
        yield held

    def _train_some(self, held: list[int], trainer: Trainer, tasks: Sequence[ClientTask]) -> tuple[Ids, TrainedStack]:
        """Train these as one stack; where memory has run out, in parts that are averaged as one."""
        places, parts, done = np.sort(held), list[TrainedStack](), 0
        while done < len(places):
            most = self.most_clients or len(places)
            if (part := self._try([tasks[i] for i in places[done : done + most]], trainer)) is not None:
                parts.append(part)
                done += most
        return places, join(parts)

    def _try(self, tasks: Sequence[ClientTask], trainer: Trainer) -> TrainedStack | None:
        """Train these at once; if memory runs out, return None, and have no graphs or half as many from now on."""
        size = rounded_size(len(tasks))
        graphs = self.graphs if self.graphs and (self.graphs.asked or self._is_small(tasks, size)) else None
        filling = [tasks[0]] * (graphs is not None and size - len(tasks))
        try:
            with products_in(trainer.precision):
                own = self.draws.get(trainer), self.streams[trainer]
                trained = train_stack(trainer, self.fit, [*tasks, *filling], graphs, *own)
                return trained.first(len(tasks), self.trainer.batches.inputs.device)
        except AtollError:
            raise
        except Exception as error:  # whatever a user's model, loss or optimiser may raise
            if len(tasks) == 1 or not is_out_of_memory(error):
                told = f"training failed ({type(error).__name__}: {error})"
                raise RunError(f"{where(tasks[0], len(tasks) - 1)}: {told}") from error
        if self.graphs and self.graphs.let_go():
            return None
        if self.most_clients is None:
            warnings.warn(
                f"run.executor = 'stacked': out of memory with {len(tasks)} clients in one stack; "
                f"going on with at most {(len(tasks) + 1) // 2}",
                RuntimeWarning,
                stacklevel=2,
            )
        self.most_clients = min(self.most_clients or len(tasks), (len(tasks) + 1) // 2)
        return None

    def _is_small(self, tasks: Sequence[ClientTask], clients: int) -> bool:
        """Return whether so many clients like these take so little memory that graphs may keep it."""
        samples = max(count_samples(task, self.trainer) for task in tasks)
        return clients * client_bytes(self.trainer, self.fit, samples) <= self.stack_bytes // 16
