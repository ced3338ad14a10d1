"""The experiment file: sections of validated settings, overlays and runs.

A file is TOML. Its `runs` (a list of tables, each with a `label`) differ from the file in the settings that they
name; `scales` hold overlays by name, such as ``[scales.small]``. Settings are laid over each other in the order
file, scale, run, ``--set``.
"""

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atoll.errors import InputError
from atoll.plugins import unknown

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Options = dict[str, Any]


class Section(BaseModel):
    """A table of the experiment file; unknown settings are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True)


class Data(Section):
    """What the clients hold."""

    dataset: str = Field("digits", description="digits, mnist, cifar10, or module:function returning an atoll.Dataset")
    root: str | None = Field(None, description="folder with the data files; else ATOLL_DATA, else the user's cache")
    fetch: bool = Field(True, description="download missing files")
    partition: str = Field("iid", description="iid, dirichlet, shards, major-class, one-label, or module:function")
    clients: Positive = Field(100, description="number of clients")
    samples: Positive | None = Field(None, description="samples a client; unset: the pool is dealt out")
    rho_device: float | None = Field(None, description="major-class: share of a client's major class")
    alpha: PositiveFloat | None = Field(None, description="dirichlet: concentration")
    shards_per_client: Positive | None = Field(None, description="shards: shards a client gets")
    clients_file: str | None = Field(None, description="CSV with one row a client: utc_offset, longitude, slots")
    options: Options = Field(default_factory=dict, description="arguments of your own partition")


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

    name: str = Field("fedcluster", description="centralized, fedavg, fedcluster, or module:function")
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(0.1, description="share of a cluster's clients in a cohort")
    order: Literal["reshuffled", "fixed"] = Field("reshuffled", description="fedcluster: order of the cycles")
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

    name: str = Field("experiment", pattern=r"^[\w.,=() +-]+$", description="the experiment's name")
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
    if path.suffix != ".toml" and (recipe := recipe_path(str(name))):
        path = recipe
    elif path.suffix != ".toml":
        raise InputError(f"experiment {str(name)!r}: {unknown(str(name), recipe_names())}, or the path of a .toml file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"experiment {str(name)!r}: cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
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
    """Return the settings of each run of an experiment: file, then scale, then run, then ``key=value`` changes.

    Raises:
        InputError: an unknown scale, a setting that is unknown, of a wrong type or out of range.
    """
    base = {key: value for key, value in table.items() if key not in ("runs", "scales")}
    scales = table.get("scales", {})
    if scale not in (None, "paper") and scale not in scales:
        raise InputError(f"--scale {scale}: {unknown(str(scale), {*scales, 'paper'})}")
    base = overlay(base, scales.get(scale, {}))
    runs = table.get("runs") or [{}]
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise InputError("runs: must be a list of tables, each written as [[runs]]")
    last = parse_changes(changes)
    return [validate(overlay(overlay(base, run), last)) for run in runs]


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
    """Turn ``section.key=value`` texts into a table; a value that is not TOML is taken as text.

    >>> parse_changes(["local.lr=0.1", "method.name=fedavg"])
    {'local': {'lr': 0.1}, 'method': {'name': 'fedavg'}}
    """
    table: Table = {}
    for change in changes:
        key, equals, text = change.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise InputError(f"--set {change!r}: must have the form section.key=value")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
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
        # A setting is at most two names deep; what follows in a location names the alternative of a union.
        found = {tuple(map(str, e["loc"][:2])): e for e in reversed(error.errors())}
        path, first = list(found.items())[-1]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InputError(_explain(path, first) + more) from error


def resolved(settings: Settings) -> Table:
    """Return all settings as a table without the unset ones, which TOML cannot hold."""
    return settings.model_dump(exclude_none=True)


def _explain(path: tuple[str, ...], error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return f"{'.'.join(map(str, error['loc']))}: {unknown(str(error['loc'][-1]), _fields(path[:-1]))}"
    message = error["msg"].removeprefix("Input ").replace("should", "must")
    if path == ("local", "batch_size"):
        message = "must be an integer of at least 1, or 'full'"
    return f"{'.'.join(path)} = {error['input']!r}: {message[0].lower()}{message[1:]}"


def _fields(section: tuple[str, ...]) -> Iterable[str]:
    fields = Settings.model_fields
    if section and section[0] in fields:
        annotation = fields[section[0]].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation.model_fields
    return [*fields, "runs", "scales"]
