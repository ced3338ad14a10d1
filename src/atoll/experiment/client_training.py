"""The trainer of a run's clients, and the initial models."""

from dataclasses import dataclass, replace

from atoll.data.population import Population
from atoll.engine.chain import Chain
from atoll.engine.cohorts import Executor
from atoll.experiment.clients import Clients
from atoll.experiment.initial_model import InitialModel
from atoll.experiment.modules import make_chain, rehearse
from atoll.experiment.planned_method import PlannedMethod
from atoll.local.models import Model
from atoll.local.rule import LocalRule
from atoll.local.task import ClientUpdate
from atoll.local.weights import read_model
from atoll.methods.papers.ifca import choose_start
from atoll.settings.validation import Settings


@dataclass(frozen=True, eq=False)
class ClientTraining:
    """The trainer of a run's clients, and the initial models."""

    settings: Settings
    clients: Clients
    initial: InitialModel
    planned: PlannedMethod

    def trainer(self, rule: LocalRule | None = None) -> Chain:
        """Return the trainer of the run's clients, with the method's rule or another."""
        # A failure would reveal something about clients' data.
        tolerant = self.settings.faults.tolerate or self.planned.private is not None
        return self.make_trainer(rule or self.planned.method.rule, self.clients.population, tolerant)

    def make_trainer(self, rule: LocalRule, population: Population, tolerant: bool) -> Chain:
        """Return the method's trainer with its stages, for any population."""
        method = replace(self.planned.method, rule=rule)
        return make_chain(self.settings, method, self.initial.copy(), population, self.initial.device, tolerant)

    def rehearse(self) -> ClientUpdate | None:
        """Train one client for one step; return its update, or None if that is not finite."""
        method = self.planned.method
        trainer = self.trainer(replace(method.rule, steps=1, epochs=None))
        return rehearse(self.settings, trainer, method.schedule.occupied.events[0], self.start())

    def start(self) -> Model:
        """Return the communicated part of an initial model."""
        return self.planned.method.sent(read_model(self.initial.copy()))

    def initial_models(self, restart: int = 0) -> tuple[Model, ...]:
        """Return the initial models' communicated parts: one, or one per cluster, drawn anew for each restart."""
        method, private, device = self.planned.method, self.planned.private, self.initial.device
        modules = (self.initial.draw(cluster, restart) for cluster in range(method.starts))
        drawn = [method.sent(read_model(module.to(device))) for module in modules]
        common = {name: drawn[0][name] for name in method.shared if name in drawn[0]}
        common |= {} if private is None else private.carried(device)
        return tuple(model | common for model in drawn)

    def best_start(self, executor: Executor) -> tuple[Model, ...]:
        """Return the best of the method's `restarts` sets of initial models."""
        method = self.planned.method
        candidates = [self.initial_models(restart) for restart in range(method.restarts)]
        if len(candidates) == 1:
            return candidates[0]
        return candidates[choose_start(method, executor, candidates, len(self.clients.population))]
