"""Carrying out what is missing of the benchmark: a method's trials on a suite, then its runs as the best one was."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atoll.benchmark.entrants import Entrant
from atoll.benchmark.result_files import ResultFile, entry_of, gather
from atoll.benchmark.suites import Suite
from atoll.report.reading.units import format_seconds
from atoll.reproduce.kept_runs import digest_anywhere
from atoll.reproduce.recipe_runs import RecipeTask, carry_out_all
from atoll.runs.run_folder import slug
from atoll.settings.validation import Settings
from atoll.support.errors import InputError

WORK = "work"


@dataclass(frozen=True)
class _Wanted:
    """A trial or a run that is missing."""

    entrant: Entrant
    changes: list[str]
    made: Settings
    is_trial: bool


@dataclass
class Campaign:
    """What is to be carried out, and how it goes.

    Attributes:
        suites: the suites.
        entrants: the methods.
        trials: trials of each method on each suite.
        seeds: runs of each, with seeds from 0 on.
        place: the folder for results.
        others: folders of results that count as done.
        jobs: runs at a time.
        say: reports progress.
        left_out: by suite and method, why it cannot take part.
        failed: runs that failed, one sentence each.
    """

    suites: Sequence[Suite]
    entrants: Sequence[Entrant]
    trials: int
    seeds: int
    place: Path
    others: Sequence[Path] = ()
    jobs: int = 1
    say: Callable[[str], None] = print
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    _spent: list[float] = field(default_factory=list)

    @property
    def places(self) -> tuple[Path, ...]:
        """All folders of results."""
        return (self.place, *self.others)

    def carry_out(self) -> None:
        """Carry out all trials and runs that no result file has.

        Raises:
            InputError: no method can start with a suite's budget, or a result file cannot be read.
        """
        left = sum(1 for suite in self.suites for one in self.entrants for _ in self._missing(suite, one))
        self.say(f"{left:,} runs and trials to do")
        for suite in self.suites:
            _ = suite.budgets
            files = {each.name: gather(self.places, suite.key, each) for each in self.entrants}
            for is_trial in (True, False):
                wanted = [
                    each
                    for one in self.entrants
                    for each in self._wanted(suite, one, files[one.name], is_trial)
                    if files[one.name].find(digest_anywhere(each.made)) is None
                ]
                wanted.sort(key=lambda each: each.made.seed)
                left -= self._carry_out(suite, wanted, files, left)

    def _missing(self, suite: Suite, entrant: Entrant) -> Iterator[None]:
        found = gather(self.places, suite.key, entrant)
        count = len(entrant.trials(self.trials)) + self.seeds - len(found.trials) - len(found.runs)
        yield from [None] * max(0, count)

    def _wanted(self, suite: Suite, entrant: Entrant, file: ResultFile, is_trial: bool) -> Iterator[_Wanted]:
        """Yield an entrant's trials; or its runs, with what its best trial had."""
        if (suite.key, entrant.name) in self.left_out:
            return
        tried = entrant.trials(self.trials)
        if is_trial:
            yield from (_Wanted(entrant, changes, suite.trial(entrant, changes), True) for changes in tried)
            return
        best = file.best
        if best is None:
            self._leave_out(file, "none of its trials came to an end")
            return
        for seed in range(self.seeds):
            yield _Wanted(entrant, best.changes, suite.run(entrant, best.changes, seed), False)

    def _carry_out(self, suite: Suite, wanted: Sequence[_Wanted], files: dict[str, ResultFile], left: int) -> int:
        """Carry out trials, or runs, of a suite; return how many."""
        by_folder = {self.place / WORK / suite.key / _folder(each): each for each in wanted}
        began = time.monotonic()
        for done, outcome in enumerate(carry_out_all(self._tasks(suite, by_folder, files), self.jobs), start=1):
            own = by_folder[outcome.task.folder]
            if outcome.problem:
                self.failed.append(outcome.problem)
            file = files[own.entrant.name]
            entry = entry_of(own.made, own.changes, None if outcome.problem else outcome.task.folder)
            (file.trials if own.is_trial else file.runs).append(entry)
            file.write(self.place)
            self._spent.append(time.monotonic() - began)
            began = time.monotonic()
            ahead = format_seconds(sum(self._spent) / len(self._spent) * (left - done))
            score = entry.last("client_score")
            told = "failed" if score is None else f"{score:.3f}"
            self.say(f"{suite.name}: {outcome.task.title}: {told} ({left - done:,} left, about {ahead})")
        return len(wanted)

    def _leave_out(self, file: ResultFile, why: str) -> None:
        """Note why a method cannot take a suite, once."""
        if (file.suite, file.method) not in self.left_out:
            self.left_out[file.suite, file.method] = file.left_out = why
            file.write(self.place)
            self.say(f"{file.suite}: {file.title} is left out: {why}")

    def _tasks(
        self, suite: Suite, by_folder: dict[Path, _Wanted], files: dict[str, ResultFile]
    ) -> Iterator[RecipeTask]:
        """Yield a task for each that its method can take; note why the others cannot be."""
        for folder, each in by_folder.items():
            is_first = each.is_trial and each.changes == each.entrant.trials(1)[0]
            try:
                settings = suite.cut(each.made, each.is_trial)
                if is_first:
                    suite.check(settings)
            except InputError as error:
                if is_first or not each.is_trial:
                    self._leave_out(files[each.entrant.name], str(error))
                continue
            title = f"{each.entrant.title}, " + (", ".join(each.changes) if each.is_trial else f"seed {each.made.seed}")
            yield RecipeTask(suite.name, title, folder, (settings,))


def _folder(each: _Wanted) -> str:
    kind = " ".join(each.changes) if each.is_trial else f"seed {each.made.seed} {digest_anywhere(each.made)[:8]}"
    return slug(f"{each.entrant.name} {kind}")
