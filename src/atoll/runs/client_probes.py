"""Probes of single clients: the accuracy or R2 of each on its own tests, before and after training; and its loss."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from atoll.data.population import Population
from atoll.engine.run_state import State
from atoll.evaluation.personal import OwnTests
from atoll.evaluation.scores import least_of
from atoll.experiment.experiment import Experiment
from atoll.local.batches import Batches, measure_models, perplexity
from atoll.local.models import Model
from atoll.local.precision import products_in
from atoll.local.task import ClientTask
from atoll.local.weights import read_model
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.seeds import generator

_NO_EVENT = 10**15  # in the place of an event's number, so that batches differ from those of the run
MEASURED = {
    **dict.fromkeys(("cross-entropy", "binary-cross-entropy"), ("accuracy", "score")),
    "squared": ("score",),
    "next-token": ("perplexity",),
}

Starts = list[tuple[int, Model, Ids]]
"""Clusters, the model that each sends, and the clients that receive it."""


def of_clients(name: str, experiment: Experiment, state: State, labels: Ids) -> Floats:
    """Return each client's accuracy, R2 or loss with the model it would receive, or its personal one.

    `trained_` ones are measured after local training from that model; the run is unaffected.
    """
    measure = _Measure(name, experiment, experiment.clients.dealt)
    return measure.after(state, labels) if name.startswith("trained") else measure.before(state, labels)


def of_new_clients(name: str, experiment: Experiment, state: State) -> Floats:
    """Return the same of each held-out client, with the model it would receive."""
    measure = _Measure(name, experiment, experiment.clients.new)
    return measure.after(state) if name.startswith("trained") else measure.before(state)


def client_loss(experiment: Experiment, state: State, labels: Ids) -> Floats:
    """Return each client's mean loss on its own training samples, with the model that `client_accuracy` measures."""
    require_states_here("client_loss", experiment)
    clients, module = experiment.clients.dealt, experiment.initial.copy()
    batches, initial = Batches(clients.data, module), read_model(module)
    kept = state.clients if experiment.method.keeps_model else {}
    found = np.full(len(clients), np.nan)
    for some, model in _by_model(_starts(experiment, state, labels), kept):
        rows = [clients.samples(k) for k in some]
        found[some] = measure_models(module, batches, [initial | model], rows).losses[:, 0]
    return found


def client_perplexity(experiment: Experiment, state: State, labels: Ids) -> Floats:
    """Return each client's perplexity on its own test texts, with the model that `client_accuracy` measures."""
    return perplexity(of_clients("client_perplexity", experiment, state, labels))


def whole_models(experiment: Experiment, state: State, labels: Ids) -> Iterator[tuple[int, Model]]:
    """Yield the whole model of each client that keeps one, or a part of one."""
    initial = read_model(experiment.module)
    starts = {int(k): model for _, model, clients in _starts(experiment, state, labels) for k in clients}
    for client, kept in state.clients.items():  # one at a time: all of them may not fit into memory
        whole = initial | starts.get(client, {}) | kept
        yield client, {name: whole[name] for name in initial}  # a client may keep more beside it


def _starts(experiment: Experiment, state: State, labels: Ids) -> Starts:
    """Return what clients would receive: the server's model, or without a server their cluster's."""
    if state.server is not None:
        return [(0, state.server, np.arange(len(experiment.clients.dealt)))]
    return [(c, model, np.flatnonzero(labels == c)) for c, model in enumerate(state.starts)]


def _by_model(starts: Iterable[tuple[int, Model, Ids]], kept: Mapping[int, Model]) -> Iterator[tuple[list[int], Model]]:
    """Yield clients and the model that they have in common; one that keeps a part of its model is alone."""
    for _, model, clients in starts:
        if alike := [k for k in clients.tolist() if k not in kept]:
            yield alike, model
        for k in clients.tolist():
            if k in kept:
                yield [k], model | kept[k]


def require_states_here(name: str, experiment: Experiment) -> None:
    """Reject a probe of models that clients keep, or one that trains from their states, if these are on their nodes."""
    kept = experiment.method.keeps_state if name.startswith("trained") else experiment.method.keeps_model
    if kept and experiment.settings.run.executor == "fleet":
        told = f"run.probes = {name!r}: is measured with what clients keep, which never leaves their nodes with"
        again = "measure it in simulation, or replay the run there with --schedule"
        raise InputError(f"{told} run.executor = 'fleet'; {again}")


class _Measure:
    """Measures clients of one population, all or a fixed, seeded draw with about `run.evaluate_samples` samples."""

    def __init__(self, name: str, experiment: Experiment, population: Population | None) -> None:
        settings = experiment.settings
        if population is None:
            raise InputError(f"run.probes = {name!r}: needs clients that never train; set data.held_out_clients")
        if not name.endswith(MEASURED.get(population.data.loss, ())):
            what = "are no texts with data.task = 'causal'" if name.endswith("perplexity") else "have no classes"
            raise InputError(f"run.probes = {name!r}: the data {what}")
        if population is experiment.clients.dealt:
            require_states_here(name, experiment)
        self.experiment, self.population = experiment, population
        self.initial = read_model(experiment.initial.copy())
        self.tests = OwnTests(population, experiment.initial.copy(), settings.data.partition == "natural")
        samples, clients = settings.run.evaluate_samples, len(population)
        if samples is not None:
            clients = min(clients, max(1, round(samples / population.sizes.mean())))
        self.drawn = generator(settings.seed, "evaluate").choice(len(population), clients, replace=False)

    def before(self, state: State, labels: Ids | None = None) -> Floats:
        """Return the accuracies before local training, [clients]; NaN if not measured."""
        found = np.full(len(self.population), np.nan)
        keep = self.experiment.method.keeps_model and self.population is self.experiment.clients.dealt
        for some, model in _by_model(self._starts(state, labels), state.clients if keep else {}):
            found[some] = self.tests.scores(self.initial | model, some)
        return found

    def after(self, state: State, labels: Ids | None = None) -> Floats:
        """Return the accuracies after local training, [clients]; NaN if not measured."""
        method, found = self.experiment.method, np.full(len(self.population), np.nan)
        is_new, whole = self.population is self.experiment.clients.new, self.experiment.planned.clients.dealt
        past = whole.later[: whole.phase_of(last := method.schedule.last_round(state.events_done))]  # may be remembered
        population = self.population if is_new else replace(whole, later=past)
        trainer = self.experiment.training.make_trainer(method.rule, population, tolerant=True)
        round_ = max(last, min(method.schedule.rounds_done(state.events_done), method.schedule.rounds - 1))
        for cluster, model, clients in self._starts(state, labels):
            for k in clients.tolist():
                kept = None if is_new else state.clients.get(k)
                task = ClientTask(state.events_done, round_, 0, cluster, k, model, _NO_EVENT, kept)
                with products_in(trainer.precision):
                    update = trainer.train_alone(task)
                own = update.state or {} if method.keeps_model else {}
                found[k] = self.tests.scores(self.initial | update.model | own, [k])[0]
        return found

    def _starts_of_new(self, state: State) -> Starts:
        """Return what new clients would receive: without a server, the model with the lowest loss on their data."""
        if state.server is not None:
            return [(0, state.server, np.arange(len(self.population)))]
        rows = [self.population.samples(client) for client in range(len(self.population))]
        batches = Batches(self.population.data, self.tests.module)
        losses = measure_models(self.tests.module, batches, [self.initial | each for each in state.starts], rows).losses
        chosen = least_of(losses, state.labels)
        return [(c, model, np.flatnonzero(chosen == c)) for c, model in enumerate(state.starts)]

    def _starts(self, state: State, labels: Ids | None) -> Iterator[tuple[int, Model, Ids]]:
        """Yield what the measured clients would receive; those without labels are new."""
        starts = self._starts_of_new(state) if labels is None else _starts(self.experiment, state, labels)
        for cluster, model, clients in starts:
            if len(measured := np.intersect1d(clients, self.drawn)):
                yield cluster, model, measured
