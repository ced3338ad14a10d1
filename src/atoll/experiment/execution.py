"""The executor of a run, and the evaluators of its models."""

from dataclasses import dataclass, replace
from functools import cached_property

from atoll.engine.cohorts import Executor
from atoll.evaluation.scores import ClusterEvaluator, Evaluator
from atoll.experiment.client_training import ClientTraining
from atoll.experiment.clients import Clients
from atoll.experiment.executor_choice import ExecutorChoice, choose_executor, make_executor, require_measuring
from atoll.experiment.faults import require_single_results
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.planned_method import PlannedMethod
from atoll.experiment.traffic import Traffic
from atoll.settings.validation import Settings


@dataclass(frozen=True, eq=False)
class Execution:
    """The executor of a run, and the evaluators of its models."""

    settings: Settings
    clients: Clients
    initial: InitialModel
    planned: PlannedMethod
    training: ClientTraining
    traffic: Traffic

    @cached_property
    def choice(self) -> ExecutorChoice:
        """The run's executor, and why it was chosen."""
        require_single_results(self.settings)
        if self.planned.schedule is None:
            require_measuring(self.settings)
        method, trainer, start = self.planned.method, self.training.trainer().for_executors(), self.training.start()
        method = replace(method, schedule=method.schedule.occupied)
        size = self.traffic.message_bytes
        return choose_executor(self.settings.run, method, trainer, start, size, self.initial.device)

    def make_executor(self) -> Executor:
        """Return the executor that the settings name; close it when the run is over."""
        trainer = self.training.trainer().for_executors()
        return make_executor(self.choice, self.settings.run, trainer, self.traffic.message_bytes)

    def make_evaluator(self) -> Evaluator:
        """Return the evaluator on the union of the clients' data and on the test set."""
        samples, seed = self.settings.run.evaluate_samples, self.settings.seed
        return Evaluator(self.clients.dealt, self.initial.copy(), samples, seed, self._threads)

    def make_cluster_evaluator(self) -> ClusterEvaluator:
        """Return the evaluator of several models, where each client uses the one with the least loss."""
        settings, module, paired = self.settings, self.initial.copy(), self.settings.drift.kind != "none"
        both = self.clients.population, self.clients.test
        return ClusterEvaluator(*both, module, settings.run.evaluate_samples, settings.seed, self._threads, paired)

    @property
    def _threads(self) -> int:
        """The number of evaluation threads: as many as the run's training processes on this machine."""
        return self.choice.workers if self.choice.name == "cores" else 1
