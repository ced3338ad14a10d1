"""Everything that a page of reproduced figures shows, read from folders."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll.report.reading.runs import Run, read_begun
from atoll.reproduce.claims import Paper, is_trained
from atoll.reproduce.costs import RunCost, cost_of
from atoll.reproduce.evidence import LEAST_SEEDS
from atoll.reproduce.judging import Verdict, judge
from atoll.reproduce.recipe_plans import read_plans
from atoll.settings import experiment_file as config


@dataclass(frozen=True)
class ClaimResult:
    """A recipe, its runs, and the verdicts on its claims.

    Attributes:
        description: what it shows.
        runs: the runs that have started.
        plans: clusterings, if nothing is trained.
        expected: how many runs or clusterings it has.
        verdicts: one per claim.
        cost: the time that its runs took; None if none is finished.
        problems: what went wrong, one sentence each.
    """

    recipe: str
    description: str
    runs: tuple[Run, ...]
    plans: tuple[Mapping[str, Any], ...]
    expected: int
    verdicts: tuple[Verdict, ...]
    cost: RunCost | None
    problems: tuple[str, ...] = ()

    @property
    def finished(self) -> int:
        """How many of its runs are finished, or of its clusterings made."""
        return len(self.plans) or sum(run.finished for run in self.runs)


def at_largest_scale(results: Sequence[ClaimResult]) -> ClaimResult:
    """Return a recipe's results, given the largest scale first, with each claim at the scale at which it counts."""
    counted = tuple(map(_counted, zip(*(result.verdicts for result in results), strict=True)))
    finished = [result for result in results if result.finished] or [results[-1]]
    shown = next((result for result in finished if any(each in result.verdicts for each in counted)), finished[0])
    return replace(shown, verdicts=counted, problems=tuple(told for result in results for told in result.problems))


def _counted(own: Sequence[Verdict]) -> Verdict:
    """Return a claim's verdict at the largest scale that has the seeds required, or else any; a begun scale waits."""
    run = [one for one in own if one.status != "not run"]
    return next((one for one in run if one.seeds >= LEAST_SEEDS), (run or own[-1:])[0])


def gather(
    recipe: str,
    papers: Sequence[Paper],
    scale: str,
    folder: Path,
    problems: Sequence[str] = (),
    expected: int = 0,
    refused: Collection[Path] = (),
) -> ClaimResult:
    """Return what a recipe's folder holds, without refused runs, of so many expected, and verdicts on its claims."""
    claims = [claim for paper in papers for claim in paper.claims if claim.recipe == recipe]
    trained = is_trained(recipe, papers)
    found, faults = read_begun([folder]) if trained else ([], [])
    runs = [run for run in found if run.folder not in refused]
    plans = () if trained else tuple(read_plans(folder)["plans"])
    return ClaimResult(
        recipe=recipe,
        description=str(config.read_experiment(recipe).get("description", "")),
        runs=tuple(runs),
        plans=plans,
        expected=max(expected, len(plans or runs)),
        verdicts=tuple(judge(claim, runs, plans, scale, "".join(problems[:1])) for claim in claims),
        cost=cost_of(recipe, runs),
        problems=(*problems, *(f"left out: {fault}" for fault in faults)),
    )
