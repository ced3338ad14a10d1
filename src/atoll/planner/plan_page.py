"""The page of a plan: an HTML file with the table, the curves of the race, the map and the first events."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from importlib import resources
from itertools import count
from typing import Any

import numpy as np

from atoll.experiment.cluster_waits import work_ends
from atoll.experiment.experiment import Experiment
from atoll.network.network import Network
from atoll.planner.budget import PlanBudget
from atoll.planner.entrants import Entrant, rows_of, values_of
from atoll.planner.plan_costs import energy_of, price_of
from atoll.planner.plan_scores import busy_seconds
from atoll.planner.plan_table import in_words, judged, table_of, why
from atoll.planner.planning import Field
from atoll.report.page.markup import Body, Cell, paragraph, table
from atoll.report.page.render import assemble
from atoll.runs.columns import column_title, is_share
from atoll.settings.choices import uses_network
from atoll.support.environment import package_versions
from atoll.sweep.axes import short_names

MOST_CLIENTS = 5_000  # on a map
BARS = 300  # of a plan's first pieces of work
_DIGITS = 5  # of numbers in figures


def render(ranked: Sequence[Entrant], budget: PlanBudget, field: Field, command: str) -> str:
    """Return the page of a finished race, self-contained and without network requests."""
    experiment = field.pool.make(ranked[0].plan.candidate.settings)
    network = experiment.conditions.networks[0] if uses_network(experiment.settings) else None
    column, values = budget.column_of(), {each.name: each.plan.candidate.values for each in ranked}
    every = [*values.values(), *(dict(each.values) for each in field.dropped)]
    names = list(dict.fromkeys(name for each in every for name in each))
    axes = [
        {"name": name, "title": short, "texts": list(dict.fromkeys(each[name] for each in every if name in each))}
        for name, short in zip(names, short_names(names), strict=True)
    ]
    data = {
        "axes": axes,
        "plans": [_plan(place, each, budget, field) for place, each in enumerate(ranked, 1)],
        "dropped": {
            "\n".join(each.values.get(name, "") for name in names): f"{in_words(each.name)}: {each.why}"
            for each in field.dropped
        },
        "network": _network(experiment, network),
        "names": {"clients": network and network.client_names, "aggregators": network and network.aggregator_names},
        "isShare": is_share(column),
        "target": budget.target,
        "measured": column_title(column) + " (%)" * is_share(column),
        "columns": [],
        "live": False,
    }
    name = experiment.settings.name
    assets = resources.files("atoll.planner") / "assets"
    return assemble(
        (assets / "plan.html").read_text(encoding="utf-8"),
        (assets / "plan.js").read_text(encoding="utf-8"),
        data,
        title=escape(f"Plan for {name}"),
        summary=escape(_summary(ranked, field, experiment)),
        why=escape(why(ranked, budget)),
        table=_table(ranked, budget),
        dropped=_dropped(field),
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        version=escape(str(package_versions()["atoll"] or "")),
        command=escape(command),
    )


def _summary(ranked: Sequence[Entrant], field: Field, experiment: Experiment) -> str:
    data, model = experiment.settings.data.dataset, experiment.settings.model.name
    return (
        f"{len(ranked) + len(field.dropped)} plans, {len(ranked)} raced on {data} with the model {model}: if your "
        "clients hold other data, seconds and bytes stay the same, but accuracies do not."
    )


def _table(ranked: Sequence[Entrant], budget: PlanBudget) -> str:
    told = table_of(ranked, budget)
    header, *lines = told.cells
    body = Body("", [[Cell(f"{line[0]}. {line[1]}"), *map(Cell, line[2:])] for line in lines])
    return table("Plans by result", ["Plan", *header[2:]], [body], told.note)


def _dropped(field: Field) -> str:
    if not field.dropped:
        return paragraph("All of them were.")
    body = Body("", [[Cell(in_words(each.name)), Cell(each.why)] for each in field.dropped])
    return table("Dropped plans", ["Plan", "Reason"], [body], style="settings")


def _plan(place: int, entrant: Entrant, budget: PlanBudget, field: Field) -> dict[str, Any]:
    """Return one plan's data for the figures."""
    experiment = field.pool.make(entrant.plan.candidate.settings)
    run = rows_of(entrant)
    levels = np.empty(0) if run is None else values_of(run, budget)
    known = np.isfinite(levels)
    seconds, sent = (levels, levels) if run is None else (run.rows["virtual_time"][known], run.bytes_sent[known])
    spent = {"joules": energy_of(experiment), "price": price_of(experiment)}
    is_small = len(experiment.clustering.labels) <= MOST_CLIENTS
    return {
        "title": in_words(entrant.name),
        "place": place,
        "judged": judged(entrant, budget),
        "values": dict(entrant.plan.candidate.values),
        "hasServer": experiment.method.schedule.has_server,
        "curve": {
            "time": _numbers(seconds),
            **{name: [] if each is None else _numbers(each.by(experiment, seconds)) for name, each in spent.items()},
            "bytes": _numbers(sent),
            "level": _numbers(levels[known]),
        },
        "owner": experiment.clustering.labels.tolist() if is_small else [],
        "seconds": _numbers(busy_seconds(experiment)) if is_small else [],
        "clusters": experiment.clustering.clusters,
        "bars": _bars(experiment),
    }


def _bars(experiment: Experiment) -> dict[str, list[Any]]:
    """Return a plan's first pieces of work: cluster, begin, end of its own work, end with the transfer, and turn."""
    events = experiment.method.schedule.events
    works = [(c, began, e.seconds) for e in events[:BARS] for c, began in zip(e.active, e.began, strict=True)][:BARS]
    cluster, began, ended = (list(column) for column in zip(*works, strict=True))
    ends = work_ends(experiment)
    counts = {each: count() for each in cluster}
    done = ended if ends is None else ends[: len(ended)].tolist()
    times = {"began": _numbers(began), "done": _numbers(done), "ended": _numbers(ended)}
    return {"cluster": cluster, **times, "turn": [next(counts[each]) for each in cluster]}


def _network(experiment: Experiment, network: Network | None) -> dict[str, Any]:
    """Return all positions; none, with the reason, if there is no network or too many clients."""
    empty: dict[str, Any] = {"server": None, **{key: [] for key in ("x", "y", "ax", "ay", "links", "classes")}}
    if network is None:
        return empty | {"why": "There is no network to draw."}
    if network.clients > MOST_CLIENTS:
        return empty | {"why": f"No map: there are more than {MOST_CLIENTS:,} clients."}
    why = ""
    if network.clients_xy is None or network.aggregators_xy is None:
        network, why = _drawn(network), "There are no positions: clients are drawn next to their quickest aggregator."
    assert network.clients_xy is not None
    assert network.aggregators_xy is not None
    (x, y), (ax, ay) = network.clients_xy.T, network.aggregators_xy.T
    links = [[j, other] for j, near in enumerate(network.neighbours) for other in near if j < other]
    classes = experiment.population.class_counts().argmax(axis=1).tolist()
    server = None if network.server_xy is None else _numbers(network.server_xy)
    places = {"x": _numbers(x), "y": _numbers(y), "ax": _numbers(ax), "ay": _numbers(ay)}
    return {**places, "server": server, "links": links, "classes": classes, "why": why, "placed": not why}


def _drawn(network: Network) -> Network:
    """Return the network with positions for drawing: aggregators in a ring, clients next to their quickest one."""
    angles = 2 * np.pi * np.arange(network.aggregators) / network.aggregators
    centres = np.column_stack([np.cos(angles), np.sin(angles)])
    nearest = network.upload_seconds.argmin(axis=1)
    rank = np.zeros(network.clients)
    for j in range(network.aggregators):
        rank[nearest == j] = np.arange((nearest == j).sum())
    turn = rank * np.pi * (3 - np.sqrt(5))  # the golden angle, as in sunflowers: no two at one place
    radius = 0.06 + 0.55 / max(network.aggregators, 2) * np.sqrt((1 + rank) / (1 + rank.max()))
    around = radius[:, None] * np.column_stack([np.cos(turn), np.sin(turn)])
    return replace(network, clients_xy=centres[nearest] + around, aggregators_xy=centres, server_xy=np.zeros(2))


def _numbers(values: Any) -> list[float]:
    """Return numbers with the few digits that a figure shows."""
    return [float(f"{value:.{_DIGITS}g}") for value in np.asarray(values, float).tolist()]
