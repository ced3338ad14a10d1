"""How long runs have taken, and how long the remaining ones will."""

from collections.abc import Sequence
from pathlib import Path

from atoll.reproduce.costs import work_of
from atoll.reproduce.recipe_runs import RecipeTask
from atoll.runs.run_folder import RunFolder
from atoll.support.files import whole_lines
from atoll.support.units import format_seconds
from atoll.support.untrusted import parse_json


class ReproduceProgress:
    """The time that tasks took, read from their folders, and an estimate of the time left.

    A run's work is estimated beforehand (`costs.work_of`), and scaled by the time that finished runs of its recipe took
    for theirs; until there is one, by that of all finished runs; until then, not at all. A run whose work is unknown is
    expected to take as long as those of its recipe did. Clusterings count as taking no time.
    """

    def __init__(self, tasks: Sequence[RecipeTask], jobs: int) -> None:
        """Read the folders; `jobs` is how many runs go on at a time."""
        self.tasks, self.jobs = [task for task in tasks if task.is_trained], jobs
        self.work = {task.folder: work_of(task.settings[0]) for task in self.tasks}
        self.seconds: dict[Path, float] = {}
        self.finished: set[Path] = set()
        for task in self.tasks:
            self.take(task)

    def take(self, task: RecipeTask) -> None:
        """Read how far a task is."""
        if task.is_trained:
            self.seconds[task.folder] = seconds_in(task.folder)
            if RunFolder(task.folder).is_finished:
                self.finished.add(task.folder)

    @property
    def spent(self) -> float:
        """Seconds that all runs took so far, each on one core."""
        return sum(self.seconds.values())

    @property
    def left(self) -> float:
        """Seconds that they will still take, without runs of unknown length."""
        return sum(seconds for seconds in self._left() if seconds is not None)

    def _left(self) -> list[float | None]:
        """Return the seconds left for each unfinished run; None if unknown."""
        done: dict[str, list[Path]] = {}
        for task in self.tasks:
            if task.folder in self.finished:
                done.setdefault(task.recipe, []).append(task.folder)
        usual = self._rate([folder for folders in done.values() for folder in folders]) or 1.0
        rates = {recipe: self._rate(folders) or usual for recipe, folders in done.items()}
        means = {recipe: sum(self.seconds[each] for each in folders) / len(folders) for recipe, folders in done.items()}
        left: list[float | None] = []
        for task in (task for task in self.tasks if task.folder not in self.finished):
            work = self.work[task.folder]
            whole = means.get(task.recipe) if work is None else work * rates.get(task.recipe, usual)
            left.append(None if whole is None else max(whole - self.seconds[task.folder], 0.0))
        return left

    def _rate(self, folders: Sequence[Path]) -> float | None:
        """Return how many seconds these runs took per second of estimated work; None if unknown."""
        pairs = [(self.seconds[folder], work) for folder in folders if (work := self.work[folder])]
        return sum(seconds for seconds, _ in pairs) / sum(work for _, work in pairs) if pairs else None

    def __str__(self) -> str:
        """Return the progress as a clause, such as '2.1 h spent, about 40 min left'."""
        if not self.tasks:
            return "nothing is trained"
        spent, left = f"{format_seconds(self.spent)} spent", self._left()
        if not left:
            return f"{spent}, nothing left"
        at_once = f" with {self.jobs} at a time" if self.jobs > 1 else ""
        unknown = f", and {count} of unknown length" if (count := left.count(None)) else ""
        return f"{spent}, about {format_seconds(self.left / self.jobs)} left{at_once}{unknown}"


def seconds_in(folder: Path) -> float:
    """Return the wall time of a run's last whole row; 0 if there is none, or it cannot be read."""
    try:
        return float(parse_json(whole_lines(folder / "metrics.jsonl", folder)[-1])["wall_time"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0.0
