"""Plans of live runs, based on clients' reports and revised from measurements."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from atoll.engine.method import Method
from atoll.experiment.conditions import ReportedClients
from atoll.experiment.experiment import Experiment
from atoll.fleet.agreed.messages import ClientReport
from atoll.fleet.agreed.transport import samples_of
from atoll.fleet.server.client_reports import ReportedTable, as_reported, only_samples, reported_table
from atoll.fleet.server.clustering_log import Clustered, as_told, read_clusterings
from atoll.fleet.server.fleet_executor import FleetExecutor
from atoll.fleet.server.joining import Joined, ask_again
from atoll.fleet.server.measured_times import MeasuredTimes, cells_of
from atoll.fleet.server.plausibility import MOST_SLOTS, believe, require_own
from atoll.network.network import Network
from atoll.settings.choices import clustering_needs, method_kind, method_needs, uses_network
from atoll.support.errors import InputError, reading
from atoll.support.files import append_line, line_as_bytes, write_atomically

_ASKING_SECONDS = 10.0  # nodes that are busy longer keep their last report
_CLASSES = "class counts"
_GOES_BY = {
    "timezone": "UTC offsets",
    "availability": "slots of the day",
    "major-class": _CLASSES,
    "dataw": _CLASSES,
    "feduc": _CLASSES,
}
_CANNOT = {
    "random": "goes by nothing that is reported or measured",
    "comaw": "puts clients where their upload is shortest, but on a fleet there is one way to the server for each",
}


def require_reclustering(experiment: Experiment) -> None:
    """Reject `fleet.recluster_every` if clusters cannot depend on measurements."""
    settings = experiment.settings
    if settings.fleet.recluster_every is None:
        return
    begin = f"fleet.recluster_every = {settings.fleet.recluster_every}:"
    name = settings.clustering.method
    if not method_needs(experiment.settings, "clustering"):
        raise InputError(f"{begin} method.name = {settings.method.name!r} has no clustering that could be made anew")
    if name in _CANNOT or not clustering_needs(settings, "population", "network", "problem"):
        raise InputError(f"{begin} clustering.method = {name!r} {_CANNOT.get(name, _CANNOT['random'])}")
    for other in ("trace_file", "metres_per_round", "recluster_every"):
        if getattr(settings.network, other) is not None:
            raise InputError(f"network.{other}: cannot be used with fleet.recluster_every, which knows no positions")
    for limit in ("virtual_seconds", "client_updates"):
        if (most := getattr(settings.run, limit)) is not None:
            raise InputError(
                f"run.{limit} = {most:g}: cannot be used with fleet.recluster_every, which changes the plan; set rounds"
            )


class Planner:
    """Makes a live run's plan, and revises it every `fleet.recluster_every` rounds."""

    def __init__(
        self,
        experiment: Experiment,
        executor: FleetExecutor,
        joined: Joined,
        path: Path,
        resume: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Plan from reports, or restore a resumed run's plan from the file with a line per clustering."""
        self._executor = executor
        self._reports = dict(joined.reports)
        self._path = path
        self._tell = tell
        again = "; add --overwrite to start again"
        with reading("--resume"):
            self._lines = read_clusterings(path, len(experiment.population), again) if resume and path.exists() else []
        self._doubted: dict[int, str] = {}
        self._agreed: dict[int, int] = {}  # also of nodes that are away now
        self._settings = experiment.settings
        self.warnings = list[str]()
        table = self._table(self.warnings.append)
        self.warnings += _lacking(experiment, table, joined)
        self._later = list[tuple[int, ReportedClients]]()
        known = ReportedClients(as_reported(experiment.population, table))
        if self._lines:
            known = as_told(known.population, self._lines[0])
        try:
            self.experiment = self._given(experiment, known)
            self._method = self.experiment.method
        except InputError as error:  # one node's report may be enough for that
            told = as_reported(experiment.population, only_samples(table))
            if self._lines or told is known.population:
                raise
            self.warnings.append(f"what nodes report makes no plan ({error}); only their samples are taken")
            self.experiment = self._given(experiment, ReportedClients(told))
            self._method = self.experiment.method

    def begin(self, events_done: int) -> None:
        """Restore the plan in force after this many events, and drop later lines."""
        kept = [line for line in self._lines if line.event <= events_done]
        if not kept:
            if events_done:
                raise InputError(f"--resume: {self._path} is missing or damaged; add --overwrite to start again")
            kept = [self._line(self.experiment, 0)]
        write_atomically(self._path, b"".join(line_as_bytes(line.model_dump()) for line in kept))
        self._lines = kept
        self._later[:] = [(line.round, as_told(self.experiment.conditions.reported, line)) for line in kept]
        if len(kept) > 1:
            self._method = self._made(self.experiment.given(self._later[-1][1]))

    def method(self, events_done: int) -> Method:
        """Return the method with the plan for what follows this many events, revised if it is time."""
        schedule, every = self.experiment.method.schedule, self.experiment.settings.fleet.recluster_every
        if every is None or not self._lines[-1].event < events_done < len(schedule):
            return self._method
        before, now = (schedule.rounds_done(done) // every for done in (events_done - 1, events_done))
        if now > before:
            self._plan_anew(events_done)
        return self._method

    def _plan_anew(self, events_done: int) -> None:
        """Cluster by current knowledge; if that fails, keep the clustering and record why."""
        before = self._lines[-1]
        try:
            experiment = self._anew()
            self._method = self._made(experiment)
            line = self._line(experiment, events_done)
            moved = int((np.array(line.labels) != np.array(before.labels)).sum())
            line = line.model_copy(update={"moved": moved})
            outcome = f"clients are clustered anew, {moved} of {len(line.samples)} moved"
        except InputError as error:
            round_ = self.experiment.method.schedule.rounds_done(events_done)
            kept = {"event": events_done, "round": round_, "moved": 0, "kept": str(error)}
            line = before.model_copy(update=kept)
            outcome = f"clients stay in their clusters ({error})"
        append_line(self._path, line.model_dump())
        self._lines.append(line)
        self._later.append((line.round, as_told(self.experiment.conditions.reported, line)))
        self._tell(f"after round {line.round}: {outcome}")

    def _anew(self) -> Experiment:
        """Return the experiment with current reports and measurements."""
        executor, base = self._executor, self.experiment
        said = ask_again(executor.fleet, executor.agreement, executor.nodes, _ASKING_SECONDS, self._tell)
        executor.attendance.let_back(set(said))
        self._reports |= {client: _with_earlier(report, self._reports.get(client)) for client, report in said.items()}
        executor.samples = {client: report.samples for client, report in self._reports.items()}
        population = as_reported(base.conditions.reported, self._table(lambda told: self._tell(f"warning: {told}")))
        measured = executor.measured if uses_network(base.settings) else None
        network = None if measured is None else _measured_network(base.conditions.networks[0], measured)
        return base.given(ReportedClients(population, None, network))

    def _given(self, experiment: Experiment, known: ReportedClients) -> Experiment:
        same = known.population is experiment.population and known.clustering is None
        stays = same and experiment.settings.fleet.recluster_every is None
        return experiment if stays else experiment.given(replace(known, later=self._later))

    def _made(self, experiment: Experiment) -> Method:
        """Return the method with a plan that can replace the first."""
        made, first = experiment.method, self.experiment.method
        for name, new, old in (
            ("clusters with clients", made.schedule.clusters, first.schedule.clusters),
            ("events", len(made.schedule), len(first.schedule)),
        ):
            if new != old:
                raise InputError(f"there would be {new} {name}, where the run began with {old}")
        return made

    def _table(self, warn: Callable[[str], None]) -> ReportedTable:
        """Return the plausible reports; warn once per client and reason about corrections."""
        executor, clustering = self._executor, self._settings.clustering
        self._agreed |= {k: n for known in executor.fleet.nodes().values() for k, n in samples_of(known).items()}
        slots = clustering.clusters if clustering.method == "availability" else MOST_SLOTS
        believed, doubted = believe(self._reports, self._agreed, self._settings.fleet.samples_limit, slots)
        if executor.agreement.fixed is not None and executor.agreement.fixed.by_samples:
            works = "weighs it itself, unless method.weights = 'equal'"
            require_own(int, self._reports, believed, "secure.sums = true", works)
        if method_kind(self._settings).steps_from_samples:
            setting, works = f"method.name = {self._settings.method.name!r}", "takes the steps of those that it holds"
            require_own(executor.agreement.rule.steps_of, self._reports, believed, setting, works)
        for client, why in doubted.items():
            if self._doubted.get(client) != why:
                warn(f"node {executor.nodes.get(client)!r} says that client {client} {why}")
        self._doubted = doubted
        return reported_table(believed, executor.agreement.clients)

    def _line(self, experiment: Experiment, events_done: int) -> Clustered:
        clustering = experiment.clustering if method_needs(experiment.settings, "clustering") else None
        measured = self._executor.measured
        return Clustered(
            event=events_done,
            round=self.experiment.method.schedule.rounds_done(events_done),
            clusters=None if clustering is None else clustering.clusters,
            labels=None if clustering is None else clustering.labels.tolist(),
            hours=None if clustering is None or clustering.hours is None else list(clustering.hours),
            samples=experiment.conditions.reported.sizes.tolist(),
            seconds_per_sample=cells_of(measured.seconds_per_sample),
            compute_seconds=cells_of(measured.compute_seconds),
            upload_seconds=cells_of(measured.upload_seconds),
        )


def _with_earlier(report: ClientReport, before: ClientReport | None) -> ClientReport:
    """Return a report with missing values filled in from the earlier one, since plans need them from all clients."""
    if before is None:
        return report
    kept = {name: told for name, told in before if getattr(report, name) is None and name != "epsilon"}
    if report.class_counts is None:
        kept["epsilon"] = before.epsilon
    return report.model_copy(update=kept)


def _lacking(experiment: Experiment, table: ReportedTable, joined: Joined) -> list[str]:
    """Return which client does not report what the clustering needs; empty if all do."""
    settings, known = experiment.settings, experiment.population.attributes
    name = settings.clustering.method
    needs_none = name == "feduc" and settings.clustering.get("xi") == "gradients"
    if not method_needs(experiment.settings, "clustering") or name not in _GOES_BY or needs_none:
        return []
    what, reports = _GOES_BY[name], [joined.reports.get(client) for client in range(len(table.slots))]
    complete = {
        "UTC offsets": ~np.isnan(table.utc_offset) | bool({"utc_offset", "longitude"} & known.keys()),
        "slots of the day": np.array([slots is not None for slots in table.slots]) | ("slots" in known),
        _CLASSES: np.array([each is not None and each.class_counts is not None for each in reports]),
    }[what]
    if complete.all():
        return []
    client = int(np.argmin(complete))
    node = f" (node {joined.nodes[client]!r})" if client in joined.nodes else ", whose node is not there,"
    sentence = f"clustering.method = {name!r} goes by {what}, which client {client}{node} does not report"
    if settings.fleet.recluster_every is not None and name != "feduc":  # which uses measurements as well
        raise InputError(f"fleet.recluster_every = {settings.fleet.recluster_every}: {sentence}")
    return [f"{sentence}; what the experiment file makes of them is taken for all clients"]


def _measured_network(network: Network, measured: MeasuredTimes) -> Network:
    """Return the network with measured seconds, with the same upload time to every aggregator.

    Clients without measurements get the median of the others. Downloads are part of what was measured.
    """
    if not measured.replies.any():
        raise InputError("no client has been measured yet")
    compute, upload = (
        np.where(np.isnan(seconds), np.nanmedian(seconds), seconds)
        for seconds in (measured.compute_seconds, measured.upload_seconds)
    )
    uploads = upload[:, None].repeat(network.aggregators, axis=1)
    return replace(network, compute_seconds=compute, upload_seconds=uploads, download_seconds=None)
