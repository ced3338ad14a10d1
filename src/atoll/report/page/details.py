"""The page's figures of one run at a time: schedule, clusters and data, and learned cluster assignments."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np

from atoll.fleet.server.clustering_log import read_clusterings
from atoll.report.figures.assignments import Assignments, read_assignments
from atoll.report.figures.before_training import MAX_CLIENTS, evenly
from atoll.report.figures.network_map import MARKERS, cluster_styles
from atoll.report.figures.style import PALETTE
from atoll.report.page.compared import name_of
from atoll.report.page.key_numbers import RunPool, client_curves
from atoll.report.page.scenes import Scene, Scenes
from atoll.report.reading.groups import Group
from atoll.report.reading.runs import Run
from atoll.runs.run_files import CLUSTERINGS, HAPPENED
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError
from atoll.support.numpy_files import read_npz
from atoll.support.units import format_seconds
from atoll.support.wording import counted

Figure: TypeAlias = dict[str, Any]
"""The data of a figure: its `kind`, `title`, `alt`, a `note`, and numbers; arrays as indices into the pool."""

MAX_BARS = 1500
MAX_CLUSTERS = 100_000
MAX_POINTS = 2000
MAX_ROWS = 120
MAX_BANDS = 144  # pairs of planted group and model beyond which bands are indistinguishable


def details(groups: Sequence[Group], pool: RunPool, scenes: Scenes) -> Iterator[dict[str, Any]]:
    """Yield title and figures of each group's first run, and why some could not be drawn."""
    for group in groups:
        run = group.runs[0]
        scene = _scene_of(run, scenes)
        figures = [_gantt(run, pool, scene), *client_curves(run, pool), *_identity(run, pool)]
        figures.append(_cluster_accuracy(run, pool))
        if isinstance(scene, Scene):
            figures += [_map(scene, pool), _clusters(scene, pool), _shares(scene, pool)]
        seed = f", seed {run.config.get('seed', 0)}" if len(group.runs) > 1 else ""
        yield {
            "title": name_of(group) + seed,
            "figures": [figure for figure in figures if figure],
            "missing": "" if isinstance(scene, Scene) else f"Clusters and class shares: {scene}",
        }


def _scene_of(run: Run, scenes: Scenes) -> Scene | str:
    """Return a run's scene; none if on a fleet nodes' reports have made other clusters than its settings make."""
    scene, path = scenes.of(run.config), run.folder / CLUSTERINGS
    if isinstance(scene, str) or not path.exists():
        return scene
    with suppress(InputError):
        if any(line.labels in (None, scene.labels.tolist()) for line in read_clusterings(path, len(scene.labels))[:1]):
            return scene
    return "not drawn: the clusters are those of nodes' reports."


def _gantt(run: Run, pool: RunPool, scene: Scene | str) -> Figure | None:
    """Return who trains when, from the schedule in the run's folder; the scene says who waits."""
    try:
        clusters, began, ends, rounds = _pieces(run)
    except (OSError, ValueError, KeyError, TypeError):  # damaged or missing
        return None
    done = _work_ends(scene, rounds, clusters, began, ends)
    shown = slice(0, MAX_BARS)
    count = int(clusters.max()) + 1
    pieces = f"{len(clusters):,} pieces of work in {counted(count, 'cluster')}"
    alt = f"Gantt chart of {name_of(run)}: {pieces} over {format_seconds(float(ends.max()))} of virtual time."
    note = "A bar is one turn of a cluster's training. Its next turn has the other shade."
    note += "" if done is None else " Grey: it has finished and waits for the slowest cluster."
    if len(clusters) > MAX_BARS:
        note += f" Only the first {MAX_BARS:,} of {len(clusters):,} are drawn."
    return {
        "kind": "gantt",
        "title": "Schedule, as planned" if (run.folder / HAPPENED).exists() else "Schedule",
        "alt": alt,
        "note": note,
        "clusters": count,
        "cluster": pool.put(clusters[shown]),
        "began": pool.put(began[shown]),
        "ended": pool.put(ends[shown]),
        "turn": pool.put(_parities(clusters[shown])),
        **({} if done is None else {"done": pool.put(done[shown])}),
    }


def _parities(clusters: Ids) -> list[int]:
    """Return for each piece of work whether it is an odd one of its cluster, counted from 1, as 1 or 0."""
    turns = defaultdict[int, Iterator[int]](lambda: cycle((1, 0)))
    return [next(turns[cluster]) for cluster in clusters.tolist()]


def _work_ends(scene: Scene | str, rounds: Ids, clusters: Ids, began: Floats, ends: Floats) -> Floats | None:
    """Return when each piece of work ended: before its event if the cluster waits; None if none does."""
    if not isinstance(scene, Scene) or not scene.work_seconds:
        return None
    begins = np.array([begin for begin, _ in scene.work_seconds])
    seconds = np.stack([own for _, own in scene.work_seconds])
    if clusters.max() >= seconds.shape[1]:  # the schedule in the folder is of another run
        return None
    phase = np.maximum(np.searchsorted(begins, rounds, side="right") - 1, 0)
    return np.minimum(began + seconds[phase, clusters], ends)


def _pieces(run: Run) -> tuple[Ids, Floats, Floats, Ids]:
    """Return the cluster, begin, end and round of each piece of work."""
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
    try:
        found = read_assignments(run)
    except InputError:
        return []
    counts = _last_counts(found, pool)
    if found.confusion[0].size > MAX_BANDS or len(found.rounds) < 2:
        return [counts]
    picked = evenly(len(found.rounds), MAX_ROWS)
    bands: Figure = {
        "kind": "bands",
        "title": "Clients by the model they take, over rounds",
        "alt": f"Bands over rounds, one each for {counted(len(found.names), 'planted group')}, split by the models "
        f"that its clients take. {counts['alt']}",
        "note": "A group that has found its model is a band of one colour.",
        "shape": [len(picked), *found.confusion.shape[1:]],
        "rounds": pool.put(found.rounds[picked]),
        "shares": pool.put(found.shares[picked].ravel()),
        "groups": found.names,
    }
    return [bands, counts]


def _last_counts(found: Assignments, pool: RunPool) -> Figure:
    last = found.confusion[-1]
    taken = (", ".join(f"{n} take model {m}" for m, n in enumerate(row) if n) for row in last)
    rows = [f"group {name}: {told}" for name, told in zip(found.names, taken, strict=True)]
    return {
        "kind": "confusion",
        "title": f"Clients by planted group and model at round {found.rounds[-1]:g}",
        "alt": f"Counts at the last evaluation. {'; '.join(rows[:12])}.",
        "shape": last.shape,
        "counts": pool.put(last.ravel()),
        "groups": found.names,
    }


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
    picked = evenly(len(rows), 2 * MAX_ROWS)
    ends = ", ".join(f"model {m} {100 * v:.1f} %" for m, v in enumerate(values[-1]) if np.isfinite(v))
    return {
        "kind": "models",
        "title": "Test accuracy of each cluster's model",
        "alt": f"Test accuracy of each cluster's model over rounds. At the end: {ends}.",
        "shape": [len(picked), models],
        "rounds": pool.put([rows[i][0] for i in picked]),
        "values": pool.put(values[picked].ravel()),
    }


def _map(scene: Scene, pool: RunPool) -> Figure | None:
    if scene.clients_xy is None or scene.aggregators_xy is None:
        return None
    clients, aggregators = scene.clients_xy, scene.aggregators_xy
    picked = evenly(len(clients), MAX_POINTS)
    colors, markers = cluster_styles(aggregators)
    sizes = np.bincount(scene.labels[scene.labels >= 0], minlength=len(aggregators))
    empty = int((sizes == 0).sum())
    alt = f"Map of {len(clients):,} clients and {len(aggregators)} aggregators"
    alt += f", {empty} of them without clients." if empty else "."
    return {
        "kind": "map",
        "title": "Where clients and aggregators are",
        "alt": alt,
        "note": f"Only {MAX_POINTS:,} of {len(clients):,} clients are drawn." if len(picked) < len(clients) else "",
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
    alt = f"{clusters} clusters of {sizes.min()} to {sizes.max()} clients, with their shares of {classes} classes."
    return {
        "kind": "clusters",
        "title": "Clusters: clients and class shares",
        "alt": alt,
        "shape": [clusters, classes],
        "sizes": pool.put(sizes),
        "shares": pool.put(scene.shares.ravel()),
    }


def _shares(scene: Scene, pool: RunPool) -> Figure:
    clients, classes = scene.counts.shape
    picked = evenly(clients, MAX_CLIENTS)
    counts = scene.counts[picked]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    most = float(np.median(shares.max(axis=1)))
    return {
        "kind": "shares",
        "title": "Class shares of clients",
        "alt": f"Shares of {classes} classes at {len(picked)} of {clients:,} clients: the median of a client's largest "
        f"share is {100 * most:.0f} %.",
        "note": f"{len(picked)} of {clients:,} clients, at even spacing." if len(picked) < clients else "",
        "shape": [len(picked), classes],
        "clients": pool.put(picked),
        "shares": pool.put(shares.ravel()),
    }
