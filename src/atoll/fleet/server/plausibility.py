"""Plausible client reports: no single report may dominate or break a plan."""

from collections.abc import Callable, Mapping
from statistics import median_low
from typing import Literal

from atoll.fleet.agreed.messages import ClientReport
from atoll.support.errors import InputError

Reports = Mapping[int, ClientReport]

MOST_SLOTS = 1440  # slots in a day if no clustering sets their number: one a minute


def believe(
    reports: Reports, agreed: Mapping[int, int], samples_limit: float | Literal["off"], slots: int = MOST_SLOTS
) -> tuple[dict[int, ClientReport], dict[int, str]]:
    """Return the reports that plans use, and by client what was corrected.

    A client's samples are those agreed on in ``fleet.toml``, or else the reported ones, capped at `samples_limit` times
    the median. A client that lists impossible slots of the day counts as always available, since otherwise nobody's
    slots could be used.
    """
    believed, remarks = {}, {}
    most = _most(reports, agreed, samples_limit)
    for client, report in reports.items():
        changes, told = dict[str, object](), list[str]()
        samples = agreed.get(client, report.samples if most is None else min(report.samples, most))
        if samples != report.samples:
            changes["samples"] = samples
            why = (
                "fleet.toml has another number"
                if client in agreed
                else f"the most is fleet.samples_limit = {samples_limit:g} times the median"
            )
            told.append(f"holds {report.samples} samples and counts for {samples}, since {why}")
        if report.slots is not None and max(report.slots, default=0) >= slots:
            changes["slots"] = tuple(range(slots))
            told.append(f"can train in slot {max(report.slots)} of {slots} and counts as always there")
        if told:
            remarks[client] = ", and ".join(told)
        believed[client] = report.model_copy(update=changes) if changes else report
    return believed, remarks


def require_own(depends: Callable[[int], int], reports: Reports, believed: Reports, setting: str, works: str) -> None:
    """Reject corrected samples where nodes go by their own, if what `depends` on them would differ."""
    for client, report in reports.items():
        if depends(counted := believed[client].samples) != depends(report.samples):
            raise InputError(
                f"{setting}: client {client} holds {report.samples} samples and would count for {counted}, but its "
                f"node {works}; set fleet.samples_limit = 'off', or agree on them in fleet.toml"
            )


def _most(reports: Reports, agreed: Mapping[int, int], limit: float | Literal["off"]) -> int | None:
    """Return the cap on samples that only the client itself reports; None: no cap.

    The lower median, so that with two clients the larger report does not set its own cap.
    """
    if limit == "off" or not reports:
        return None
    told = [agreed.get(client, report.samples) for client, report in reports.items()]
    return max(1, int(limit * median_low(told)))
