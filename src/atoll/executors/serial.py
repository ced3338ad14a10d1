"""The reference executor: one client after the other, in this process."""

from collections.abc import Iterator, Sequence
from itertools import chain

from atoll.aggregation.mean import Combine
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClientTrainer, ClusterUpdate, Cohort, Executor
from atoll.engine.combining import combine_updates
from atoll.executors.debugging import measure_watched, train_watched
from atoll.local.models import Model
from atoll.local.precision import products_in
from atoll.local.task import ClientTask, ClientUpdate, why_wrong_state
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import AtollError, RunError
from atoll.support.process import one_thread
from atoll.support.requiring import require_has


class Serial(Executor):
    """Trains the clients one by one."""

    bits = "serial"

    def __init__(self, trainer: ClientTrainer, debug: bool = False) -> None:
        """Use this trainer for every task.

        With `debug`, training stops at the first step that is not finite, and errors also name the step and have the
        full traceback as a note (`train_watched`); the trainer must then not step by hand, which cannot be watched.
        """
        require_has("trainer", trainer, "why_one_by_one", "a trainer, such as atoll.Trainer")
        self.trainer = trainer
        self.debug = debug

    @one_thread()
    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts; combine rules use one thread, as in `Cores`."""
        return combine_updates(cohorts, combine, chain.from_iterable(map(self.updates, cohorts)), screening)

    def updates(self, cohort: Cohort) -> Iterator[ClientUpdate]:
        """Train a cohort's clients one by one, each when its update is requested."""
        return map(self._train, cohort.tasks)

    def _train(self, task: ClientTask) -> ClientUpdate:
        try:
            with products_in(self.trainer.precision):
                update = train_watched(self.trainer, task) if self.debug else self.trainer.train(task)
        except AtollError:
            raise
        except Exception as error:  # raised by a user's model, loss or optimiser
            raise RunError(f"{where(task)}: training failed ({type(error).__name__}: {error})") from error
        name = type(self.trainer).__name__
        require_has(f"{where(task)}: what {name}.train returns", update, "state", "an atoll.ClientUpdate")
        if fault := why_wrong_state(task.state, update.state, self.trainer.keeps_state):
            raise RunError(f"{where(task)}: {name} {fault}")
        return update

    @one_thread()
    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        if self.debug:
            return measure_watched(self.trainer, models, clients, round_)
        return self.trainer.losses(models, clients, round_)


def where(task: ClientTask, others: int = 0) -> str:
    """Return a task's place in the run, for errors."""
    return f"event {task.event}, cluster {task.cluster}, client {task.client}" + f" and {others} others" * (others > 0)
