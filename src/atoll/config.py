"""The experiment file: sections of validated settings, overlays and runs.

A file is TOML. Its `panels` and `runs` (lists of tables) differ from the file in the settings that they name: an
experiment is every run of every panel, as a figure is every curve in every panel. `scales` hold overlays by name,
such as ``[scales.small]``, for the whole file, a panel or a run.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.errors import InputError
from atoll.faults import explain, unknown

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Options = dict[str, Any]
LISTS = ("panels", "runs", "scales")  # what else stands at the top of an experiment file


class Section(BaseModel):
    """A table of the experiment file; unknown settings are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class Data(Section):
    """What the clients hold."""

    dataset: str = Field(
        "digits", description="digits, regression, mnist, cifar10, or module:function giving an atoll.Dataset"
    )
    root: str | None = Field(None, description="folder with the data files; else ATOLL_DATA, else the user's cache")
    fetch: bool = Field(True, description="download missing files")
    partition: str = Field(
        "iid", description="iid, dirichlet, shards, major-class, one-label, rotated, planted, module:function"
    )
    clients: Positive = Field(100, description="number of clients")
    samples: Positive | None = Field(None, description="samples a client; unset: the pool is dealt out")
    rho_device: float | None = Field(None, description="major-class: share of a client's major class")
    alpha: PositiveFloat | None = Field(None, description="dirichlet: concentration")
    shards_per_client: Positive | None = Field(None, description="shards: shards a client gets")
    rotations: Literal[1, 2, 4] | None = Field(None, description="turned copies of the pool; rotated: 4 if unset")
    clients_file: str | None = Field(None, description="CSV with one row a client: utc_offset, longitude, slots")
    options: Options = Field(default_factory=dict, description="arguments of regression, or of your own partition")


class ModelSettings(Section):
    """What is trained."""

    name: str = Field("mlp", description="mlp, lr, cnn, alexnet, linear, or module:factory returning an nn.Module")
    options: Options = Field(default_factory=dict, description="arguments of the factory")


class Local(Section):
    """How a client trains."""

    optimizer: str = Field("sgd", description="sgd, momentum, adam, or module:function returning an Optimizer")
    lr: PositiveFloat = Field(0.05, description="learning rate")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="momentum: the factor (0.5)")
    steps: Positive = Field(20, description="local steps in one local training")
    batch_size: Positive | Literal["full"] = Field(30, description="samples a step, or full")
    proximal: NotNegative = Field(0.0, description="FedProx's mu")
    lr_factor: PositiveFloat = Field(1.0, description="multiplies lr, so that runs can differ in it and share lr")
    lr_decay: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="the learning rate's factor after a round")
    options: Options = Field(default_factory=dict, description="arguments of your own optimizer")


class ClusteringSettings(Section):
    """Which clients aggregate together."""

    method: str = Field("random", description="random, timezone, availability, major-class, or module:function")
    clusters: Positive = Field(10, description="number of clusters, M")
    rho_cluster: float | None = Field(None, description="major-class: share of a cluster's major class")
    local_hour: float | None = Field(None, description="timezone: the hour of the clients' day at which they train")
    slots_per_client: Positive | None = Field(None, description="availability: random slots a client, if none is known")
    options: Options = Field(default_factory=dict, description="arguments of your own clustering")


class Network(Section):
    """How long things take."""

    seconds_per_sample: NotNegative = Field(0.001, description="a client's seconds to train on one sample")
    upload_seconds: NotNegative = Field(1.0, description="a client's seconds to upload its model")


class MethodSettings(Section):
    """How clusters and server work together."""

    name: str = Field(
        "fedcluster", description="centralized, fedavg, fedcluster, ifca, cfl-mgd, fedbcd, module:function"
    )
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(0.1, description="share of a cluster's clients in a cohort")
    order: Literal["reshuffled", "fixed"] = Field("reshuffled", description="fedcluster: order of the cycles")
    clusters: Positive = Field(4, description="ifca, cfl-mgd: number of models, P")
    beta: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="cfl-mgd: the clusters' momentum")
    option: Literal["models", "gradients"] = Field("models", description="ifca, cfl-mgd: what is averaged")
    restarts: Positive = Field(1, description="ifca, cfl-mgd: starts tried; the one with the least loss is kept")
    restart_rounds: Positive = Field(3, description="ifca, cfl-mgd: rounds that each start is tried for")
    resample: bool = Field(False, description="ifca, cfl-mgd: disjoint data for identity and training, every round")
    shared_layers: Annotated[int, Field(ge=0)] = Field(0, description="ifca, cfl-mgd: first layers that all share")
    parties: Positive = Field(2, description="fedbcd: parties that the features are split over, K")
    mode: Literal["parallel", "sequential"] = Field("parallel", description="fedbcd: parties train at once or in turn")
    options: Options = Field(default_factory=dict, description="arguments of your own method")


class Run(Section):
    """How the run is carried out and watched."""

    executor: Literal["auto", "serial"] = Field("auto", description="where cohorts are trained")
    device: str = Field("cpu", description="cpu or cuda")
    evaluate_every: Positive = Field(1, description="rounds between probes")
    evaluate_samples: Positive | None = Field(None, description="probe the training loss on so many; unset: on all")
    heterogeneity: bool = Field(False, description="measure H_device and H_cluster at each probe")
    checkpoint_every: Positive = Field(10, description="rounds between checkpoints")


class Settings(Section):
    """All settings of one run."""

    name: str = Field("experiment", pattern=r"^\w[\w.,=() +-]*$", description="the experiment's name")
    label: str = Field("", description="what the run's curve is called in figures")
    panel: str = Field("", description="the panel of a figure that the run's curve belongs to")
    description: str = Field("", description="what the experiment shows; for recipes, the paper and figure")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="every random number is derived from it")
    rounds: Positive = Field(20, description="rounds, as the glossary defines them for the method")
    data: Data = Data()
    model: ModelSettings = ModelSettings()
    local: Local = Local()
    clustering: ClusteringSettings = ClusteringSettings()
    network: Network = Network()
    method: MethodSettings = MethodSettings()
    run: Run = Run()


Table = dict[str, Any]


def read_experiment(name: str | Path) -> Table:
    """Read an experiment file, or the built-in recipe of that name, as a table.

    Raises:
        InputError: there is no such file or recipe, or it is not TOML.
    """
    path = Path(name)
    if path.suffix != ".toml":
        if (recipe := recipe_path(str(name))) is None:
            told = "must end in .toml" if path.is_file() else f"no recipe has this name; {_nearest_recipe(str(name))}"
            raise InputError(f"experiment {str(name)!r}: {told}")
        path = recipe
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"experiment {str(name)!r}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"experiment {str(name)!r}: is not valid TOML ({error})") from error


def recipe_names() -> list[str]:
    """Return the names of the built-in experiments."""
    return sorted(
        f.name[: -len(".toml")] for f in resources.files("atoll.recipes").iterdir() if f.name.endswith(".toml")
    )


def recipe_path(name: str) -> Path | None:
    """Return the file of a built-in experiment, or None."""
    return Path(str(resources.files("atoll.recipes") / f"{name}.toml")) if name in recipe_names() else None


def make_runs(table: Table, scale: str | None = None, changes: Iterable[str] = ()) -> list[Settings]:
    """Return the settings of each run of an experiment: one for each panel and each of its runs.

    They are laid over each other in the order file, panel, run, ``key=value`` changes; each of the first three may
    hold an overlay for the scale.

    Raises:
        InputError: an unknown scale, a setting that is unknown, of a wrong type or out of range.
    """
    panels, runs = _tables(table, "panels"), _tables(table, "runs")
    known = {name for layer in (table, *panels, *runs) for name in _scales(layer)}
    if scale not in (None, "paper") and scale not in known:
        raise InputError(f"--scale {scale}: {unknown(str(scale), {*known, 'paper'})}")

    def scaled(layer: Table, others: Iterable[str]) -> Table:
        settings = {key: value for key, value in layer.items() if key not in others}
        return overlay(settings, _scales(layer).get(str(scale), {}))

    base, last = scaled(table, LISTS), parse_changes(changes)
    over = [overlay(scaled(panel, ("scales",)), scaled(run, ("scales",))) for panel in panels for run in runs]
    return [validate(overlay(overlay(base, settings), last)) for settings in over]


def _tables(table: Table, key: str) -> list[Table]:
    tables = table.get(key, [{}])
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise InputError(f"{key}: must be a list of tables, each written as [[{key}]]")
    return tables


def _scales(layer: Table) -> dict[str, Table]:
    scales = layer.get("scales", {})
    if not isinstance(scales, dict) or not all(isinstance(over, dict) for over in scales.values()):
        raise InputError("scales: must be tables, each written as [scales.NAME]")
    return scales


def overlay(table: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Return `table` with the entries of `over` laid over it, table by table.

    >>> overlay({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = deepcopy(dict(table))
    for key, value in over.items():
        below = result.get(key)
        result[key] = overlay(below, value) if isinstance(value, dict) and isinstance(below, dict) else deepcopy(value)
    return result


def parse_changes(changes: Iterable[str]) -> Table:
    """Turn ``section.key=value`` texts into a table.

    A value is TOML, or text as it stands where the setting is a text or the value is not TOML. An empty value unsets
    a setting that may be unset.

    >>> parse_changes(["local.lr=0.1", "method.name=fedavg", "label=7", "data.samples="])
    {'local': {'lr': 0.1}, 'method': {'name': 'fedavg'}, 'label': '7', 'data': {'samples': None}}
    """
    table: Table = {}
    for change in changes:
        key, equals, text = change.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise InputError(f"--set {change!r}: must have the form section.key=value")
        value = _parse_value(text.strip(), _annotation(parts))
        for part in reversed(parts):
            value = {part: value}
        table = overlay(table, value)
    return table


def validate(table: Mapping[str, Any]) -> Settings:
    """Check a table of settings.

    Raises:
        InputError: one sentence that names the setting, its value and what is allowed.
    """
    try:
        return Settings.model_validate(table)
    except ValidationError as error:
        raise InputError(explain(error, Settings, LISTS)) from error


def resolved(settings: Settings) -> Table:
    """Return all settings as a table without the unset ones, which TOML cannot hold."""
    return settings.model_dump(exclude_none=True)


def _nearest_recipe(name: str) -> str:
    nearest = difflib.get_close_matches(name, recipe_names(), n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else "`atoll recipes` lists them, and your own ends in .toml"


def _annotation(parts: Sequence[str]) -> Any:
    """Return the type of the setting with this path, or None if there is none."""
    fields = Settings.model_fields
    for part in parts[:-1]:
        section = fields[part].annotation if part in fields else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
        fields = section.model_fields
    return fields[parts[-1]].annotation if parts[-1] in fields else None


def _parse_value(text: str, annotation: Any) -> Any:
    if not text:
        return "" if annotation is str else None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A line break in the text would smuggle in further keys; and a text such as 2024 need not be quoted.
    is_text = annotation in (str, str | None) and not isinstance(parsed["value"], str)
    return text if is_text or len(parsed) > 1 else parsed["value"]
