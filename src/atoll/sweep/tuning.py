"""A search for the best setting with Optuna, which proposes trials and prunes those that lag behind."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atoll.settings.validation import Settings
from atoll.support.extras import load_extra
from atoll.support.seeds import generator
from atoll.support.wording import show
from atoll.sweep.axes import Axis, Interval, parse_value
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_worker import Answer, Job, News
from atoll.sweep.trials import Trial

STORE = "optuna.log"
_STARTUP_TRIALS = 5  # never pruned, since there is too little to compare them with
_STUDY = "atoll"


def require_optuna() -> Any:
    """Return the package, logging only errors."""
    optuna = load_extra("optuna", "tune", "--tune", "Optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Search:
    """A study in a sweep's folder: its jobs, their reports, and its trials.

    A proposal depends only on the seed and on the trials that were over when it was made. So with one job at a time, a
    search that was stopped and resumed proposes the same trials as one that was not.
    """

    def __init__(
        self,
        out: Path,
        space: Sequence[Axis | Interval],
        goal: Goal,
        make: Callable[[Sequence[str], str], Settings],
        rounds: int,
        seed: int,
    ) -> None:
        """Open the study, or start it.

        Args:
            out: the sweep's folder, which must exist.
            goal: what to optimise; no trial is pruned if that is the cost of a target.
            make: makes the settings of a run from ``section.key=value`` texts and a label.
            rounds: of a run; no trial is pruned in the first fifth of them.
            seed: of the proposals.
        """
        self._optuna = optuna = require_optuna()
        self.out, self.space, self.goal, self.make, self.seed = out, space, goal, make, seed
        backend = optuna.storages.journal.JournalFileBackend(str(out / STORE))
        self.study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=_STUDY,
            direction="maximize" if goal.rises else "minimize",
            pruner=optuna.pruners.MedianPruner(_STARTUP_TRIALS, n_warmup_steps=max(1, rounds // 5)),
            load_if_exists=True,
        )
        self._asked: dict[str, Any] = {}
        self._values: dict[str, float | None] = {}

    def jobs(
        self, trials: int, modules: tuple[Path, ...] = (), at_once: int = 1, note: Callable[[], None] | None = None
    ) -> Iterator[Job]:
        """Yield jobs, stopped trials first, until there are `trials` in all; `note` each proposal before its job."""
        running = self._optuna.trial.TrialState.RUNNING
        for frozen in self.study.get_trials(deepcopy=False, states=(running,)):
            yield self._job(self._optuna.trial.Trial(self.study, frozen._trial_id), modules, at_once)
        while (number := len(self.study.get_trials(deepcopy=False))) < trials:
            self.study.sampler = self._sampler(number)
            job = self._job(self.study.ask(), modules, at_once)
            if note is not None:
                note()
            yield job

    def judge(self, job: Job, news: News) -> Answer:
        """Report a job's row to the study; return whether its run continues."""
        row = news.row or {}
        trial, round_ = self._asked[job.name], int(row["round"])
        trial.set_user_attr("rounds", round_)
        if self.goal.target is not None:
            return "go on"
        value = self._values[job.name] = row.get(self.goal.metric)
        reported = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        if value is None:  # as local_loss is before training, or where a probe has no value
            return "stop" if round_ and not reported else "go on"
        if round_ > 0 and round_ not in reported:
            trial.report(value, round_)
        return "prune" if round_ > 0 and trial.should_prune() else "go on"

    def settle(self, job: Job, news: News) -> str:
        """Tell the study how a job ended; return its error, or an empty text.

        A job that the user stopped stays as it is, to be resumed.
        """
        if self.goal.target is not None and news.state == "finished":
            cost = self.goal.read(job.folder)
            self._values[job.name] = None if cost is None or math.isinf(cost[0]) else cost[0]
        states, trial, value = self._optuna.trial.TrialState, self._asked[job.name], self._values.get(job.name)
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        never_had_one = frozen.user_attrs.get("rounds") and not frozen.intermediate_values
        is_over = news.state == "finished" or (news.state == "stopped" and never_had_one)
        if is_over and job.name in self._values and value is None:
            self.study.tell(trial, state=states.FAIL)
            if self.goal.target is not None:
                return f"--target {self.goal.target:g}: its {self.goal.of} did not reach it"
            return f"--metric {self.goal.metric}: its last row does not hold it"
        if news.state == "finished":
            self.study.tell(trial, value)
        elif news.state != "stopped":
            self.study.tell(trial, state=states.PRUNED if news.state == "pruned" else states.FAIL)
        return news.error

    def trials(self) -> list[Trial]:
        """Return all trials so far, in order."""
        return [
            Trial(
                frozen.number,
                {name: _text(value) for name, value in frozen.params.items()},
                frozen.state.name.lower(),
                frozen.user_attrs.get("rounds", 0),
                frozen.values[0] if frozen.values else frozen.intermediate_values.get(frozen.last_step),
            )
            for frozen in self.study.get_trials(deepcopy=False)
        ]

    def best(self) -> Trial | None:
        """Return the complete trial with the best value at its last probe; None if there is none."""
        complete = [trial for trial in self.trials() if trial.state == "complete" and trial.value is not None]
        pick = max if self.goal.rises else min
        return pick(complete, key=lambda trial: trial.value or 0.0, default=None)

    def _job(self, trial: Any, modules: tuple[Path, ...], at_once: int) -> Job:
        """Return a trial's job; draws those values that have not been drawn yet."""
        texts = {each.name: _text(_suggest(trial, each)) for each in self.space}
        name = Trial(trial.number, texts, "running", 0, None).name
        self._asked[name] = trial
        drawn = ", ".join(f"{key} = {text}" for key, text in texts.items())
        settings = self.make([f"{key}={text}" for key, text in texts.items()], f"trial {trial.number}: {drawn}")
        return Job(name, settings, self.out / name, modules, at_once)

    def _sampler(self, number: int) -> Any:
        """Return the sampler that proposes this trial."""
        experimental = self._optuna.exceptions.ExperimentalWarning  # as some versions call constant_liar
        with warnings.catch_warnings(action="ignore", category=experimental):
            drawn = int(generator(self.seed, "search", number).integers(2**31))
            return self._optuna.samplers.TPESampler(seed=drawn, constant_liar=True)


def corners(space: Sequence[Axis | Interval]) -> list[list[str]]:
    """Return combinations, as ``section.key=value`` texts, that cover every value and both ends of every range."""
    columns = [ends(each) for each in space]
    return [
        [f"{each.name}={column[min(i, len(column) - 1)]}" for each, column in zip(space, columns, strict=True)]
        for i in range(max(map(len, columns)))
    ]


def ends(each: Axis | Interval) -> list[str]:
    """Return all values of a list, or the two ends of a range."""
    if isinstance(each, Axis):
        return list(each.texts)
    return [_text(int(end) if each.is_whole else end) for end in (each.low, each.high)]


def describe(each: Axis | Interval) -> Any:
    """Return a setting's search space, for ``sweep.json``."""
    if isinstance(each, Axis):
        return [parse_value(each.name, text) for text in each.texts]
    return {"low": each.low, "high": each.high, "whole": each.is_whole, "log": each.is_log}


def _suggest(trial: Any, each: Axis | Interval) -> Any:
    if isinstance(each, Axis):
        return trial.suggest_categorical(each.name, each.texts)
    if each.is_whole:
        return trial.suggest_int(each.name, int(each.low), int(each.high), log=each.is_log)
    return trial.suggest_float(each.name, each.low, each.high, log=each.is_log)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else show(value)
