"""One client after the other in this process: the reference."""

from collections.abc import Sequence

from atoll.combine import Combine
from atoll.errors import AtollError, RunError
from atoll.executors.base import Average, Cohort, Floats, Ids, Trains, combine_outcomes
from atoll.local import Outcome, Task
from atoll.models import Model
from atoll.threads import one_thread


class Serial:
    """Trains the clients one by one."""

    def __init__(self, trainer: Trains) -> None:
        """Use this trainer for every task."""
        self.trainer = trainer

    def train(self, cohorts: Sequence[Cohort], combine: Combine) -> list[Average]:
        """Return what each cohort comes to, in their order."""
        outcomes = (self._train(task) for cohort in cohorts for task in cohort.tasks)
        return combine_outcomes(cohorts, combine, outcomes)

    @one_thread()
    def _train(self, task: Task) -> Outcome:
        try:
            return self.trainer.train(task)
        except AtollError:
            raise
        except Exception as error:  # whatever a user's model, loss or optimiser may raise
            where = f"event {task.event}, cluster {task.cluster}, client {task.client}"
            raise RunError(f"{where}: training failed ({type(error).__name__}: {error})") from error

    def close(self) -> None:
        """Hold nothing to let go of."""

    @one_thread()
    def losses(self, models: Sequence[Model], clients: Ids, round_: int) -> Floats:
        """Return the mean loss of each model on each client's data, [clients, models]."""
        return self.trainer.losses(models, clients, round_)
