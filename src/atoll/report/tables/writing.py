"""Tables of results: plain values, text, and comma-separated values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from atoll.report.tables.formats import DASH, TextTable, csv_table, upright
from atoll.report.tables.run_tables import CLOCKS_NOTE, COSTS, FIRST, OWN_SECONDS_NOTE, STABLE, Reached, Row
from atoll.report.tables.spread import Spread
from atoll.runs.columns import column_title, is_share
from atoll.support.units import format_bytes, format_number, format_seconds

MAX_PROBED = 2  # custom metrics beyond which a terminal is too narrow


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain values for JSON; unknown or unreached ones are None.

    As in the other tables, the adjusted Rand index and custom metrics are included only if some run has them, and
    `stable` only if true.
    """
    unused = (set() if _has_ari(rows) else {"final_ari"}) | (set() if _probed(rows) else {"final"})
    unused |= {"lead", "on_network"} | (set() if any(row.own_seconds for row in rows) else {"own_seconds"})
    unused |= set() if any(row.stable for row in rows) else {"stable"}
    return [{name: value for name, value in asdict(row).items() if name not in unused} for row in rows]


def table_of(rows: Sequence[Row]) -> TextTable:
    """Return the rows as a table for files; unreached targets are en dashes."""
    return TextTable(_cells(rows, *_costs(rows)), texts_of(rows), _note(rows, *_costs(rows)))


def as_csv(rows: Sequence[Row]) -> str:
    """Return the rows as comma-separated values, numbers in full; a target's costs as columns such as to_0.8_round."""
    records = []
    for told in as_dicts(rows):
        targets, final = told.pop("targets"), told.pop("final", {})
        costs = {f"to_{each['target']:g}_{name}": each[name] for each in targets for name in COSTS}
        records.append(told | {f"final_{name}": value for name, value in final.items()} | costs)
    return csv_table(records)


def narrow_table(rows: Sequence[Row]) -> TextTable:
    """Return the rows as a table for the terminal, with only the costs that compare the runs best.

    Too many custom metrics are left to `probe_table`.
    """
    shown = _costs(rows)[: 2 if _lead(rows) != "round" else 1]
    probed = _probed(rows) if len(_probed(rows)) <= MAX_PROBED else []
    return TextTable(_cells(rows, *shown, probed=probed), texts_of(rows), _note(rows, *shown))


def probe_table(rows: Sequence[Row]) -> TextTable | None:
    """Return the metrics that do not fit into `narrow_table`, with runs on the longer side; None without any."""
    probed = _probed(rows)
    if len(probed) <= MAX_PROBED:
        return None
    header = ["At the last evaluation", *map(column_title, probed)]
    lines = [
        [" ".join(filter(None, (row.panel, row.label))), *(show_number(name, row.final.get(name)) for name in probed)]
        for row in rows
    ]
    return TextTable(upright([header, *lines]), 1)


def _note(rows: Sequence[Row], *costs: str) -> str:
    if not any(row.targets for row in rows):
        return ""
    told = " / ".join(cost.replace("_", " ") for cost in costs)
    note = f"To a target: {told} of {STABLE if rows[0].stable else FIRST}."
    if (lead := _lead(rows)) != "round":
        come = "comes" if lead == "virtual_time" else "come"
        note += f" {column_title(lead)} {come} first, since rounds differ in work."
    note += f" {CLOCKS_NOTE}" if len({row.on_network for row in rows}) > 1 else ""
    return f"{note} {OWN_SECONDS_NOTE}" if any(row.own_seconds for row in rows) else note


def texts_of(rows: Sequence[Row] | Sequence[Spread]) -> int:
    """Return how many columns of text a table has: panels, if there are any, and labels."""
    return 2 if any(row.panel for row in rows) else 1


def _lead(rows: Sequence[Row]) -> str:
    return rows[0].lead if rows else "round"


def _costs(rows: Sequence[Row]) -> list[str]:
    """Return the costs of reaching a target, the one that compares these runs best first."""
    return sorted(COSTS, key=_lead(rows).__ne__)


def _has_ari(rows: Sequence[Row]) -> bool:
    return any(row.final_ari is not None for row in rows)


def _probed(rows: Sequence[Row]) -> list[str]:
    """Return the columns of custom evaluation metrics."""
    return list(dict.fromkeys(name for row in rows for name in row.final))


def _cells(rows: Sequence[Row], *costs: str, probed: Sequence[str] | None = None) -> list[list[str]]:
    """Return the table as text, its header first; panel, accuracies, Rand index and custom metrics only if present."""
    panels, aris, probed = texts_of(rows) > 1, _has_ari(rows), _probed(rows) if probed is None else probed
    has_accuracy = not rows or any(row.best_test_accuracy is not None for row in rows)
    header = [*(["Panel"] if panels else []), "Run", "Final loss"]
    header += [*(["Final accuracy", "Best accuracy"] if has_accuracy else [])]
    header += [*(["ARI"] if aris else []), *map(column_title, probed)]
    if rows:
        header += [f"To {target_name(rows[0].metric, r.target)}" for r in rows[0].targets]
    return [header] + [
        [
            *([row.panel] if panels else []),
            row.shown_label,
            DASH if row.final_train_loss is None else format_number(row.final_train_loss),
            *([_percent(row.final_test_accuracy), _percent(row.best_test_accuracy)] if has_accuracy else []),
            *([DASH if row.final_ari is None else f"{row.final_ari:.3f}"] if aris else []),
            *(show_number(name, row.final.get(name)) for name in probed),
            *(_write_costs(reached, costs) for reached in row.targets),
        ]
        for row in rows
    ]


def target_name(metric: str, target: float) -> str:
    """Return what tables call a target; test accuracies have the value alone, in per cent."""
    value = f"{100 * target:g} %" if metric.endswith("accuracy") else f"{target:g}"
    return value if metric == "test_accuracy" else f"{metric} {value}"


def show_number(column: str, value: float | None) -> str:
    """Return a column's value as text, accuracies in per cent."""
    if is_share(column):
        return _percent(value)
    return DASH if value is None else format_number(value)


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.2f} %"


def _write_costs(reached: Reached, costs: Sequence[str]) -> str:
    parts = [_write_cost(cost, getattr(reached, cost)) for cost in costs]
    return DASH if set(parts) == {DASH} else " / ".join(parts)


def _write_cost(cost: str, value: float | None) -> str:
    written = {"virtual_time": format_seconds, "bytes_sent": format_bytes}.get(cost, "{:,}".format)
    return DASH if value is None else written(value)
