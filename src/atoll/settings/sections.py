"""The settings of one run: every section of the experiment file, with what each setting may be."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from atoll.support.errors import InputError
from atoll.support.limits import BelowOne, Count, NotNegative, Number, Positive, PositiveFloat, Range

MAY_DIFFER = "a run may go on with another value"
"""Marks a setting that changes neither a run's bits nor its rows."""


class Section(BaseModel):
    """A table of the experiment file; unknown settings are refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    def __eq__(self, other: object) -> bool:
        """Compare settings, whichever class was made for the functions that they name."""
        return isinstance(other, Section) and type(self).__name__ == type(other).__name__ and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse: settings that may change are settings that were never checked."""
        raise InputError(f"{name}: settings do not change; run with others, as in atoll.run(settings, {name}=...)")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting that may not be one of the section's, since none of the functions that it names takes it."""
        return getattr(self, key, default) if key in type(self).model_fields else default


class Data(Section):
    """What the clients hold."""

    dataset: str = Field("digits", description="the samples; or module:function returning an atoll.Dataset")
    root: Annotated[str | None, MAY_DIFFER] = Field(
        None, description="folder with the data files; else ATOLL_DATA, else the user's cache"
    )
    fetch: Annotated[bool, MAY_DIFFER] = Field(True, description="download missing files")
    partition: str = Field("iid", description="which client holds which samples; or module:function")
    clients: Positive = Field(100, description="number of clients")
    held_out_clients: Count = Field(0, description="further clients, which never train; probes may measure them")
    rotations: Literal[1, 2, 4] | None = Field(None, description="turned copies of the pool; rotated: 4 if unset")
    skew: str = Field("none", description="how inputs differ by client; or module:function returning changed inputs")
    skew_levels: Positive | None = Field(None, description="different skews, the planted groups; unset: one a client")
    standardise: Literal["none", "unit", "pool", "image", "given"] = Field(
        "unit",
        description="inputs as stored, to a unit range, then to mean 0 and deviation 1 by the pool's channels, each by "
        "itself, or by mean and deviation",
    )
    mean: Number | list[Number] | None = Field(None, description="standardise = given: a number, or one a channel")
    deviation: Number | list[Number] | None = Field(None, description="the same; positive")
    clients_file: str | None = Field(None, description="CSV with one row a client: utc_offset, longitude, slots")


class ModelSettings(Section):
    """What is trained."""

    name: str = Field("mlp", description="the network; or module:factory returning an nn.Module")
    travels: Literal["all", "trainable"] | list[str] = Field(
        "all",
        description="what is sent of it: all; trainable: all but frozen parameters; or patterns of names, the rest "
        "staying with each client",
    )


class TravelSettings(Section):
    """What becomes of an update on its way from a client to its cluster."""

    stages: list[str] = Field(
        [], description="stages that an update passes, in this order; or module:function returning an atoll.Stage"
    )
    codec: str = Field(
        "none",
        description="makes fewer bytes of what a client's model has changed by; models that are sent down stay as they "
        "are; or module:function returning an atoll.Codec",
    )
    feedback: bool = Field(
        True, description="clients keep what their updates lose, and add it to the next; without a codec: unused"
    )


class Local(Section):
    """How a client trains."""

    optimizer: str = Field("sgd", description="what takes a step; or module:function returning an Optimizer")
    lr: PositiveFloat = Field(0.05, description="learning rate")
    steps: Positive = Field(20, description="local steps in one local training")
    epochs: PositiveFloat | None = Field(
        None, description="in the place of steps: as many as so many epochs of a client's own samples need"
    )
    batch_size: Positive | Literal["full"] = Field(30, description="samples a step, or full")
    proximal: NotNegative = Field(0.0, description="FedProx's mu")
    lr_factor: PositiveFloat = Field(1.0, description="multiplies lr, so that runs can differ in it and share lr")
    lr_decay: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="the learning rate's factor after a round")


class ClusteringSettings(Section):
    """Which clients aggregate together."""

    method: str = Field("random", description="how clients are clustered; or module:function")
    clusters: Positive = Field(10, description="number of clusters, M")


class NetworkSettings(Section):
    """How long things take."""

    seconds_per_sample: NotNegative | Range = Field(
        0.001, description="seconds to train on one sample, zeta; a list of two: drawn for each client from this range"
    )
    upload_seconds: NotNegative = Field(
        1.0, description="a client's seconds to upload its model, fewer with travel.codec; hierarchical: unused"
    )
    grid: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = Field(
        None, description="rows and columns of aggregators; unset: as square as clustering.clusters allows"
    )
    side_metres: PositiveFloat = Field(40.0, description="side of the square region")
    client_milliwatts: Range = Field([50.0, 100.0], description="range of the clients' transmission powers")
    aggregator_dbm: Number = Field(33.0, description="the aggregators' transmission power")
    bandwidth_hz: PositiveFloat = Field(10e6, description="bandwidth of a channel")
    noise_dbm: Number = Field(-100.0, description="noise power")
    path_loss_db: Number = Field(-40.0, description="channel gain at one metre, h0")
    path_loss_exponent: PositiveFloat = Field(4.0, description="the gain falls with this power of the distance")
    topology: str = Field(
        "grid", description="which aggregators are linked; or module:function returning a networkx.Graph"
    )
    clients_file: str | None = Field(
        None,
        description="CSV or Parquet: client, x, y, power, seconds_per_sample, samples, upload_seconds; beside "
        "network.file CSV: client (a name), x, y, seconds_per_sample, samples, and watts: compute_watts, send_watts, "
        "receive_watts",
    )
    file: str | None = Field(
        None,
        description="links by name, with rates and latencies: CSV, or TOML or JSON with clients and devices besides",
    )
    regions: Literal["pass", "average"] = Field(
        "pass",
        description="what nodes between aggregators and server do with models: pass each on or, in censyn, average "
        "them (network.file)",
    )
    aggregators_file: str | None = Field(
        None, description="CSV or Parquet of where aggregators are: aggregator, x, y; the server is in their middle"
    )
    frequencies: list[PositiveFloat] | Literal["transfer"] | None = Field(
        None,
        description="asynchronous patterns: how often aggregators merge, one number each up to a factor, in clock and "
        "bound alike; transfer: as if transfers alone took time; unset: at their own speed",
    )
    downloads: bool = Field(False, description="count what sending models down takes; else it is free")
    trace_file: str | None = Field(None, description="CSV or Parquet of clients that move: round, client, x, y")
    metres_per_round: PositiveFloat | None = Field(
        None, description="clients move so far a round, each to one random place after the other; unset: they stay"
    )
    recluster_every: Positive | None = Field(
        None, description="rounds after which clients that move are clustered anew"
    )


class MethodSettings(Section):
    """How clusters and server work together."""

    name: str = Field("fedcluster", description="the method; or module:function returning an atoll.Method")
    combine: str = Field(
        "mean", description="how clients' models become their cluster's; or module:function returning a rule"
    )
    select: str = Field("uniform", description="who is in a cohort; or module:function returning an atoll.Selection")
    weights: Literal["samples", "equal"] | None = Field(
        None,
        description="what a client counts for in its cluster's model; unset: its samples, mostly; on a fleet "
        "with another rule than the mean all count alike, since samples are clients' own word",
    )


class FaultSettings(Section):
    """Which clients fail, and what is done about it."""

    dropout: BelowOne = Field(
        0.0, description="probability that a client takes the model and never answers, in each event"
    )
    deadline_seconds: PositiveFloat | None = Field(
        None, description="an event waits no longer; clients whose training and upload take longer are left out"
    )
    slots_per_day: Annotated[int, Field(ge=1, le=86_400)] | None = Field(
        None,
        description="equal slots of the day, which the column slots of data.clients_file counts from 0; clients are "
        "absent from events that begin in others than theirs; unset: always there",
    )
    availability_file: str | None = Field(
        None,
        description="CSV of when clients are there and how fast: client (as network.file calls it, else its number), "
        "seconds, and any of up (up or down from then on), compute and rate (how many times as fast as by itself it "
        "computes, and sends and receives); clients are absent from events that begin while they are down",
    )
    tolerate: bool = Field(
        False, description="leave out results that are not finite, or of other names, shapes or types; else an error"
    )
    max_update_norm: PositiveFloat | None = Field(
        None, description="leave out results whose update is longer, as a Euclidean norm"
    )
    attackers: BelowOne = Field(
        0.0, description="share of the clients that attack; the seed says which, for the whole run"
    )
    attack: Literal[
        "sign-flip", "noise", "label-flip", "free-rider", "not-finite", "little-is-enough", "inner-product", "none"
    ] = Field("sign-flip", description="what attackers do: see Faults")
    attack_strength: PositiveFloat | None = Field(
        None,
        description="sign-flip, noise (5): length of what attackers send, in lengths of their honest update; "
        "inner-product (0.5): the same, of the mean honest update; little-is-enough (1.5): standard deviations",
    )
    claimed_samples: PositiveFloat = Field(
        1.0, description="attackers say that they hold so many times their samples, which weigh them and cluster them"
    )
    claimed_loss: Number | None = Field(None, description="training loss that attackers report; unset: their own")


class PrivacySettings(Section):
    """Whom clients trust with what they send, and what is hidden from all others."""

    trust: str = Field(
        "none", description="who sees a client's update without noise: none: all do; server, aggregator, or client"
    )


class SecureSettings(Section):
    """Sums of updates that hide what each node adds (experimental)."""

    sums: bool = Field(
        False, description="sum each cohort's updates as whole numbers, which nodes of a fleet mask; see Privacy"
    )
    range: PositiveFloat = Field(8.0, description="no number of an update may be larger in size: else an error")
    fraction_bits: Annotated[int, Field(ge=1, le=52)] = Field(
        24, description="numbers of updates are rounded to multiples of 2 to the minus this"
    )
    threshold: Annotated[float, Field(ge=0.5, le=1)] = Field(
        2 / 3, description="share of a cohort's nodes that must answer in each step, rounded up; more than half"
    )
    least_nodes: Annotated[int, Field(ge=2, le=10_000)] = Field(
        3, description="nodes that a cohort must be on; in simulation each client is one"
    )


class RunSettings(Section):
    """How the run is carried out and watched."""

    executor: Annotated[  # of executors with equal bits a run may go on with another; checkpoints know them
        Literal["auto", "serial", "cores", "ray", "stacked", "weighted", "fleet"], MAY_DIFFER
    ] = Field(
        "auto",
        description="serial: client by client; cores: the same on several processor cores; ray: the same on a Ray "
        "cluster; stacked: many clients in a batch; weighted: a cohort in one pass (one step of SGD); fleet: on "
        "the clients' own machines; auto: the fastest by the rule in concepts, never ray or fleet",
    )
    workers: Annotated[Positive | None, MAY_DIFFER] = Field(
        None, description="cores, ray: worker processes; unset: one a core, of the cluster with run.address"
    )
    address: Annotated[str | None, MAY_DIFFER] = Field(
        None, description="ray: host:port of a cluster's head; unset: a cluster of its own on this machine"
    )
    stack_bytes: Positive | None = Field(
        None, description="stacked: bytes that one stack may take; unset: half of a GPU's memory, 64 MiB on the CPU"
    )
    state_bytes: Annotated[Positive | None, MAY_DIFFER] = Field(
        None,
        description="bytes that what clients keep may take in memory; once it takes more it is put into files of the "
        "run's folder; unset: all of it stays in memory",
    )
    debug: bool = Field(
        False, description="serial: stop at the first bad step, with the layer's and the error's whole traceback"
    )
    device: str = Field("cpu", description="cpu or cuda")
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="of products in training: tf32 (cuda) or bfloat16 round what is multiplied; models stay float32",
    )
    cuda_graphs: bool = Field(
        False, description="stacked on a GPU: capture a step once and replay it; for small models and equal cohorts"
    )
    virtual_seconds: PositiveFloat | None = Field(
        None, description="the run ends after so much virtual time, or after `rounds` if that is sooner"
    )
    evaluate_every: Positive = Field(1, description="rounds between probes")
    evaluate_samples: Positive | None = Field(None, description="probe the training loss on so many; unset: on all")
    heterogeneity: bool = Field(False, description="measure H_device and H_cluster at each probe")
    probes: list[str] = Field(
        default_factory=list, description="what else is measured at each probe, as module:function; see Extending"
    )
    checkpoint_minutes: Annotated[PositiveFloat, MAY_DIFFER] = Field(2.0, description="minutes between checkpoints")
    checkpoint_every: Annotated[Positive | None, MAY_DIFFER] = Field(
        None, description="rounds between checkpoints, besides"
    )
    trackers: Annotated[list[Literal["tensorboard", "mlflow", "wandb"]], MAY_DIFFER] = Field(
        default_factory=list, description="where rows of metrics are logged, besides the run's folder"
    )


class FleetSettings(Section):
    """How a run on real machines goes (`run.executor = "fleet"`)."""

    nodes: Annotated[Positive | None, MAY_DIFFER] = Field(
        None, description="nodes that must be there to begin; unset: one for every client"
    )
    wait_seconds: Annotated[PositiveFloat, MAY_DIFFER] = Field(
        600.0, description="how long to wait for them before giving up"
    )
    deadline_seconds: Annotated[PositiveFloat, MAY_DIFFER] = Field(
        600.0, description="how long one task may take on a node; then the event goes on without it"
    )
    recluster_every: Positive | None = Field(
        None, description="rounds after which clients are clustered anew by what was measured of them; unset: never"
    )
    strikes: Annotated[Positive | None, MAY_DIFFER] = Field(
        3, description="late answers in a row after which a client is not asked for a while; unset: always asked"
    )
    samples_limit: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = Field(
        2.0,
        description="a client counts for at most so many times the median of the samples that clients report, unless "
        "fleet.toml says how many it holds; unset: any number",
    )


class _Checked(type(BaseModel)):  # type: ignore[misc]
    """Makes of ``Settings(...)`` what an experiment file with these tables gives."""

    def __call__(cls, *args: Any, **table: Any) -> Any:
        """Check the table as a file's, whose sections have what the functions take that they name."""
        if cls is not Settings:
            return super().__call__(*args, **table)
        from atoll.settings.given_objects import named
        from atoll.settings.validation import validate

        if args:
            raise InputError("Settings: are given by name, such as Settings(rounds=5, local={'lr': 0.1})")
        return validate(named(table))


class Settings(Section, metaclass=_Checked):
    """All settings of one run.

    >>> Settings(rounds=5, method={"name": "fedavg", "fraction": 0.5}).method.fraction
    0.5
    """

    name: Annotated[str, MAY_DIFFER] = Field(
        "experiment", pattern=r"^\w[\w.,=() +-]*$", description="the experiment's name"
    )
    label: Annotated[str, MAY_DIFFER] = Field("", description="what the run's curve is called in figures")
    panel: Annotated[str, MAY_DIFFER] = Field("", description="the panel of a figure that the run's curve belongs to")
    description: Annotated[str, MAY_DIFFER] = Field(
        "", description="what the experiment shows; for recipes, the paper and figure"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="every random number is derived from it")
    rounds: Positive = Field(20, description="rounds, as the glossary defines them for the method")
    data: Data = Data()
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a process be sent settings, whose class is made from the functions that they name."""
        from atoll.settings.validation import validate

        return validate, (self.model_dump(),)
