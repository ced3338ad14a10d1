"""Windows of a series: consecutive rows as the input, and a later row's target."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.data.tabular.table_rows import LEFT_OUT, TEST, TRAIN, Codes, Uses, in_order
from atoll.support.arrays import Ids
from atoll.support.errors import InputError


@dataclass(frozen=True, eq=False)
class Windows:
    """The samples that a table's rows make.

    Attributes:
        inputs: the rows of each sample's input, [samples, window].
        targets: the row of each sample's target, [samples].
    """

    inputs: Ids
    targets: Ids


def find_windows(uses: Uses, owners: Codes, times: Any, window: int, horizon: int) -> Windows:
    """Return all windows of `window` consecutive rows of one client, by time, and the row `horizon` after the last.

    Gaps in time are ignored, and rows that are left out do not exist. A window has the use of its target's row, but a
    training window that contains a test row is left out.
    """
    rows = np.flatnonzero(uses != LEFT_OUT)
    order = rows[in_order(owners[rows], times[rows])]
    own, when = owners[order], times[order]
    if (doubled := np.flatnonzero((own[1:] == own[:-1]) & (when[1:] == when[:-1]))).size:
        one, other = order[doubled[0]], order[doubled[0] + 1]
        raise InputError(f"data.time: rows {one} and {other} have the same client and the same time")
    last = np.arange(window - 1 + horizon, len(order))
    last = last[own[last - window + 1 - horizon] == own[last]]
    places = last[:, None] - horizon - np.arange(window)[::-1]
    tested = np.concatenate([[0], np.cumsum(uses[order] == TEST)])
    looks_ahead = (uses[order[last]] == TRAIN) & (tested[last - horizon + 1] > tested[last - horizon - window + 1])
    made = Windows(order[places[~looks_ahead]], order[last[~looks_ahead]])
    for use, what in ((TRAIN, "training"), (TEST, "the test")):
        if not (uses[made.targets] == use).any():
            raise InputError(
                f"data.window = {window}: no client has {window} rows and one {horizon} later for {what}; lower it"
            )
    return made
