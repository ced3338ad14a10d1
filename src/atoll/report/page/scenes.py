"""A run's clusters, data and positions, made again from its settings, since its folder does not hold them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.clustering.describe import class_shares
from atoll.data.named_datasets import FILES
from atoll.experiment.cluster_waits import work_seconds
from atoll.experiment.experiment import Experiment
from atoll.network.network import Network
from atoll.settings.choices import method_kind, uses_network
from atoll.settings.sections import Settings
from atoll.settings.validation import validate
from atoll.support.arrays import Floats, Ids

MAX_CLIENTS = 20_000  # beyond this, dealing the data out again takes longer than a page may
MAX_CELLS = 20_000_000  # numbers in any one table on the way
MAX_NUMBER = 2_000  # other whole numbers, such as a layer's width, whose squares may be a table


@dataclass(frozen=True, eq=False)
class Scene:
    """Which data each client holds, where it is, and its cluster, when a run begins.

    Attributes:
        labels: each client's cluster, -1 for one left out, [clients].
        shares: each cluster's share of samples of each class, [clusters, classes].
        counts: each client's samples of each class, [clients, classes].
        clients_xy: positions in metres, [clients, 2]; None where there are none, as are the others.
        aggregators_xy: [aggregators, 2].
        server_xy: [2]; None also where aggregators exchange models without a server.
        work_seconds: where clusters wait for the slowest, pairs of a round and the seconds that each cluster's own
            work of an event takes from then on, [clusters].
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
        """Clients of each cluster, [clusters]."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.shares))


def make_scene(settings: Mapping[str, Any]) -> Scene | str:
    """Return the scene of a run with these settings, or why there is none, in one sentence.

    Nothing is downloaded, nothing is trained, no file is read that the settings name, and no code is run but Atoll's
    own, within bounds: whoever reads a report need not trust the folder.
    """
    try:
        if reason := _own_code(settings):  # first, since settings are checked by the functions that they name
            return reason
        checked = validate(dict(settings))
        if reason := _refusal(checked) or _own_file(checked) or _too_large(checked):
            return reason
        return _make(Experiment(checked.model_copy(update={"data": checked.data.model_copy(update={"fetch": False})})))
    except Exception as error:  # an extra must not end a report, whatever such settings bring about
        return f"not drawn: {str(error) or type(error).__name__}"


def _own_code(settings: Mapping[str, Any]) -> str:
    """Return why a scene cannot be made safely, or nothing."""
    texts = [text for section in settings.values() if isinstance(section, dict) for text in _texts(section)]
    own = [text for text in texts if _names_code(text)]
    return f"not drawn: the run uses code of its own ({own[0]}), which a report does not run." if own else ""


def _refusal(settings: Settings) -> str:
    """Return why a scene cannot be made cheaply, or nothing."""
    if why := method_kind(settings).why_one_place:
        return f"not drawn: {settings.method.name}, {why}."
    if settings.data.clients > MAX_CLIENTS:
        return f"not drawn: there are more than {MAX_CLIENTS:,} clients; the command atoll cluster shows them."
    if settings.clustering.method == "feduc" and settings.clustering.get("xi") == "gradients":
        return "not drawn: the clustering needs gradients of the model; the command atoll cluster makes it again."
    return ""


def _own_file(settings: Settings) -> str:
    """Return which file the scene depends on, or nothing; what it says could show in the page, and be anything."""
    files = [f"{section}.{key}" for section, key, value in _values(settings) if key.endswith("_file") and value]
    files += ["data.root"] if settings.data.dataset in (*FILES, "hf") else []
    files += ["network.edges"] if isinstance(settings.network.get("edges"), str) else []
    return (
        f"not drawn: {files[0]} names files, which a report does not read; the command atoll cluster does."
        if files
        else ""
    )


def _too_large(settings: Settings) -> str:
    """Return which numbers make a scene of more memory or time than a page may take, or nothing."""
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
        for section, key, value in _values(settings)
        if section in ("data", "model", "clustering", "network") and key not in ("clients", "samples")
        if isinstance(value, int) and value > MAX_NUMBER
    }
    found = [*single, *(name for name, cells in tables.items() if cells > MAX_CELLS)]
    return (
        f"not drawn: {found[0]} is more than a page has room for; the command atoll cluster shows it." if found else ""
    )


def _values(settings: Settings) -> Iterator[tuple[str, str, Any]]:
    """Yield section, key and value of each setting in a section."""
    for section, held in settings.model_dump().items():
        for key, value in held.items() if isinstance(held, dict) else ():
            yield section, key, value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    return [value] if isinstance(value, str) else []


def _names_code(text: str) -> bool:
    """Return whether this is the name of the user's own code, as `plugins.resolve` understands it.

    >>> _names_code("mine:factory"), _names_code("random"), _names_code("10.0.0.1:6379")
    (True, False, False)
    """
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
