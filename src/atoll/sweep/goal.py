"""What a sweep compares: a column at the last probe, or what it costs to reach a target."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from warnings import warn

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.report.reading.runs import NotBegun, read_run
from atoll.report.tables.run_tables import falls, first_met
from atoll.runs.probes import check_probes
from atoll.runs.run_folder import RunFolder
from atoll.settings.sections import Settings
from atoll.support.errors import InputError, SettingWarning
from atoll.support.wording import unknown

COSTS = ("round", "virtual_time", "wall_time", "client_updates", "bytes_up", "bytes_down")
"""Columns that grow whatever is learned: they are compared at the probe that reaches a target."""

METRICS = (
    *("test_accuracy", "test_loss", "train_loss", "local_loss", "ari"),
    *("mean_cluster_accuracy", "worst_cluster_accuracy", "parameter_error", "h_device", "h_cluster"),
)
"""Columns of numbers that a run may record, besides those that count."""


@dataclass(frozen=True)
class Goal:
    """What settings are compared by.

    Attributes:
        metric: the column; a cost such as virtual_time has a target, any other has none.
        target: what is to be reached, at the least cost.
        of: the column that the target is of.
    """

    metric: str
    target: float | None = None
    of: str = "test_accuracy"

    @property
    def rises(self) -> bool:
        """Whether more is better.

        >>> Goal("worst_cluster_accuracy").rises, Goal("test_loss").rises, Goal("virtual_time", 0.8).rises
        (True, False, False)
        """
        return self.metric.endswith(("accuracy", "ari"))

    @property
    def title(self) -> str:
        """What the columns of tables are headed by.

        >>> Goal("virtual_time", 0.8).title, Goal("client_updates", 0.5, "test_loss").title
        ('virtual_time to 80 %', 'client_updates to test_loss 0.5')
        """
        if self.target is None:
            return self.metric
        return f"{self.metric} to " + (
            f"{100 * self.target:g} %" if self.of == "test_accuracy" else f"{self.of} {self.target:g}"
        )

    def read(self, folder: Path) -> tuple[float, float] | None:
        """Return a run's value at its last and at its best probe; of a cost, twice that of the target's probe.

        A run that has not met the target has inf. None is a run that is not finished, or has not recorded the column.
        """
        try:
            run = read_run(folder)
        except InputError as error:
            if RunFolder(folder).is_run and not isinstance(error, NotBegun):
                warn(f"left out: {error}", SettingWarning, 2)
            return None
        values = run.rows.get(self.metric, np.empty(0))
        if not run.finished or not np.isfinite(values).any():
            return None
        if self.target is not None:
            probe = first_met(run.rows[self.of], self.target, falls(self.of))
            cost = np.inf if probe is None else float(values[probe])
            return None if np.isnan(cost) else (cost, cost)
        if not np.isfinite(values[-1]):
            return None
        return float(values[-1]), float(np.nanmax(values) if self.rises else np.nanmin(values))


def make_goal(metric: str | None, target: float | None, of: str, runs: Iterable[Settings] = ()) -> Goal:
    """Return what is compared; by default `of`, or with a target the virtual time to it.

    Args:
        metric: the column; None: as above.
        target: to be reached, a value of `of`.
        of: test_accuracy, or test_loss where nothing is classified.
        runs: whose own probes may measure further columns.

    Raises:
        InputError: a metric that runs do not record, a cost without a target, or a target without a cost.
    """
    metric = metric or (of if target is None else "virtual_time")
    if metric not in (*METRICS, *COSTS):
        own = {column for settings in runs if settings.run.probes for column in check_probes(Experiment(settings))}
        if metric not in own:
            raise InputError(f"--metric {metric}: {unknown(metric, (*METRICS, *COSTS, *own))}")
    if metric in COSTS and target is None:
        raise InputError(
            f"--metric {metric}: is a cost, which is compared where a {of} is reached; add --target, such as "
            f"--target {0.8 if of == 'test_accuracy' else 0.1}"
        )
    if metric not in COSTS and target is not None:
        raise InputError(
            f"--target {target}: goes with a cost, of which the least is best: --metric {' or '.join(COSTS)}"
        )
    if target is not None and not (0 < target <= 1 if of == "test_accuracy" else 0 < target < np.inf):
        raise InputError(f"--target {target}: must be greater than 0" + " and at most 1" * (of == "test_accuracy"))
    return Goal(metric, target, of)
