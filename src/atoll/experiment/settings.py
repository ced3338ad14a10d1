"""The settings of one run: every section of the experiment file, with what each setting may be."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 10**15  # counts above it are slips, and their products would not fit into 64 bits

Positive = Annotated[int, Field(ge=1, le=LARGEST)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Range = Annotated[list[PositiveFloat], Field(min_length=2, max_length=2)]
Options = dict[str, Any]

MAY_DIFFER = "a run may go on with another value"
"""Marks a setting that changes neither a run's bits nor its rows."""


class Section(BaseModel):
    """A table of the experiment file; unknown settings are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class Data(Section):
    """What the clients hold."""

    dataset: str = Field(
        "digits", description="digits, regression, mnist, cifar10, folder, or module:function giving an atoll.Dataset"
    )
    root: Annotated[str | None, MAY_DIFFER] = Field(
        None, description="folder with the data files; else ATOLL_DATA, else the user's cache"
    )
    fetch: Annotated[bool, MAY_DIFFER] = Field(True, description="download missing files")
    partition: str = Field(
        "iid", description="iid, dirichlet, shards, major-class, one-label, rotated, planted, natural, module:function"
    )
    clients: Positive = Field(100, description="number of clients")
    samples: Positive | None = Field(None, description="samples a client; unset: the pool is dealt out")
    rho_device: float | None = Field(None, description="major-class: share of a client's major class")
    alpha: PositiveFloat | None = Field(None, description="dirichlet: concentration")
    shards_per_client: Positive | None = Field(None, description="shards: shards a client gets")
    rotations: Literal[1, 2, 4] | None = Field(None, description="turned copies of the pool; rotated: 4 if unset")
    size_ratio: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.0, description="one-label: clients' sizes are drawn evenly from a range whose ends have this ratio"
    )
    clients_file: str | None = Field(None, description="CSV with one row a client: utc_offset, longitude, slots")
    options: Options = Field(
        default_factory=dict, description="arguments of regression, of folder, or of your own partition"
    )


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

    method: str = Field(
        "random",
        description="random, timezone, availability, major-class, comaw, dataw, feduc, or module:function",
    )
    clusters: Positive = Field(10, description="number of clusters, M")
    rho_cluster: float | None = Field(None, description="major-class: share of a cluster's major class")
    local_hour: float | None = Field(None, description="timezone: the hour of the clients' day at which they train")
    slots_per_client: Positive | None = Field(None, description="availability: random slots a client, if none is known")
    time_limit: PositiveFloat | None = Field(None, description="feduc: longest completion in a cluster, s; unset: none")
    overshoot: bool = Field(False, description="feduc: put a client that fits nowhere where it overshoots least")
    refine: bool = Field(False, description="feduc: improve the greedy clustering by moves and swaps")
    objective: Literal["bound", "time"] = Field(
        "bound",
        description="feduc: least bound after `rounds`, or within `seconds` of virtual time, choosing the limit",
    )
    seconds: PositiveFloat | None = Field(None, description="feduc: the virtual time of objective = time")
    xi: Literal["labels", "gradients", "shares"] = Field(
        "labels", description="feduc: xi_j from class-mean gradients, from clients' gradients, or from class shares"
    )
    warmup_rounds: Annotated[int, Field(ge=0)] = Field(
        0, description="feduc: with xi = gradients, rounds of FedAvg along which xi is measured as well"
    )
    mu: PositiveFloat | Literal["estimate"] = Field(1.0, description="feduc: strong convexity, or estimate")
    smoothness: PositiveFloat | Literal["estimate"] = Field(10.0, description="feduc: L, or estimate")
    initial_gap: PositiveFloat | None = Field(None, description="feduc: F(w0) - F*; unset: the loss at the start")
    frequencies: list[PositiveFloat] | Literal["transfer"] | None = Field(
        None,
        description="feduc: psi_j of all aggregators up to a factor; transfer: as if transfers alone took time; unset: "
        "from the virtual clock",
    )
    options: Options = Field(default_factory=dict, description="arguments of your own clustering")


class NetworkSettings(Section):
    """How long things take."""

    seconds_per_sample: NotNegative | Range = Field(
        0.001, description="seconds to train on one sample, zeta; a list of two: drawn for each client from this range"
    )
    upload_seconds: NotNegative = Field(1.0, description="a client's seconds to upload its model; hierarchical: unused")
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
        "grid", description="grid, ring, star, complete, regular, erdos-renyi, edges, or module:function"
    )
    degree: Positive | None = Field(None, description="regular: neighbours of each aggregator")
    probability: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="erdos-renyi: of an edge")
    edges: list[list[int]] | str | None = Field(None, description="edges: pairs of aggregators, or a file of them")
    clients_file: str | None = Field(
        None, description="CSV or Parquet: client, x, y, power, seconds_per_sample, samples"
    )
    upload_file: str | None = Field(None, description="CSV or .npy of seconds, clients x aggregators")
    transfer_file: str | None = Field(None, description="CSV or .npy of seconds to the server, one an aggregator")
    exchange_file: str | None = Field(None, description="CSV or .npy of seconds, aggregators x aggregators")
    trace_file: str | None = Field(None, description="CSV or Parquet of clients that move: round, client, x, y")
    metres_per_round: PositiveFloat | None = Field(
        None, description="clients move so far a round, each to one random place after the other; unset: they stay"
    )
    recluster_every: Positive | None = Field(
        None, description="rounds after which clients that move are clustered anew"
    )


class MethodSettings(Section):
    """How clusters and server work together."""

    name: str = Field(
        "fedcluster",
        description="centralized, fedavg, fedcluster, hierarchical, ifca, cfl-mgd, fedbcd, module:function",
    )
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(0.1, description="share of a cluster's clients in a cohort")
    order: Literal["reshuffled", "fixed"] = Field("reshuffled", description="fedcluster: order of the cycles")
    pattern: Literal["censyn", "cenasy", "decsyn", "decasy"] = Field(
        "cenasy", description="hierarchical: how clusters merge: central or not, synchronous or not"
    )
    intra_rounds: Positive = Field(5, description="hierarchical: averages in a cluster before each merge, T'")
    clusters: Positive = Field(4, description="ifca, cfl-mgd: number of models, P")
    beta: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="cfl-mgd: the clusters' momentum")
    option: Literal["models", "gradients"] = Field("models", description="ifca, cfl-mgd: what is averaged")
    restarts: Positive = Field(1, description="ifca, cfl-mgd: starts tried; the one with the least loss is kept")
    restart_rounds: Positive = Field(3, description="ifca, cfl-mgd: rounds that each start is tried for")
    resample: bool = Field(False, description="ifca, cfl-mgd: disjoint data for identity and training, every round")
    shared_layers: Annotated[int, Field(ge=0)] = Field(0, description="ifca, cfl-mgd: first layers that all share")
    combine: str = Field(
        "mean",
        description="how clients' models become their cluster's: mean, median, trimmed-mean, norm-clipping, krum, or "
        "module:function returning a rule",
    )
    trim: Annotated[float, Field(ge=0, lt=0.5)] | None = Field(
        None, description="trimmed-mean: share of the weight that is cut off at each end"
    )
    clip_norm: PositiveFloat | None = Field(None, description="norm-clipping: the longest update, as a Euclidean norm")
    byzantine: Annotated[int, Field(ge=0, le=LARGEST)] | None = Field(
        None, description="krum: clients of a cohort that may send anything, f"
    )
    parties: Positive = Field(2, description="fedbcd: parties that the features are split over, K")
    mode: Literal["parallel", "sequential"] = Field("parallel", description="fedbcd: parties train at once or in turn")
    options: Options = Field(default_factory=dict, description="arguments of your own method")


class FaultSettings(Section):
    """Which clients fail, and what is done about it."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
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
    tolerate: bool = Field(
        False, description="leave out results that are not finite, or of other names, shapes or types; else an error"
    )
    max_update_norm: PositiveFloat | None = Field(
        None, description="leave out results whose update is longer, as a Euclidean norm"
    )
    attackers: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share of the clients that attack; the seed says which, for the whole run"
    )
    attack: Literal["sign-flip", "noise", "label-flip", "not-finite"] = Field(
        "sign-flip", description="what attackers do: see Faults"
    )
    attack_strength: PositiveFloat = Field(
        5.0, description="sign-flip, noise: length of what attackers send, in lengths of their honest update"
    )


class Run(Section):
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
    debug: bool = Field(
        False, description="serial: stop at the first bad step, with the layer's and the error's whole traceback"
    )
    device: str = Field("cpu", description="cpu or cuda")
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="of products in training: tf32 (cuda) or bfloat16 round what is multiplied; models stay float32",
    )
    virtual_seconds: PositiveFloat | None = Field(
        None, description="the run ends after so much virtual time, or after `rounds` if that is sooner"
    )
    evaluate_every: Positive = Field(1, description="rounds between probes")
    evaluate_samples: Positive | None = Field(None, description="probe the training loss on so many; unset: on all")
    heterogeneity: bool = Field(False, description="measure H_device and H_cluster at each probe")
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


class Settings(Section):
    """All settings of one run."""

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
    local: Local = Local()
    clustering: ClusteringSettings = ClusteringSettings()
    network: NetworkSettings = NetworkSettings()
    method: MethodSettings = MethodSettings()
    faults: FaultSettings = FaultSettings()
    fleet: FleetSettings = FleetSettings()
    run: Run = Run()
