"""What is believed of clients' reports: no single one may outweigh, or end, what plans are made of."""

from collections.abc import Mapping
from statistics import median_low

from atoll.fleet.agreed.messages import ClientReport
from atoll.support.errors import InputError

MOST_SLOTS = 1440  # of a day, where no clustering says how many: one a minute


def believe(
    reports: Mapping[int, ClientReport], agreed: Mapping[int, int], samples_limit: float | None, slots: int = MOST_SLOTS
) -> tuple[dict[int, ClientReport], dict[int, str]]:
    """Return the reports as plans may use them, and by client what was not believed.

    A client counts for the samples that its owner agreed on (``fleet.toml``), else for as many as it says, but at most
    `samples_limit` times the median. A client that lists slots of the day that there are not counts as always there:
    without it, nobody's slots would be known.

    Args:
        reports: what nodes say, by client.
        agreed: samples agreed on, by client; others' are not known.
        samples_limit: a multiple of the median; None: whatever they say is believed.
        slots: of the day, how many there are.
    """
    believed, remarks = {}, {}
    most = _most(reports, agreed, samples_limit)
    for client, report in reports.items():
        changes: dict[str, object] = {}
        samples = agreed.get(client, report.samples if most is None else min(report.samples, most))
        if samples != report.samples:
            changes["samples"] = samples
            why = (
                "fleet.toml has another number"
                if client in agreed
                else f"the most is fleet.samples_limit = {samples_limit:g} times the median"
            )
            remarks[client] = f"holds {report.samples} samples and counts for {samples}, since {why}"
        if report.slots is not None and max(report.slots, default=0) >= slots:
            changes["slots"] = tuple(range(slots))
            remarks[client] = f"can train in slot {max(report.slots)} of {slots} and counts as always there"
        believed[client] = report.model_copy(update=changes) if changes else report
    return believed, remarks


def require_own_weights(reports: Mapping[int, ClientReport], believed: Mapping[int, ClientReport]) -> None:
    """Refuse clients that count for other samples than they say, in secure sums, which nodes weigh themselves.

    Raises:
        InputError: names the first one.
    """
    for client, report in reports.items():
        if (counted := believed[client].samples) != report.samples:
            raise InputError(
                f"secure.sums = true: client {client} holds {report.samples} samples and would count for {counted}, "
                "but its node weighs it itself; unset fleet.samples_limit, agree on them in fleet.toml, or set "
                "method.weights = 'equal'"
            )


def _most(reports: Mapping[int, ClientReport], agreed: Mapping[int, int], limit: float | None) -> int | None:
    """Return the most samples that a client counts for on its own word; None: any number.

    The lower of two medians, so that of two clients the one that says more is not its own measure.
    """
    if limit is None or not reports:
        return None
    told = [agreed.get(client, report.samples) for client, report in reports.items()]
    return max(1, int(limit * median_low(told)))
