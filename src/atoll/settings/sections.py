"""The settings of one run: every section of the experiment file, with allowed values and defaults."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from atoll.support.errors import InputError
from atoll.support.limits import BelowOne, Count, NotNegative, Number, Positive, PositiveFloat, Range, Share

NAME = r"^\w[\w.,=() +-]*$"
MAY_DIFFER = "a run may be resumed with another value"
"""Marks a setting that affects neither a run's bits nor its rows."""


class Section(BaseModel):
    """A section of the experiment file; unknown settings are rejected."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_without_nul(cls, value: Any) -> Any:
        """Refuse a text with a character that no file's path can have."""
        if isinstance(value, str) and "\0" in value:
            raise ValueError("must not contain the character NUL")
        return value

    def __eq__(self, other: object) -> bool:
        """Compare settings, whichever class was built for the functions they name."""
        return isinstance(other, Section) and type(self).__name__ == type(other).__name__ and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse: a changed setting would not have been checked."""
        raise InputError(f"{name}: settings cannot be changed; pass new ones, as in atoll.run(settings, {name}=...)")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting that the section lacks unless one of the functions it names takes it."""
        return getattr(self, key, default) if key in type(self).model_fields else default


class Data(Section):
    """What the clients hold."""

    dataset: str = Field("digits", description="the samples; or module:function returning an atoll.Dataset")
    root: Annotated[str | None, MAY_DIFFER] = Field(
        None, description="folder with the data files; unset: ATOLL_DATA, else the user's cache folder"
    )
    fetch: Annotated[bool, MAY_DIFFER] = Field(True, description="download missing files")
    partition: str = Field("iid", description="which client holds which samples; or module:function")
    clients: Positive = Field(100, description="number of clients")
    held_out_clients: Count = Field(0, description="additional clients that never train, for evaluation metrics")
    test_samples: Positive | None = Field(None, description="test samples to use, drawn once from the seed; unset: all")
    rotations: Literal[1, 2, 4] | None = Field(
        None, description="rotated copies of the pool, including the original; unset: 1, with partition rotated 4"
    )
    swaps: Positive | None = Field(
        None, description="copies of the pool, including the original: copy c swaps labels 2c - 1 and 2c; unset: 1"
    )
    skew: str = Field("none", description="how clients' inputs differ; or module:function returning changed inputs")
    skew_levels: Positive | None = Field(
        None, description="number of different skews, which are the planted groups; unset: one per client"
    )
    augment: str = Field("none", description="random changes of training batches; or module:function returning them")
    standardise: Literal["none", "unit", "pool", "image", "given"] = Field(
        "unit",
        description="none: inputs as stored; unit: scaled to a unit range; the others then bring them to mean 0 and "
        "deviation 1: by the pool's channels (pool), each by itself (image) or by data.mean and deviation (given)",
    )
    mean: Number | list[Number] | None = Field(None, description="standardise = given: one number, or one per channel")
    deviation: Number | list[Number] | None = Field(None, description="standardise = given: the same, positive")
    clients_file: str | None = Field(None, description="CSV with one row per client: utc_offset, longitude, slots")


class DriftSettings(Section):
    """How the clients' data change during the run."""

    kind: str = Field("none", description="what changes; or module:function returning every phase's partition")
    rounds: list[Positive] = Field(
        [], description="rounds, counted from 0, at which a new phase begins, whose samples are new to all clients"
    )
    concepts: Positive | list[list[Count]] | None = Field(
        None,
        description="each client's concept (its group or deal) in each phase, one list per phase; or the number of "
        "concepts between which clients move, drawn from the seed; unset: the number of groups, or else of phases",
    )
    share: Share = Field(1.0, description="share of clients that move to another concept in each new phase, if drawn")
    gradual_rounds: Count = Field(
        0, description="rounds over which clients' samples are replaced by those of a new phase; 0: at once"
    )


class ModelSettings(Section):
    """What is trained."""

    name: str = Field("mlp", description="the network; or module:factory returning an nn.Module")
    start: str | None = Field(
        None,
        description="the model to start from: a .safetensors file, a state dict (.pt), or another run's folder; unset: "
        "drawn from the seed",
    )
    travels: Literal["all", "trainable"] | list[str] = Field(
        "all",
        description="what is communicated: all, which with model.lora is what is trainable; trainable: all but frozen "
        "parameters; or patterns of names, the rest staying with each client",
    )

    @property
    def travelling(self) -> str | list[str]:
        """What is communicated."""
        return "trainable" if self.travels == "all" and self.get("lora") is not None else self.travels


class TravelSettings(Section):
    """The stages that an update passes between client and cluster."""

    stages: list[str] = Field(
        [], description="stages applied to each update, in this order; or module:function returning an atoll.Stage"
    )
    codec: str = Field(
        "none",
        description="compressor of client updates; models sent to clients are not compressed; or module:function "
        "returning an atoll.Codec",
    )
    feedback: bool = Field(
        True,
        description="error feedback: a client adds what compression loses to its next update; unused without codec",
    )


class Local(Section):
    """How a client trains."""

    optimizer: str = Field(
        "sgd",
        description="the optimiser, any of PyTorch's by its name, such as adamw or torch.optim.AdamW, with its own "
        "parameters as settings; or module:function returning a torch Optimizer",
    )
    lr: PositiveFloat = Field(0.05, description="learning rate")
    steps: Positive = Field(20, description="local steps in each local training")
    epochs: PositiveFloat | None = Field(
        None, description="local training in epochs of a client's own samples, instead of steps; may be a fraction"
    )
    batch_size: Positive | Literal["full"] = Field(30, description="samples per step, or full: all of the client's")
    proximal: NotNegative = Field(0.0, description="FedProx's mu")
    lr_factor: PositiveFloat = Field(1.0, description="multiplies lr, so that runs can share lr and differ in this")
    lr_decay: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="multiplies the learning rate every round")
    schedule: str = Field(
        "constant",
        description="the learning rate of each round: any of PyTorch's schedulers, such as CosineAnnealingLR, or "
        "cosine, with its own parameters as settings; list: local.rates; or module:function of round and lr returning "
        "the rate, or of optimizer returning a scheduler",
    )
    warmup_rounds: Count = Field(0, description="rounds in which the rate rises evenly to lr; the schedule follows")


class ClusteringSettings(Section):
    """Which clients aggregate together."""

    method: str = Field("random", description="how clients are clustered; or module:function")
    clusters: Positive = Field(10, description="number of clusters, M")


class NetworkSettings(Section):
    """How long things take."""

    seconds_per_sample: NotNegative | Range = Field(
        0.001, description="seconds to train on one sample, zeta; a list of two: each client's is drawn from this range"
    )
    upload_seconds: NotNegative = Field(
        1.0, description="seconds for a client to upload its model, fewer with travel.codec; hierarchical: unused"
    )
    grid: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = Field(
        None, description="rows and columns of aggregators; unset: as square as clustering.clusters allows"
    )
    side_metres: PositiveFloat = Field(40.0, description="side of the square region, in metres")
    client_milliwatts: Range = Field([50.0, 100.0], description="range of the clients' transmission power, in mW")
    aggregator_dbm: Number = Field(33.0, description="the aggregators' transmission power, in dBm")
    bandwidth_hz: PositiveFloat = Field(10e6, description="channel bandwidth, in Hz")
    noise_dbm: Number = Field(-100.0, description="noise power, in dBm")
    path_loss_db: Number = Field(-40.0, description="channel gain at one metre, h0, in dB")
    path_loss_exponent: PositiveFloat = Field(4.0, description="the gain falls with this power of the distance")
    topology: str = Field(
        "grid", description="which aggregators are linked; or module:function returning a networkx.Graph"
    )
    clients_file: str | None = Field(
        None,
        description="CSV or Parquet: client, x, y, power, seconds_per_sample, samples, upload_seconds; with "
        "network.file, CSV: client (a name), x, y, seconds_per_sample, samples, and compute_watts, send_watts, "
        "receive_watts",
    )
    file: str | None = Field(
        None,
        description="links by name, with rates and latencies: CSV; or TOML or JSON, which may add clients and devices",
    )
    regions: Literal["pass", "average"] = Field(
        "pass",
        description="what nodes between aggregators and server do with models: pass them on or, in censyn, average "
        "them (network.file)",
    )
    aggregators_file: str | None = Field(
        None, description="CSV or Parquet of the aggregators' places: aggregator, x, y; the server is at their centre"
    )
    frequencies: list[PositiveFloat] | Literal["transfer"] | None = Field(
        None,
        description="asynchronous patterns: relative frequencies at which aggregators merge, in clock and bound alike; "
        "transfer: as if only transfers took time; unset: at their own speed",
    )
    downloads: bool = Field(False, description="count the time to send models to clients; else it is zero")
    trace_file: str | None = Field(None, description="CSV or Parquet of moving clients: round, client, x, y")
    metres_per_round: PositiveFloat | None = Field(
        None, description="distance that each client moves per round, from one random place to the next; unset: none"
    )
    recluster_every: Positive | None = Field(
        None, description="rounds after which moving clients are clustered again; unset: never"
    )


class MethodSettings(Section):
    """How clusters and server work together."""

    name: str = Field("fedcluster", description="the method; or module:function returning an atoll.Method")
    combine: str = Field(
        "mean", description="how clients' models are combined into their cluster's; or module:function returning a rule"
    )
    select: str = Field(
        "uniform", description="how cohorts are selected; or module:function returning an atoll.Selection"
    )
    encoder: str = Field(
        "start", description="fmcl: start: the initial model; or module:function returning a frozen torch.nn.Module"
    )
    weights: Literal["samples", "equal"] | None = Field(
        None,
        description="a client's weight in its cluster's model; unset: usually its samples; on a fleet with a rule "
        "other than the mean all weigh the same, since clients could misreport their samples",
    )


class FaultSettings(Section):
    """Which clients fail, and how failures are handled."""

    dropout: BelowOne = Field(
        0.0, description="probability, in each event, that a client receives the model and never answers"
    )
    deadline_seconds: PositiveFloat | None = Field(
        None, description="events wait this long; clients whose training and upload take longer are left out"
    )
    slots_per_day: Annotated[int, Field(ge=1, le=86_400)] | None = Field(
        None,
        description="divides the day into equal slots, numbered from 0 as in the column slots of data.clients_file; "
        "clients are absent from events that begin outside their slots; unset: always present",
    )
    availability_file: str | None = Field(
        None,
        description="CSV of when clients are available and how fast: client (its name in network.file, else its "
        "number), seconds, and any of up (up or down from then on), compute and rate (factors of its speed of "
        "computing, and of sending and receiving); clients are absent from events that begin while they are down",
    )
    tolerate: bool = Field(
        False,
        description="leave out results that are not finite, or have other names, shapes or types, instead of stopping",
    )
    max_update_norm: PositiveFloat | None = Field(
        None, description="leave out results whose update has a larger Euclidean norm"
    )
    usual_norms: Literal["refuse", "note", "off"] | None = Field(
        None,
        description="refuse: leave out results whose update is much longer than is usual in this run (see Faults); "
        "note: only record what is usual; unset: refuse on a fleet whose server sees single updates, otherwise off",
    )
    attackers: BelowOne = Field(
        0.0, description="share of the clients that attack, drawn from the seed for the whole run"
    )
    attack: Literal[
        "sign-flip", "noise", "label-flip", "free-rider", "not-finite", "little-is-enough", "inner-product", "none"
    ] = Field("sign-flip", description="what attackers do; see Faults")
    attack_strength: PositiveFloat | None = Field(
        None,
        description="sign-flip, noise (default 5): norm of what attackers send, relative to their honest update; "
        "inner-product (0.5): relative to the mean honest update; little-is-enough (1.5): in standard deviations",
    )
    claimed_samples: PositiveFloat = Field(
        1.0, description="factor by which attackers overstate their samples, for weighting and clustering"
    )
    claimed_loss: Number | None = Field(None, description="training loss that attackers report; unset: the true one")


class PrivacySettings(Section):
    """Whom clients trust with their updates, and what is hidden from everyone else."""

    trust: str = Field(
        "none", description="who sees client updates without noise: none: everyone; server; aggregator; or client"
    )


class SecureSettings(Section):
    """Secure sums, which hide each node's updates (experimental)."""

    sums: bool = Field(
        False, description="sum each cohort's updates as integers, which the nodes of a fleet mask; see Privacy"
    )
    range: PositiveFloat = Field(8.0, description="largest absolute value allowed in an update; larger is an error")
    fraction_bits: Annotated[int, Field(ge=1, le=52)] = Field(
        24, description="updates are rounded to multiples of 2 to the power of minus this"
    )
    threshold: Annotated[float, Field(ge=0.5, le=1)] = Field(
        2 / 3, description="share of a cohort's nodes that must answer in each step, rounded up; more than half"
    )
    least_nodes: Annotated[int, Field(ge=2, le=10_000)] = Field(
        3, description="fewest nodes a cohort may span; in simulation each client is a node"
    )


class RunSettings(Section):
    """How the run is executed and monitored."""

    executor: Annotated[  # a run may be resumed with another bit-identical executor, which checkpoints check
        Literal["auto", "serial", "cores", "ray", "stacked", "weighted", "fleet"], MAY_DIFFER
    ] = Field(
        "auto",
        description="serial: one client at a time; cores: the same on several processor cores; ray: the same on a Ray "
        "cluster; stacked: many clients in a batch; weighted: a cohort in one pass (one step of SGD); fleet: on "
        "the clients' own machines; auto: the fastest, by the rule in Concepts; never ray or fleet",
    )
    workers: Annotated[Positive | None, MAY_DIFFER] = Field(
        None, description="cores, ray: worker processes; unset: one per core, with run.address of the cluster"
    )
    address: Annotated[str | None, MAY_DIFFER] = Field(
        None, description="ray: host:port of a cluster's head node; unset: a new cluster on this machine"
    )
    stack_bytes: Positive | None = Field(
        None, description="stacked: largest size of a stack in bytes; unset: half of a GPU's memory, 64 MiB on the CPU"
    )
    state_bytes: Annotated[Positive | None, MAY_DIFFER] = Field(
        None,
        description="memory in bytes for clients' state; beyond this, it is kept in files of the run's folder; unset: "
        "no limit",
    )
    debug: bool = Field(
        False, description="serial: stop at the first bad step and show the layer and the whole traceback"
    )
    device: str = Field("cpu", description="cpu or cuda")
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="of products in training: tf32 (cuda) and bfloat16 round the factors; models stay float32",
    )
    cuda_graphs: bool = Field(
        False, description="stacked on a GPU: capture a step once and replay it; for small models and equal cohorts"
    )
    virtual_seconds: PositiveFloat | None = Field(
        None, description="end the run after this much virtual time, or after `rounds` if that comes first"
    )
    client_updates: Positive | None = Field(
        None, description="end the run before clients have trained more often than this, or after `rounds`"
    )
    stop_at: Annotated[str | None, MAY_DIFFER] = Field(
        None,
        description="end the run early: 'test_accuracy >= 0.9', 'test_loss <= 0.1', 'test_loss patience 5' (rounds "
        "without a better value), or several with 'or'; any metric of the rows",
    )
    evaluate_every: Positive = Field(1, description="rounds between evaluations")
    evaluate_samples: Positive | None = Field(
        None, description="samples on which the training loss is evaluated; unset: all"
    )
    heterogeneity: bool = Field(False, description="measure H_device and H_cluster at each evaluation")
    probes: list[str] = Field(
        default_factory=list, description="further evaluation metrics, as module:function; see Extending"
    )
    checkpoint_minutes: Annotated[PositiveFloat, MAY_DIFFER] = Field(2.0, description="minutes between checkpoints")
    checkpoint_every: Annotated[Positive | None, MAY_DIFFER] = Field(
        None, description="rounds after which to save a further checkpoint; unset: by time alone"
    )
    trackers: Annotated[list[Literal["tensorboard", "mlflow", "wandb"]], MAY_DIFFER] = Field(
        default_factory=list, description="where metrics are logged, besides the run's folder"
    )


class FleetSettings(Section):
    """A run on real machines (`run.executor = "fleet"`)."""

    nodes: Annotated[Positive | None, MAY_DIFFER] = Field(
        None, description="nodes that must be connected before the run begins; unset: one per client"
    )
    wait_seconds: Annotated[PositiveFloat, MAY_DIFFER] = Field(
        600.0, description="how long to wait for them before giving up"
    )
    deadline_seconds: Annotated[PositiveFloat, MAY_DIFFER] = Field(
        600.0, description="how long a task may take on a node; after that the event continues without it"
    )
    recluster_every: Positive | None = Field(
        None, description="rounds after which clients are clustered again, by what was measured; unset: never"
    )
    strikes: Annotated[Positive | None, MAY_DIFFER] = Field(
        3, description="consecutive late answers after which a client is not asked for a while; unset: always asked"
    )
    samples_limit: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = Field(
        2.0,
        description="caps a client's weight at this many times the median of the reported samples, unless fleet.toml "
        "states its samples; unset: no cap",
    )


class Sections(Section):
    """The settings at the top of an experiment file, and its sections; `Settings` checks them."""

    name: Annotated[str, MAY_DIFFER] = Field(
        "experiment", pattern=NAME, description="the experiment's name; by default a file's own"
    )
    label: Annotated[str, MAY_DIFFER] = Field("", description="label of the run's curve in figures")
    panel: Annotated[str, MAY_DIFFER] = Field("", description="panel of the figure in which the run's curve appears")
    description: Annotated[str, MAY_DIFFER] = Field(
        "", description="what the experiment shows; for recipes, the paper and figure"
    )
    seed: Count = Field(0, description="all random numbers are derived from it")
    rounds: Positive = Field(20, description="number of rounds, as the glossary defines them for the method")
    data: Data = Data()
    drift: DriftSettings = DriftSettings()
    model: ModelSettings = ModelSettings()
    travel: TravelSettings = TravelSettings()
    local: Local = Local()
    clustering: ClusteringSettings = ClusteringSettings()
    network: NetworkSettings = NetworkSettings()
    method: MethodSettings = MethodSettings()
    faults: FaultSettings = FaultSettings()
    privacy: PrivacySettings = PrivacySettings()
    secure: SecureSettings = SecureSettings()
    fleet: FleetSettings = FleetSettings()
    run: RunSettings = RunSettings()
