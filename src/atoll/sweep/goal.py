"""What a sweep compares: a column at the last probe, or the cost of reaching a target."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from warnings import warn

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.report.reading.runs import NotBegun, read_run
from atoll.report.tables.run_tables import first_met
from atoll.report.tables.writing import target_name
from atoll.runs.columns import SPENT, rises
from atoll.runs.named_probes import probe_of
from atoll.runs.probes import check_probes
from atoll.runs.run_folder import RunFolder
from atoll.settings.validation import Settings
from atoll.support.errors import InputError, SettingWarning
from atoll.support.wording import unknown

COSTS = ("round", "virtual_time", "wall_time", "client_updates", "bytes_up", "bytes_down")
"""Columns that grow whatever is learned, and so are compared at the probe that reaches a target."""

METRICS = (
    *("test_accuracy", "test_loss", "train_loss", "local_loss", "perplexity", "ari"),
    *("mean_cluster_accuracy", "worst_cluster_accuracy", "parameter_error", "h_device", "h_cluster"),
)
"""Columns of numbers that a run may record, costs aside."""


@dataclass(frozen=True)
class Goal:
    """The criterion by which settings are compared.

    Attributes:
        metric: the column; a cost, such as virtual_time, needs a target, and no other column has one.
        target: the value to reach, at the least cost.
        of: the column in which the target is to be reached.
    """

    metric: str
    target: float | None = None
    of: str = "test_accuracy"

    @property
    def rises(self) -> bool:
        """Whether more is better."""
        return rises(self.metric)

    @property
    def title(self) -> str:
        """The heading of a table's column."""
        return self.metric if self.target is None else f"{self.metric} to {target_name(self.of, self.target)}"

    def read(self, folder: Path) -> tuple[float, float] | None:
        """Return a run's value at its last and at its best probe; a cost, twice, at the probe that reaches the target.

        A run that missed the target has inf; one that is unfinished or has not recorded the column, None.
        """
        try:
            run = read_run(folder)
        except InputError as error:
            if RunFolder(folder).is_run and not isinstance(error, NotBegun):
                warn(f"left out: {error}", SettingWarning, 2)
            return None
        values = run.rows.get(self.metric, np.full(1, np.nan))
        known = np.isfinite(values)
        is_held = known[-1] if self.target is None else known.any()
        if run.finished and not is_held:
            where = "last row has" if known.any() else "rows have"
            warn(f"left out: {folder}: its {where} no {self.metric}", SettingWarning, 2)
        if not run.finished or not is_held:
            return None
        if self.target is not None:
            probe = first_met(run.rows[self.of], self.target, not rises(self.of))
            cost = np.inf if probe is None else float(values[probe])
            return None if np.isnan(cost) else (cost, cost)
        return float(values[-1]), float(np.nanmax(values) if self.rises else np.nanmin(values))


def make_goal(metric: str | None, target: float | None, of: str, runs: Iterable[Settings] = ()) -> Goal:
    """Return what is compared: by default `of`, or with a target the virtual time until it is reached.

    Args:
        metric: the column; None for the default.
        target: the value of `of` to reach.
        of: test_accuracy for classification, test_loss for regression.
        runs: their custom probes may add columns.
    """
    metric = metric or (of if target is None else "virtual_time")
    require_column(metric, runs, (*METRICS, *COSTS))
    is_share = of == "test_accuracy"
    if metric in COSTS and target is None:
        raise InputError(
            f"--metric {metric}: is a cost, compared once a {of} is reached; add --target, such as "
            f"--target {0.8 if is_share else 0.1}"
        )
    if metric not in COSTS and target is not None:
        raise InputError(f"--target {target}: needs a cost to compare: --metric {' or '.join(COSTS)}")
    if target is not None and not (0 < target <= 1 if is_share else 0 < target < np.inf):
        raise InputError(f"--target {target}: must be greater than 0" + " and at most 1" * is_share)
    return Goal(metric, target, of)


def require_column(metric: str, runs: Iterable[Settings], built_in: tuple[str, ...] = METRICS) -> None:
    """Reject a metric that is not built in and that no run records."""
    if metric in built_in:
        return
    own = {column for settings in runs if settings.run.probes for column in check_probes(Experiment(settings))}
    own |= {SPENT for settings in runs if settings.privacy.trust != "none"}
    if metric not in own:
        probe = probe_of(metric)
        missing = f"no run records it; add --set 'run.probes=[\"{probe}\"]'" if probe else None
        raise InputError(f"--metric {metric}: {missing or unknown(metric, (*built_in, *own))}")
