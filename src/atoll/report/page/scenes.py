"""A run's clusters, data and positions, recomputed from its settings, since its folder does not hold them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.clustering.describe import class_shares
from atoll.data.named_datasets import FILES
from atoll.experiment.cluster_waits import work_seconds
from atoll.experiment.experiment import Experiment
from atoll.network.network import Network
from atoll.settings.choices import method_kind, uses_network
from atoll.settings.file_paths import files_in
from atoll.settings.validation import Settings, validate
from atoll.support.arrays import Floats, Ids
from atoll.support.errors import InputError

MAX_CLIENTS = 20_000  # beyond this, partitioning the data again takes too long for a page
MAX_CELLS = 20_000_000  # numbers in any intermediate table
MAX_NUMBER = 2_000  # other whole numbers, such as a layer's width, since a table may have their square


@dataclass(frozen=True, eq=False)
class Scene:
    """The clients' data, positions and clusters at the start of a run.

    Attributes:
        labels: each client's cluster, -1 if left out, [clients].
        shares: share of each class in each cluster's samples, [clusters, classes].
        counts: each client's samples of each class, [clients, classes].
        clients_xy: positions in metres, [clients, 2]; without a network, None like the next two.
        aggregators_xy: [aggregators, 2].
        server_xy: [2]; None also if aggregators exchange models without a server.
        work_seconds: if clusters wait for the slowest, pairs of a round and the seconds of each cluster's own work in
            an event from then on, [clusters].
    """

    labels: Ids
    shares: Floats
    counts: Ids
    clients_xy: Floats | None = None
    aggregators_xy: Floats | None = None
    server_xy: Floats | None = None
    work_seconds: tuple[tuple[int, Floats], ...] = ()

    @property
    def sizes(self) -> Ids:
        """Number of clients of each cluster, [clusters]."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.shares))


def make_scene(settings: Mapping[str, Any]) -> Scene | str:
    """Return the scene of a run with these settings, or one sentence that says why there is none.

    Downloads nothing, trains nothing, reads no file named in the settings, and runs only Atoll's own code, within
    bounds: a report may be made of an untrusted folder.
    """
    try:
        _require_own_code(settings)  # first, since settings are checked by the functions they name
        checked = validate(dict(settings))
        for require in (_require_cheap, _require_no_files, _require_small):
            require(checked)
        return _make(Experiment(checked.but("data", fetch=False)))
    except Exception as error:  # an extra must not end a report, whatever the settings cause
        return f"not drawn: {str(error) or type(error).__name__}"


class Scenes:
    """A cache of scenes, so that runs with the same clusters, and a live page, need not recompute them."""

    def __init__(self) -> None:
        self._made: dict[str, Scene | str] = {}

    def of(self, settings: Mapping[str, Any]) -> Scene | str:
        """Return the scene of a run with these settings, or why there is none."""
        own = {name: value for name, value in settings.items() if name not in ("name", "label", "panel", "run")}
        key = json.dumps(own, sort_keys=True, default=str)
        if key not in self._made:
            self._made[key] = make_scene(settings)
        return self._made[key]


def _require_own_code(settings: Mapping[str, Any]) -> None:
    """Refuse settings that name code, which need not be safe; a scene has no use for those of ``[run]``."""
    sections = (held for name, held in settings.items() if name != "run" and isinstance(held, dict))
    if named := [text for section in sections for text in _texts(section) if _names_code(text)]:
        raise InputError(f"the run uses custom code ({named[0]}), which a report does not run.")


def _require_cheap(settings: Settings) -> None:
    if why := method_kind(settings).why_one_place:
        raise InputError(f"{settings.method.name}, {why}.")
    if settings.data.clients > MAX_CLIENTS:
        raise InputError(f"there are more than {MAX_CLIENTS:,} clients; the command atoll cluster shows them.")
    if settings.clustering.method == "feduc" and settings.clustering.get("xi") == "gradients":
        raise InputError("the clustering needs gradients of the model; the command atoll cluster makes it again.")


def _require_no_files(settings: Settings) -> None:
    """Refuse a scene that depends on a file, whose content could show in the page."""
    files = [name for name, _ in files_in(settings)]
    files += ["data.root"] if settings.data.dataset in (*FILES, "hf") else []
    files += ["data.tokenizer"] if settings.data.get("tokenizer") else []
    if uses_network(settings):  # whose times need the model's size
        files += [f"model.{key}" for key in ("start", "path") if settings.model.get(key)]
    if files:
        raise InputError(f"{files[0]} names files, which a report does not read; the command atoll cluster does.")


def _require_small(settings: Settings) -> None:
    """Refuse a scene that would take too much memory or time for a page."""
    data, network = settings.data, settings.network
    clients = data.clients + data.held_out_clients
    width = data.get("width") or 1
    tables = {
        "data.clients x data.samples": clients * (data.get("samples") or 1) * width,
        "data.clients x clustering.clusters": clients * settings.clustering.clusters,
        "data.clients x rounds": clients * settings.rounds if network.metres_per_round else 0,
    }
    single = {
        f"{section}.{key}": value
        for section in ("data", "model", "clustering", "network")
        for key, value in getattr(settings, section).model_dump().items()
        if key not in ("clients", "samples") and isinstance(value, int) and value > MAX_NUMBER
    }
    if large := [*single, *(name for name, cells in tables.items() if cells > MAX_CELLS)]:
        raise InputError(f"{large[0]} is too large for a page; the command atoll cluster shows it.")


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        return [text for inner in (value.values() if isinstance(value, dict) else value) for text in _texts(inner)]
    return [value] if isinstance(value, str) else []


def _names_code(text: str) -> bool:
    """Return whether this names custom code, as `plugins.resolve` understands it."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in f"{module}.{attribute}".split("."))


def _make(experiment: Experiment) -> Scene:
    population, clustering = experiment.population, experiment.clustering
    scene = Scene(clustering.labels, class_shares(population, clustering), population.class_counts())
    if not uses_network(experiment.settings):
        return scene
    network: Network = experiment.conditions.networks[0]
    server = None if experiment.settings.method.get("pattern", "").startswith("dec") else network.server_xy
    made = replace(scene, clients_xy=network.clients_xy, aggregators_xy=network.aggregators_xy, server_xy=server)
    if (seconds := work_seconds(experiment)) is None:
        return made
    return replace(made, work_seconds=tuple(zip((p.round for p in experiment.plan.phases), seconds, strict=True)))
