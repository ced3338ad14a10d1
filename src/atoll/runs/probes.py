"""Probes: evaluation metrics beyond the scores, as columns of ``metrics.jsonl``.

A probe is one function. Its parameters name what it needs, from `Probes.offered`; it returns a number, which becomes a
column named after the function, or a dict of numbers by column. NaN means no value. An array instead of a number has a
value for each client, and gives the columns of `spread_of`. Built-in probes are in `PROBES`; a custom one is named in
the experiment file as ``probes = ["module:function"]``.
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from atoll.clustering.clustering import Clustering
from atoll.engine.engine import init
from atoll.engine.run_state import State
from atoll.evaluation.scores import Evaluator
from atoll.experiment.experiment import Experiment
from atoll.local.batches import Batches, measure_models
from atoll.runs.columns import is_built_in
from atoll.runs.named_probes import PROBES, Numbers, Probe, heterogeneity, parameter_error, spread_of
from atoll.runs.stopping import some_columns, stop_rules
from atoll.settings.choices import method_needs
from atoll.settings.plugins import call, resolve
from atoll.settings.signatures import REQUIRED, asks_for, parameters_of
from atoll.support.arrays import Floats, Ids, least
from atoll.support.errors import InputError
from atoll.support.process import one_thread
from atoll.support.wording import unknown


class Probes:
    """The probes of one run."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        named = experiment.settings.run.probes
        if twice := [name for i, name in enumerate(named) if name in named[:i]]:
            raise InputError(f"run.probes: names {twice[0]!r} twice")
        self.functions = {name: resolve("run.probes", name, PROBES) for name in named}
        if experiment.settings.run.heterogeneity:
            self.functions.setdefault("heterogeneity", heterogeneity)
        if _has_planted(experiment):
            self.functions.setdefault("parameter_error", parameter_error)
        for name, function in self.functions.items():
            self._require_offered(name, function)
        self.watches = any(asks_for(function, "cycle_accuracies") for function in self.functions.values())
        self.by_client: dict[str, Floats] = {}  # the last metrics of single clients, by column, [clients]
        self._scores: dict[int, Evaluator] = {}  # by phase
        self._watched: tuple[int, list[float]] = (-1, [])  # a round, and the accuracies after its events so far

    def watch(self, state: State, round_: int) -> None:
        """Record the test accuracy of the server's model after an event that has no row."""
        self._watched = round_, self._accuracies(state, round_)

    def measure(self, state: State) -> Numbers:
        """Return all probes' columns at a state."""
        columns: Numbers = {}
        taken = {*some_columns(self.experiment)}
        self.by_client = {}
        for name, function in self.functions.items():
            found = self._measure(name, function, state)
            own = [] if name in PROBES else [key for key in found if is_built_in(key) or key in taken]
            if clash := [key for key in found if key in columns] + own:
                raise InputError(
                    f"run.probes = {name!r}: the column {clash[0]!r} exists already; rename the function, or the "
                    "column that it returns"
                )
            columns |= found
        return columns

    def rehearse(self) -> Numbers:
        """Measure the initial models if the settings name probes, so that a bad one fails before training."""
        if not self.experiment.settings.run.probes:
            return {name: None for name in self.functions if name == "parameter_error"}
        found = self.measure(init(self.experiment.method, *self.experiment.training.initial_models()))
        if odd := next((name for name, value in found.items() if value is not None and math.isinf(value)), None):
            raise InputError(f"run.probes: {odd} is not finite before training; NaN stands for no value")
        return found

    def offered(self, state: State) -> dict[str, Callable[[], Any]]:
        """Return a factory for each object that a probe may ask for; `docs/extending.md` explains them."""
        experiment = self._now(state)
        return {
            "experiment": lambda: experiment,
            "population": lambda: experiment.population,
            "test_clients": lambda: experiment.clients.test,
            "clustering": lambda: self._clustering(state),
            "method": lambda: experiment.method,
            "evaluator": lambda: self._evaluator(max(0, self._round_of(state))),
            "module": lambda: self._copy() if experiment.method.stays else self.module,
            "state": lambda: state,
            "round": lambda: experiment.method.schedule.rounds_done(state.events_done),
            "model": lambda: state.server,
            "models": lambda: state.starts,
            "cycle_accuracies": lambda: self._accuracies(state, self._round_of(state)),
            "labels": lambda: self.labels(state),
        }

    def _evaluator(self, round_: int) -> Evaluator:
        """Return what scores a model on all clients' data and the tests, as they are in a round."""
        phase = self.experiment.clients.dealt.phase_of(round_)
        if phase not in self._scores:
            self._scores[phase] = self.experiment.at(round_).execution.make_evaluator()
        return self._scores[phase]

    @cached_property
    def module(self) -> nn.Module:
        """A module to load models into, on the device."""
        return self._copy()

    def _copy(self) -> nn.Module:
        return self.experiment.initial.copy()

    def _round_of(self, state: State) -> int:
        """Return the round of the last event; -1 before the first."""
        return self.experiment.method.schedule.last_round(state.events_done) if state.events_done else -1

    def _now(self, state: State) -> Experiment:
        """Return the experiment with the data of the last event's round."""
        return self.experiment.at(self.experiment.method.schedule.last_round(state.events_done))

    def _accuracies(self, state: State, round_: int) -> list[float]:
        """Return the accuracies after a round's events so far, the last being that of this state."""
        before = self._watched[1] if self._watched[0] == round_ else []
        accuracy = None if state.server is None or round_ < 0 else self._evaluator(round_).test(state.server)[1]
        return before if accuracy is None else [*before, accuracy]

    def _clustering(self, state: State) -> Clustering:
        """Return the current clustering, which changes if clients move."""
        if not method_needs(self.experiment.settings, "phases"):
            return self.experiment.planned.clustering
        done = self.experiment.method.schedule.rounds_done(state.events_done)
        return [phase for phase in self.experiment.plan.phases if phase.round <= done][-1].clustering

    def labels(self, state: State) -> Ids:
        """Return each client's cluster: as given, as learned (-1: none yet), or that of the lowest loss."""
        if state.labels is not None:
            return state.labels
        if not self.experiment.method.finds_clusters:
            return self._clustering(state).labels
        population = self._now(state).population
        rows = [population.samples(client) for client in range(len(population))]
        return least(measure_models(self.module, Batches(population.data, self.module), state.starts, rows).losses)

    def _measure(self, name: str, function: Probe, state: State) -> Numbers:
        offered = self.offered(state)
        with one_thread():
            given = {key: make() for key, make in offered.items() if asks_for(function, key)}
            made = call("run.probes", function, given)
        found = made if isinstance(made, Mapping) else {name.rpartition(":")[2].rpartition(".")[2]: made}
        if not found or not all(isinstance(key, str) and key.isidentifier() for key in found):
            raise InputError(
                f"run.probes = {name!r}: must return a number, or a dict of numbers under names such as "
                f"'worst_accuracy'; it returned {made!r:.100}"
            )
        columns: Numbers = {}
        for key, value in found.items():
            if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuf":
                self.by_client[key] = value.astype(float)
                columns |= spread_of(key, self.by_client[key])
            else:
                columns[key] = _read_number(name, made, value)
        return columns

    def _require_offered(self, name: str, function: Probe) -> None:
        """Reject a function that asks for something this run does not have, or that does not exist."""
        settings = self.experiment.settings
        told = f"run.probes = {name!r}" if name in settings.run.probes else f"run.{name} = true"
        try:
            needed = [key for key, each in parameters_of(function).items() if each.default is REQUIRED]
        except ValueError:  # `call` rejects it with a message
            return
        offered = self.offered(State(0, None, (), ()))
        if missing := [key for key in needed if key not in offered]:
            raise InputError(f"{told}: its parameter {missing[0]!r} is {unknown(missing[0], offered)}")
        if not {"model", "cycle_accuracies"}.isdisjoint(needed) and not self.experiment.method.schedule.has_server:
            named = f"method.name = {settings.method.name!r}"
            raise InputError(f"{told}: is measured at the server's model, and {named} has none")
        anew = settings.fleet.recluster_every if settings.run.executor == "fleet" else None
        if anew is not None and (changing := {"clustering", "labels"}.intersection(needed)):
            raise InputError(
                f"{told}: asks for {min(changing)!r}, and fleet.recluster_every = {anew} changes it during the run; "
                "unset one of them"
            )


def check_probes(experiment: Experiment) -> Numbers:
    """Return what custom probes measure of the initial models."""
    found = Probes(experiment).rehearse()
    stop_rules(experiment, [*found])
    return found


def _read_number(name: str, made: Any, value: Any) -> float | None:
    """Return a number of any type as a Python number, NaN as None."""
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    if not (isinstance(number, float) or (type(number) is int and number.bit_length() < 64)):  # as JSON holds it
        told = "must return a number, an array of numbers (one for each client), or a dict of these by name"
        raise InputError(f"run.probes = {name!r}: {told}; it returned {made!r:.100}")
    return None if math.isnan(number) else number


def _has_planted(experiment: Experiment) -> bool:
    """Return whether models of clusters can be compared with planted parameters: at least as many, of the same size."""
    planted = experiment.population.data.planted
    if planted is None or not experiment.planned.tests_by_client:
        return False
    parameters = sum(tensor.numel() for tensor in experiment.module.state_dict().values())
    return len(planted) <= experiment.method.schedule.clusters and planted.shape[1] == parameters
