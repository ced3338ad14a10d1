"""A suite's runs: what each trains, and how long it goes on so that it uses up all three budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from warnings import catch_warnings

import numpy as np

from atoll.benchmark.contestants import REFERENCE, Contestant, find_contestants
from atoll.experiment.experiment import Experiment
from atoll.settings.experiment_file import make_runs, overlay, parse_changes, read_experiment, recipe_names
from atoll.settings.validation import Settings
from atoll.support.arrays import Floats
from atoll.support.errors import InputError, SettingWarning
from atoll.support.wording import unknown

PREFIX = "benchmark-"
BUDGETS = ("updates", "seconds", "bytes")
LONGEST = 2  # times the budget of client updates, after which a run ends whatever it has used of the others
_ROWS = 4
_MOST_ROUNDS = 2**20
_read = cache(read_experiment)


def suite_names() -> list[str]:
    """Return the names of all suites."""
    return [name.removeprefix(PREFIX) for name in recipe_names() if name.startswith(PREFIX)]


def require_suites(names: Sequence[str]) -> list[str]:
    """Return the suites of these names, all by default."""
    for name in names:
        if name not in suite_names():
            raise InputError(f"suite {name!r}: {unknown(name, suite_names())}")
    return list(names) or suite_names()


@dataclass(frozen=True)
class Suite:
    """A suite of the benchmark at one scale.

    Attributes:
        scale: one of its recipe's scales, laid over all runs; None: none is.
        updates: client updates of a run; None: the recipe's.
    """

    name: str
    scale: str | None = None
    updates: int | None = None

    @property
    def key(self) -> str:
        """The name of its results' folder, which tells sizes apart."""
        size = f"updates-{self.updates}" if self.updates is not None else None
        return "-".join(filter(None, (self.name, self.scale, size)))

    def trial(self, contestant: Contestant, changes: Sequence[str]) -> Settings:
        """Return the settings of a trial, on the validation clients; not checked, and not cut to its budget yet."""
        return self._make(contestant, changes, f"{contestant.title}, trial", ("tuning", self.scale))

    def run(self, contestant: Contestant, changes: Sequence[str], seed: int) -> Settings:
        """Return the settings of a run; not checked, and not cut to its budgets yet."""
        return self._make(contestant, [*changes, f"seed={seed}"], f"{contestant.title}, seed {seed}", (self.scale,))

    def cut(self, made: Settings, is_trial: bool) -> Settings:
        """Return settings that end when all budgets are used up, or for a trial that of client updates."""
        updates = float(made.run.client_updates or 1)
        if is_trial:
            return _lasting(made, {"updates": updates}, updates, rows=1)
        return _lasting(made, self.budgets, LONGEST * updates, _ROWS)

    @cached_property
    def budgets(self) -> dict[str, float]:
        """What a run may use: client updates, and the virtual seconds and bytes that FedAvg needs for as many."""
        (reference,) = find_contestants([REFERENCE])
        made = self._make(reference, [], "budgets", (self.scale,))
        updates = made.run.client_updates or 1
        costs = _costs(made, updates)
        if not (events := int(np.searchsorted(costs["updates"], updates, side="right"))):
            told = f"--updates {updates}: is too few for suite {self.name}, where a round of FedAvg has"
            raise InputError(f"{told} {costs['updates'][0]:g}")
        return {"updates": float(updates)} | {name: float(costs[name][events - 1]) for name in BUDGETS[1:]}

    def _make(
        self, contestant: Contestant, changes: Sequence[str], label: str, scales: Sequence[str | None]
    ) -> Settings:
        table = _read(PREFIX + self.name)
        base = {key: value for key, value in table.items() if key != "scales"}
        for scale in filter(None, scales):
            base = overlay(base, table["scales"][scale])
        if self.updates is not None:
            whole = overlay(table, table["scales"].get(self.scale, {}))
            share = base["run"]["client_updates"] / whole["run"]["client_updates"]
            base = overlay(base, {"run": {"client_updates": max(1, round(share * self.updates))}})
        with catch_warnings(action="ignore", category=SettingWarning):  # a suite has settings for all methods
            run = {"label": label, **overlay(contestant.settings, parse_changes(changes))}
            return make_runs({**base, "runs": [run]}, None, ["run.workers=1"])[0]


def _costs(settings: Settings, updates: float) -> dict[str, Floats]:
    """Return a schedule's costs so far, and its rounds, [events] each, up to so many client updates or some more."""
    free, rounds = settings.but("run", client_updates=None), settings.rounds
    while True:
        experiment = Experiment(free.model_copy(update={"rounds": rounds}))
        schedule = experiment.method.schedule
        done = np.cumsum([event.client_updates for event in schedule.events], dtype=float)
        if done[-1] < updates and rounds < _MOST_ROUNDS:
            rounds *= 2
            continue
        sent = [sum(experiment.traffic.bytes_of([event])) for event in schedule.events]
        return {
            "updates": done,
            "seconds": np.array([event.seconds for event in schedule.events]),
            "bytes": np.cumsum(sent, dtype=float),
            "rounds": np.array([schedule.rounds_done(count) for count in range(1, len(schedule) + 1)], float),
        }


def _lasting(settings: Settings, budgets: Mapping[str, float], longest: float, rows: int) -> Settings:
    """Return settings that end when all budgets are used up, or so many client updates, with about so many rows."""
    costs = _costs(settings, longest)
    ends = [np.searchsorted(costs[name], most, side="right") for name, most in budgets.items() if costs[name][-1] > 0]
    events = int(min(max(ends), np.searchsorted(costs["updates"], longest, side="right")))
    rounds = int(costs["rounds"][events - 1]) if events else 0
    updates = int(costs["updates"][np.searchsorted(costs["rounds"], max(1, rounds))])  # of so many whole rounds
    if not rounds:
        raise InputError(f"its first round has {updates} client updates, and the budget is {budgets['updates']:g}")
    lasting = settings.but("run", client_updates=updates, evaluate_every=max(1, rounds // rows))
    return lasting.model_copy(update={"rounds": rounds})
