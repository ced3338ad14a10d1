"""The settings of what is trained and how: data, model, clients, clusters and network."""

from typing import Annotated, Literal

from pydantic import Field

from atoll.settings.section import MAY_DIFFER, Section
from atoll.support.limits import Count, NotNegative, Number, Positive, PositiveFloat, Range, Share


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
    lr_factor: PositiveFloat = Field(1.0, description="multiplies all rates, so that runs may differ in this alone")
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
        "network.file, CSV: client (a name), seconds_per_sample, samples, and compute_watts, send_watts, receive_watts",
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
