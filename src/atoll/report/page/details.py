"""What the page shows of one run at a time: who trains when, clusters and data, and the clusters that clients find."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from atoll.report.figures.before_training import MAX_CLIENTS
from atoll.report.figures.network_map import MARKERS, cluster_styles
from atoll.report.figures.style import PALETTE
from atoll.report.page.client_table import clients
from atoll.report.page.compared import name_of
from atoll.report.page.groups import Group
from atoll.report.page.key_numbers import RunPool
from atoll.report.page.scenes import Scene, make_scene
from atoll.report.reading.runs import Run
from atoll.report.reading.units import format_seconds
from atoll.support.arrays import Floats, Ids
from atoll.support.numpy_files import read_npz

Figure: TypeAlias = dict[str, Any]
"""What a figure is drawn from: its `kind`, `title`, `alt`, a `note`, and numbers, arrays as places in the pool."""

MAX_BARS = 1500
MAX_CLUSTERS = 100_000
MAX_POINTS = 2000
MAX_PROBES = 120
MAX_BANDS = 144  # pairs of planted group and model beyond which bands cannot be told apart


class Scenes:
    """Scenes made so far, so that runs of one clustering, and a live page, need not make them again."""

    def __init__(self) -> None:
        self._made: dict[str, Scene | str] = {}

    def of(self, settings: Mapping[str, Any]) -> Scene | str:
        """Return the scene of these settings, or why there is none."""
        own = {name: value for name, value in settings.items() if name not in ("name", "label", "panel", "run")}
        key = json.dumps(own, sort_keys=True, default=str)
        if key not in self._made:
            self._made[key] = make_scene(settings)
        return self._made[key]


def details(groups: Sequence[Group], pool: RunPool, scenes: Scenes) -> list[dict[str, Any]]:
    """Return the figures of each group's first run: its title, its figures, and why some could not be drawn."""
    return [_detail(group, pool, scenes) for group in groups]


def _detail(group: Group, pool: RunPool, scenes: Scenes) -> dict[str, Any]:
    run = group.runs[0]
    scene = scenes.of(run.config)
    figures = [_gantt(run, pool, scene), *clients(run, pool), *_identity(run, pool), _cluster_accuracy(run, pool)]
    if isinstance(scene, Scene):
        figures += [_map(scene, pool), _clusters(scene, pool), _shares(scene, pool)]
    seed = f", seed {run.config.get('seed', 0)}" if len(group.runs) > 1 else ""
    title = " · ".join(filter(None, (group.panel, group.label))) + seed
    return {
        "title": title,
        "figures": [figure for figure in figures if figure],
        "missing": "" if isinstance(scene, Scene) else f"Clusters and class shares: {scene}",
    }


def _gantt(run: Run, pool: RunPool, scene: Scene | str) -> Figure | None:
    """Return who trains when, from the schedule in the run's folder; who waits is known from the scene."""
    try:
        clusters, began, ends, rounds = _pieces(run)
    except (OSError, ValueError, KeyError, TypeError):  # damaged, or not there
        return None
    done = _work_ends(scene, rounds, clusters, began, ends)
    shown = slice(0, MAX_BARS)
    turn: dict[int, int] = {}
    parity: list[int] = []
    for cluster in map(int, clusters[shown]):
        turn[cluster] = turn.get(cluster, 0) + 1
        parity.append(turn[cluster] % 2)
    count = int(clusters.max()) + 1
    pieces = f"{len(clusters):,} pieces of work in {count} cluster{'s' * (count != 1)}"
    alt = f"Gantt chart of {name_of(run)}: {pieces} over {format_seconds(float(ends.max()))} of virtual time."
    note = "The shade changes with each piece of a cluster's work."
    if done is not None:
        note += " Grey: it waits for the slowest."
    if len(clusters) > MAX_BARS:
        note += f" The first {MAX_BARS:,} of {len(clusters):,} are drawn."
    return {
        "kind": "gantt",
        "title": "Schedule",
        "alt": alt,
        "note": note,
        "clusters": count,
        "cluster": pool.put(clusters[shown]),
        "began": pool.put(began[shown]),
        "ended": pool.put(ends[shown]),
        "turn": pool.put(parity),
        **({} if done is None else {"done": pool.put(done[shown])}),
    }


def _work_ends(scene: Scene | str, rounds: Ids, clusters: Ids, began: Floats, ends: Floats) -> Floats | None:
    """Return when each piece of work was done, before its event's end where the cluster waits; None where none does."""
    if not isinstance(scene, Scene) or not scene.work_seconds:
        return None
    begins = np.array([begin for begin, _ in scene.work_seconds])
    seconds = np.stack([own for _, own in scene.work_seconds])
    if clusters.max() >= seconds.shape[1]:  # the folder's schedule is another one's
        return None
    phase = np.maximum(np.searchsorted(begins, rounds, side="right") - 1, 0)
    return np.minimum(began + seconds[phase, clusters], ends)


def _pieces(run: Run) -> tuple[Ids, Floats, Floats, Ids]:
    """Return the cluster, begin, end and round of each piece of work.

    Raises:
        OSError: there is no schedule that can be read.
        KeyError: it lacks a column.
        ValueError: it is damaged, or empty; or TypeError.
    """
    names = ("active_offsets", "active", "began", "seconds", "round")
    offsets, clusters, began, seconds, rounds = read_npz(run.folder / "schedule.npz", names, run.folder).values()
    counts = np.diff(offsets)
    if not len(clusters) or counts.min() < 0 or counts.sum() != len(clusters) or len(began) != len(clusters):
        raise ValueError("its columns are not of one length")
    if clusters.min() < 0 or clusters.max() >= MAX_CLUSTERS:
        raise ValueError("its clusters are too many")
    ends = np.repeat(seconds.astype(np.float64), counts)
    if not np.isfinite(began + ends).all():
        raise ValueError("its times are not finite")
    return clusters.astype(np.int64), began.astype(np.float64), ends, np.repeat(rounds, counts).astype(np.int64)


def _identity(run: Run, pool: RunPool) -> list[Figure]:
    """Return the share of each planted group that takes each model over rounds, and the last counts."""
    known = [(r, t) for r, t in zip(run.rows["round"], run.tables.get("confusion", ()), strict=False) if t is not None]
    try:
        confusion: Ids = np.array([table for _, table in known], dtype=np.int64)
    except (ValueError, TypeError):
        return []
    if confusion.ndim != 3 or 0 in confusion.shape:
        return []
    rounds = np.array([number for number, _ in known])
    _, groups, models = confusion.shape
    last = confusion[-1]
    rows = [
        f"group {g}: " + ", ".join(f"{n} take model {m}" for m, n in enumerate(row) if n) for g, row in enumerate(last)
    ]
    counts: Figure = {
        "kind": "confusion",
        "title": f"Clients by planted group and model at round {rounds[-1]:g}",
        "alt": f"Counts at the last probe. {'; '.join(rows[:12])}.",
        "note": "",
        "shape": [groups, models],
        "counts": pool.put(last.ravel()),
    }
    if groups * models > MAX_BANDS or len(rounds) < 2:
        return [counts]
    picked = _evenly(len(rounds), MAX_PROBES)
    shares = confusion / np.maximum(confusion.sum(axis=2, keepdims=True), 1)
    bands: Figure = {
        "kind": "bands",
        "title": "Clients by the model they take, over rounds",
        "alt": f"Bands over rounds, one for each of {groups} planted groups, split by the model that its clients take. "
        f"{counts['alt']}",
        "note": "A group that has found its model is a band of one colour.",
        "shape": [len(picked), groups, models],
        "rounds": pool.put(rounds[picked]),
        "shares": pool.put(shares[picked].ravel()),
    }
    return [bands, counts]


def _cluster_accuracy(run: Run, pool: RunPool) -> Figure | None:
    """Return the test accuracy of each cluster's model over rounds."""
    rows = [(r, t) for r, t in zip(run.rows["round"], run.tables.get("cluster_accuracy", ()), strict=False) if t]
    models = max((len(table) for _, table in rows), default=0)
    if not models or models > 25:
        return None
    values = np.full((len(rows), models), np.nan)
    for index, (_, table) in enumerate(rows):
        values[index, : len(table)] = [np.nan if v is None or not isinstance(v, int | float) else v for v in table]
    if not np.isfinite(values).any():
        return None
    picked = _evenly(len(rows), 2 * MAX_PROBES)
    ends = ", ".join(f"model {m} {100 * v:.1f} %" for m, v in enumerate(values[-1]) if np.isfinite(v))
    return {
        "kind": "models",
        "title": "Test accuracy of each cluster's model",
        "alt": f"Test accuracy of each cluster's model over rounds. At the end: {ends}.",
        "note": "",
        "shape": [len(picked), models],
        "rounds": pool.put([rows[i][0] for i in picked]),
        "values": pool.put(values[picked].ravel()),
    }


def _map(scene: Scene, pool: RunPool) -> Figure | None:
    if scene.clients_xy is None or scene.aggregators_xy is None:
        return None
    clients, aggregators = scene.clients_xy, scene.aggregators_xy
    picked = _evenly(len(clients), MAX_POINTS)
    colors, markers = cluster_styles(aggregators)
    sizes = np.bincount(scene.labels[scene.labels >= 0], minlength=len(aggregators))
    empty = int((sizes == 0).sum())
    alt = f"Map of {len(clients):,} clients and {len(aggregators)} aggregators"
    alt += f", {empty} of them without clients." if empty else "."
    return {
        "kind": "map",
        "title": "Where clients and aggregators are",
        "alt": alt,
        "note": f"{MAX_POINTS:,} of {len(clients):,} clients are drawn." if len(picked) < len(clients) else "",
        "clients": [pool.put(clients[picked, 0]), pool.put(clients[picked, 1])],
        "owner": pool.put(scene.labels[picked]),
        "ids": pool.put(picked),
        "aggregators": [pool.put(aggregators[:, 0]), pool.put(aggregators[:, 1])],
        "sizes": pool.put(sizes),
        "color": [int(color) % len(PALETTE) for color in colors],
        "marker": [int(marker) % len(MARKERS) for marker in markers],
        "server": None if scene.server_xy is None else [float(value) for value in scene.server_xy],
    }


def _clusters(scene: Scene, pool: RunPool) -> Figure | None:
    if len(scene.shares) < 2:
        return None
    sizes, (clusters, classes) = scene.sizes, scene.shares.shape
    alt = f"{clusters} clusters of {sizes.min()} to {sizes.max()} clients, and each one's shares of {classes} classes."
    return {
        "kind": "clusters",
        "title": "Clusters: clients, and shares of classes",
        "alt": alt,
        "note": "",
        "shape": [clusters, classes],
        "sizes": pool.put(sizes),
        "shares": pool.put(scene.shares.ravel()),
    }


def _shares(scene: Scene, pool: RunPool) -> Figure:
    clients, classes = scene.counts.shape
    picked = _evenly(clients, MAX_CLIENTS)
    counts = scene.counts[picked]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    most = float(np.median(shares.max(axis=1)))
    return {
        "kind": "shares",
        "title": "Class shares of clients",
        "alt": f"Shares of {classes} classes at {len(picked)} of {clients:,} clients: the largest share of a client is "
        f"{100 * most:.0f} % in the median.",
        "note": f"{len(picked)} of {clients:,} clients, evenly picked." if len(picked) < clients else "",
        "shape": [len(picked), classes],
        "clients": pool.put(picked),
        "shares": pool.put(shares.ravel()),
    }


def _evenly(count: int, most: int) -> Ids:
    """Return at most `most` indices below `count`, evenly spaced, the first and the last among them.

    >>> _evenly(5, 3)
    array([0, 2, 4])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
