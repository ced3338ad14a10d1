"""Results over seeds as tables of text and as comma-separated values."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from atoll.report.tables.formats import DASH, TextTable, csv_table, show_p, upright
from atoll.report.tables.run_tables import CLOCKS_NOTE, COSTS, OWN_SECONDS, OWN_SECONDS_NOTE, Row
from atoll.report.tables.spread import USUAL, Difference, Spread
from atoll.report.tables.writing import MAX_PROBED, narrow_table, probe_table, target_name, texts_of
from atoll.runs.columns import column_title, is_share
from atoll.support.estimates import Band, Estimate
from atoll.support.units import byte_unit, time_unit

_HALF = {"interval": "half of its 95 % t interval", "spread": "the sample standard deviation"}
_TITLES = {"train_loss": "Final loss", "test_accuracy": "Final accuracy", "ari": "Final ARI"}
Column = tuple[str, float, int]  # title, factor from stored to shown values, digits after the point


def final_table(spreads: Sequence[Spread], band: Band = "interval", shown: Sequence[str] | None = None) -> TextTable:
    """Return final results over seeds, or only the columns to be `shown`; unknown values are en dashes."""
    return TextTable(_final_cells(spreads, band, shown), texts_of(spreads), final_note(spreads, band))


def target_table(spreads: Sequence[Spread], band: Band = "interval") -> TextTable:
    """Return the costs of targets over seeds, a line for each target and setting."""
    return TextTable(_target_cells(spreads, band), 1 + texts_of(spreads), targets_note(spreads, band))


def spread_as_csv(spreads: Sequence[Spread]) -> str:
    """Return all results over seeds as comma-separated values, numbers in full, columns such as test_accuracy_mean."""
    return csv_table([_record(spread) for spread in spreads])


def narrow_tables(rows: Sequence[Row], spreads: Sequence[Spread], band: Band = "interval") -> list[TextTable]:
    """Return the tables for the terminal: results over seeds, or of single runs if no setting has several seeds."""
    if not spreads:
        return [narrow_table(rows), *([probes] if (probes := probe_table(rows)) else [])]
    probed = [name for name in _shown(spreads) if name not in USUAL]
    many = len(probed) > MAX_PROBED
    shown = [name for name in _shown(spreads) if not many or name not in probed]
    tables = [final_table(spreads, band, shown)]
    if many:
        header, *lines = _final_cells(spreads, band, probed, whole=False)
        texts = texts_of(spreads)
        cells = [["Over seeds", *header[texts + 1 :]]]
        cells += [[" ".join(filter(None, line[:texts])), *line[texts + 1 :]] for line in lines]
        tables.append(TextTable(upright(cells), 1))
    if any(spread.targets for spread in spreads):
        tables.append(target_table(spreads, band))
    return tables


def final_note(spreads: Sequence[Spread], band: Band = "interval") -> str:
    """Return the note below final results, which names the test if there is a baseline."""
    note = f"Final values of finished runs: mean ± {_HALF[band]} over seeds.{_missing_note(spreads)}"
    return f"{note} {_difference_note(spreads)}" if any(spread.difference for spread in spreads) else note


def _difference_note(spreads: Sequence[Spread]) -> str:
    """Return what differences to a baseline are, and the test behind their p values."""
    told = [(spread, spread.difference) for spread in spreads if spread.difference is not None]
    first, counts = told[0][1], Counter((spread.panel, spread.dataset) for spread, each in told if each.p is not None)
    what = " or ".join(dict.fromkeys(column_title(each.column).lower() for _, each in told))
    of = "all comparisons in a panel" if len(counts) > 1 else f"{counts.total()} comparisons"
    many = f", corrected for {of} by Holm's method" if max(counts.values(), default=0) > 1 else ""
    return (
        f"Difference: in final {what} to {first.baseline}, over the seeds of both, with its 95 % t interval. "
        f"p: two-sided paired t test over seeds{many}."
    )


def targets_note(spreads: Sequence[Spread], band: Band = "interval") -> str:
    """Return the note below the costs of targets."""
    note = f"Mean ± {_HALF[band]} over seeds; no mean if a seed missed the target. Time is virtual, bytes up and down."
    note += _missing_note(spreads) + f" {CLOCKS_NOTE}" * (len({spread.on_network for spread in spreads}) > 1)
    return f"{note} {OWN_SECONDS_NOTE}" if any(spread.own_seconds for spread in spreads) else note


def show_difference(found: Difference) -> str:
    """Return a difference as text, with its interval; of accuracies in percentage points."""
    factor, digits = (100.0, 2) if found.column.endswith("accuracy") else (1.0, 4)
    text = f"{factor * found.estimate.mean:+.{digits}f}"
    half = found.estimate.half()
    return text if half is None else f"{text} ± {factor * half:.{digits}f}"


def _final_cells(
    spreads: Sequence[Spread], band: Band, shown: Sequence[str] | None = None, whole: bool = True
) -> list[list[str]]:
    """Return final results as text, header first; with differences, if `whole` and there is a baseline."""
    shown = _shown(spreads) if shown is None else shown
    columns = {name: _column_of(name, [one.final[name] for one in spreads if name in one.final]) for name in shown}
    differ = whole and any(spread.difference for spread in spreads)
    header = [*_head(spreads), "Seeds", *(columns[name][0] for name in shown), *(["Difference", "p"] if differ else [])]
    return [header] + [
        [
            *_name(spread, spreads),
            _seeds(spread),
            *(_write(spread.final.get(name), columns[name], band) for name in shown),
            *(_difference(spread.difference) if differ else []),
        ]
        for spread in spreads
    ]


def _target_cells(spreads: Sequence[Spread], band: Band) -> list[list[str]]:
    """Return the costs of targets as text, header first: targets in turn, in each a line for each setting."""
    every = [target for spread in spreads for target in spread.targets]
    columns = [_cost_column(name, [each.costs[name] for each in every if name in each.costs]) for name in COSTS]
    cells = [["Target", *_head(spreads), "Seeds", *(title for title, _, _ in columns)]]
    for place, target in enumerate(next(spread.targets for spread in spreads if spread.targets)):
        for spread in (one for one in spreads if one.targets):
            own = spread.targets[place]
            costs = [_write(own.costs.get(name), column, band) for name, column in zip(COSTS, columns, strict=True)]
            missing = spread.planned - len(spread.seeds)
            seeds = f"{own.reached} of {len(spread.seeds)}" + f", {missing} missing" * bool(missing)
            name = _name(spread, spreads, OWN_SECONDS * spread.own_seconds)
            cells.append([target_name(target.metric, target.target), *name, seeds, *costs])
    return cells


def _record(spread: Spread) -> dict[str, Any]:
    named = {"panel": spread.panel, "label": spread.label, "seeds": " ".join(map(str, spread.seeds))}
    record: dict[str, Any] = {**named, "finished": len(spread.seeds), "planned": spread.planned}
    for column, found in spread.final.items():
        record |= as_columns(column, found)
    for target in spread.targets:
        prefix = f"to_{target.target:g}_"
        record[f"{prefix}seeds"] = target.reached
        for cost, found in target.costs.items():
            record |= as_columns(prefix + cost, found)
    if spread.difference is not None:
        record |= as_columns("difference", spread.difference.estimate) | {"difference_p": spread.difference.p}
    return record


def as_columns(name: str, found: Estimate | None) -> dict[str, float | None]:
    """Return an estimate as plain values for columns such as test_accuracy_mean; all None without one."""
    columns = {"mean": "mean", "std": "std", "ci_low": "low", "ci_high": "high"}
    return {f"{name}_{column}": getattr(found, field, None) for column, field in columns.items()}


def _head(spreads: Sequence[Spread]) -> list[str]:
    return ["Panel", "Run"] if texts_of(spreads) > 1 else ["Run"]


def _name(spread: Spread, spreads: Sequence[Spread], mark: str = "") -> list[str]:
    return [*([spread.panel] if texts_of(spreads) > 1 else []), spread.label + mark]


def _seeds(spread: Spread) -> str:
    done = len(spread.seeds)
    return str(done) if done == spread.planned else f"{done} of {spread.planned}"


def _missing_note(spreads: Sequence[Spread]) -> str:
    planned = sum(spread.planned for spread in spreads)
    missing = planned - sum(len(spread.seeds) for spread in spreads)
    return f" {missing} of the {planned} runs are missing or not finished." if missing else ""


def _difference(found: Difference | None) -> list[str]:
    return [DASH, DASH] if found is None else [show_difference(found), show_p(found.p)]


def _shown(spreads: Sequence[Spread]) -> list[str]:
    """Return the columns of any setting, accuracy and loss first, then custom ones by name."""
    order = ("test_accuracy", *(name for name in USUAL if name != "test_accuracy"))
    known = {name for spread in spreads for name in spread.final}
    return [name for name in order if name in known] + sorted(known - set(order))


def _column_of(name: str, found: Sequence[Estimate]) -> Column:
    title = _TITLES.get(name) or f"Final {column_title(name).lower()}"
    if is_share(name):
        return f"{title} (%)", 100.0, 2
    return title, 1.0, 3 if name == "ari" else _digits(found)


def _cost_column(name: str, found: Sequence[Estimate]) -> Column:
    most = max((each.mean for each in found), default=0.0)
    if name == "virtual_time":
        unit = time_unit(most)
        return f"Time ({unit.symbol})", 1 / unit.seconds, _digits(found, 1 / unit.seconds)
    if name == "bytes_sent":
        length, symbol = byte_unit(most)
        return f"Sent ({symbol})", 1 / length, _digits(found, 1 / length)
    return {"round": "Rounds", "client_updates": "Client updates"}[name], 1.0, int(any(e.std for e in found))


def _digits(found: Sequence[Estimate], factor: float = 1.0) -> int:
    """Return how many decimals, at most six, leave the smallest mean and the middle half width two that count."""
    least = min((abs(factor * each.mean) for each in found if each.mean), default=1.0)
    halves = sorted(factor * half for each in found if (half := each.half()))
    least = min(least, halves[len(halves) // 2]) if halves else least
    return max(0, min(6, 1 - math.floor(math.log10(least))))


def _write(found: Estimate | None, column: Column, band: Band) -> str:
    if found is None:
        return DASH
    _, factor, digits = column
    text, half = f"{factor * found.mean:,.{digits}f}", found.half(band)
    return text if half is None else f"{text} ± {factor * half:,.{digits}f}"
