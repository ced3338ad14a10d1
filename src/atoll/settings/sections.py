"""The sections of one run's settings: here how it goes, and all of them together."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from atoll.settings import training_sections as training
from atoll.settings.section import MAY_DIFFER, Section
from atoll.support.limits import BelowOne, Count, Number, Positive, PositiveFloat

NAME = r"^\w[\w.,=() +-]*$"


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
    range: Annotated[float, Field(gt=0, le=1e12)] = Field(
        8.0, description="largest absolute value allowed in an update; larger is an error"
    )
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
        None, description="cores, ray: worker processes; unset: one per core, or for ray on GPUs, per GPU"
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
    device: str = Field(
        "cpu", description="cpu or cuda; stacked: or several, such as cuda:0,cuda:1, or one several times"
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="of products in training: tf32 (cuda) and bfloat16 round the factors; models stay float32",
    )
    cuda_graphs: Annotated[bool | Literal["auto"], MAY_DIFFER] = Field(  # of what it changes, checkpoints have a word
        "auto",
        description="stacked on a GPU: capture all local steps, or one, and replay them; auto: of small stacks that "
        "come often, if the bits are the same",
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
        600.0,
        description="how long to wait for them before giving up, at first or once all have gone; killed nodes count as "
        "there for up to 90 s, so a run gives up after the longer of both",
    )
    deadline_seconds: Annotated[PositiveFloat, MAY_DIFFER] = Field(
        600.0, description="how long a task may take on a node; after that the event continues without it"
    )
    recluster_every: Positive | None = Field(
        None, description="rounds after which clients are clustered again, by what was measured; unset: never"
    )
    strikes: Annotated[Positive | Literal["off"], MAY_DIFFER] = Field(
        3, description="consecutive late answers after which a client is not asked for a while; off: always asked"
    )
    samples_limit: Annotated[float, Field(ge=1, allow_inf_nan=False)] | Literal["off"] = Field(
        2.0,
        description="caps a client's weight at this many times the median of the reported samples, unless fleet.toml "
        "states its samples; off: no cap",
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
    data: training.Data = training.Data()
    drift: training.DriftSettings = training.DriftSettings()
    model: training.ModelSettings = training.ModelSettings()
    travel: training.TravelSettings = training.TravelSettings()
    local: training.Local = training.Local()
    clustering: training.ClusteringSettings = training.ClusteringSettings()
    network: training.NetworkSettings = training.NetworkSettings()
    method: training.MethodSettings = training.MethodSettings()
    faults: FaultSettings = FaultSettings()
    privacy: PrivacySettings = PrivacySettings()
    secure: SecureSettings = SecureSettings()
    fleet: FleetSettings = FleetSettings()
    run: RunSettings = RunSettings()

    def but(self, section: str, **values: Any) -> Self:
        """Return the settings with other values of a section, which are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})
