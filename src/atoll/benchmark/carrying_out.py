"""Carrying out what is missing of the benchmark: a method's trials on a suite, then its runs as the best one was."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from atoll.api import check_runs
from atoll.benchmark.contestants import REFERENCE, Contestant, find_contestants
from atoll.benchmark.result_files import ResultFile, entry_of, read_results
from atoll.benchmark.standings import stand
from atoll.benchmark.suites import BUDGETS, Suite
from atoll.experiment.experiment import Experiment
from atoll.reproduce.kept_runs import digest_anywhere
from atoll.reproduce.recipe_runs import RecipeTask, carry_out_all
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.units import format_seconds
from atoll.support.wording import slug


@dataclass(frozen=True)
class _Missing:
    """A trial or a run that no result file has; its settings are not cut to the budget yet."""

    file: ResultFile
    title: str
    changes: list[str]
    made: Settings
    is_trial: bool
    is_first: bool


@dataclass
class Campaign:
    """What is to be carried out, and how it goes.

    Attributes:
        trials: trials of each method on each suite.
        seeds: runs of each, with seeds from 0 on.
        places: the folder for results, and others whose results count as done.
        jobs: runs at a time.
        failed: runs that failed, one sentence each.
    """

    suites: Sequence[Suite]
    contestants: Sequence[Contestant]
    trials: int
    seeds: int
    places: Sequence[Path]
    jobs: int = 1
    say: Callable[[str], None] = print
    failed: list[str] = field(default_factory=list)
    _took: list[float] = field(default_factory=list)

    def carry_out(self) -> None:
        """Carry out all trials and runs that no result file has."""
        left = len(self.suites) * len(self.contestants) * (self.trials + self.seeds)
        for suite in self.suites:
            suite.budgets  # noqa: B018 - so that a budget that is too small is refused before anything runs
            if REFERENCE not in {one.name for one in self.contestants}:
                stand(self.results(suite).values(), BUDGETS[0])  # which asks for it if there are no results of it
        for suite in self.suites:
            held = self.results(suite)
            files = [held.get(one.name) or ResultFile(suite.key, one.name, one.title) for one in self.contestants]
            for one, file in zip(self.contestants, files, strict=True):
                if (file.trials or file.runs) and file.code != one.code:
                    told = f"--methods {one.name}: its file has changed since its results on {suite.key} were made"
                    raise InputError(f"{told}; remove {file.name} from --out or --results, or give other folders")
                file.left_out, file.code = "", one.code
            for find in (self._missing_trials, self._missing_runs):
                pairs = zip(self.contestants, files, strict=True)
                missing = [each for one, file in pairs for each in find(suite, one, file)]
                left -= len(files) * (self.trials if find == self._missing_trials else self.seeds)
                self._carry_out(suite, sorted(missing, key=lambda each: each.made.seed), left)

    def results(self, suite: Suite) -> dict[str, ResultFile]:
        """Return what is known of a suite, without trials and runs that were made with other settings than now."""
        known = {one.name: one for one in (*find_contestants(), *self.contestants)}

        def sift(file: ResultFile) -> ResultFile:
            if one := known.get(file.method):
                file.trials = [each for each in file.trials if each.is_of(partial(suite.trial, one, each.changes))]
                file.runs = [each for each in file.runs if each.is_of(partial(suite.run, one, each.changes, each.seed))]
            return file

        return read_results(self.places, suite.key, sift)

    def _missing_trials(self, suite: Suite, one: Contestant, file: ResultFile) -> Iterator[_Missing]:
        for number, changes in enumerate(one.trials(self.trials)):
            made = suite.trial(one, changes)
            if not file.has(made):
                yield _Missing(file, f"{one.title}, {', '.join(changes)}", changes, made, True, number == 0)

    def _missing_runs(self, suite: Suite, one: Contestant, file: ResultFile) -> Iterator[_Missing]:
        """Yield the runs with what the best trial had."""
        if file.best is None:
            self._leave_out(file, "none of its trials came to an end")
            return
        for seed in range(self.seeds):
            made = suite.run(one, file.best.changes, seed)
            if not file.has(made):
                yield _Missing(file, f"{one.title}, seed {seed}", file.best.changes, made, False, seed == 0)

    def _carry_out(self, suite: Suite, missing: Sequence[_Missing], left: int) -> None:
        """Carry out trials, or runs, of a suite; `left` are to follow."""
        place = self.places[0] / "work" / suite.key
        folders = {place / _folder_name(each): each for each in missing}
        began = time.monotonic()
        for done, outcome in enumerate(carry_out_all(self._tasks(suite, folders), self.jobs), start=1):
            each = folders[outcome.task.folder]
            self.failed += [outcome.problem] if outcome.problem else []
            told = "failed"
            if not outcome.problem or outcome.is_final:  # what may succeed the next time has no entry
                entry = entry_of(each.made, each.changes, None if outcome.problem else outcome.task.folder)
                own = each.file.trials if each.is_trial else each.file.runs
                own[:] = [*(old for old in own if (old.seed, old.changes) != (entry.seed, entry.changes)), entry]
                each.file.write(self.places[0])
                told = "failed" if entry.score is None else f"{entry.score:.3f}"
            self._took.append(time.monotonic() - began)
            began = time.monotonic()
            ahead = left + len(missing) - done
            time_left = format_seconds(sum(self._took) / len(self._took) * ahead)
            self.say(f"{suite.key}: {each.title}: {told} (at most {ahead:,} left, about {time_left})")

    def _leave_out(self, file: ResultFile, why: str) -> None:
        """Note why a method cannot take a suite, once."""
        if not file.left_out:
            file.left_out = why
            file.write(self.places[0])
            self.say(f"{file.suite}: {file.title} is left out: {why}")

    def _tasks(self, suite: Suite, folders: dict[Path, _Missing]) -> Iterator[RecipeTask]:
        """Yield a task for each of the methods that can take the suite; note why the others cannot."""
        for folder, each in ((folder, each) for folder, each in folders.items() if not each.file.left_out):
            try:
                settings = suite.cut(each.made, each.is_trial)
                if each.is_first:
                    check_runs([Experiment(settings)])
            except InputError as error:
                if each.is_first:
                    self._leave_out(each.file, str(error))
                else:
                    self.say(f"{suite.key}: {each.title} is left out: {error}")
                continue
            yield RecipeTask(suite.key, each.title, folder, (settings,))


def _folder_name(missing: _Missing) -> str:
    """Return the name of a trial's or a run's folder, unique among all of a suite."""
    told = slug(f"{missing.file.method} {' '.join(missing.changes)} {missing.made.seed}")
    return f"{told[:90]}-{digest_anywhere(missing.made)[:8]}"
