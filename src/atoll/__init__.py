"""Atoll: clustered and hierarchical federated learning, one engine, schedules known before training.

Most scripts need no more than the names below; each is imported when it is first used, so that ``import atoll`` takes
no time. What the experiment file names is a function here too: a method such as `fedcluster`, a robust rule such as
`krum`, and in modules of their own `partitions`, `clusterings`, `topologies`, `models`, `optimizers` and `attacks`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; `_HOMES` says the same, and a test that it does
    from atoll.aggregation.mean import average_gradients, average_models
    from atoll.aggregation.robust import (
        bulyan,
        centred_clipping,
        geometric_median,
        krum,
        median,
        multi_krum,
        norm_clipping,
        trimmed_mean,
    )
    from atoll.aggregation.screening import Screening
    from atoll.api import run, run_all
    from atoll.clustering import named_clusterings as clusterings
    from atoll.clustering.clustering import Clustering
    from atoll.clustering.feduc.problem import Problem
    from atoll.codecs.codec import Codec
    from atoll.data import datasets
    from atoll.data.datasets import Dataset, load
    from atoll.data.dealing import partition as partitions
    from atoll.data.files.torch_data import from_torch
    from atoll.data.population import Population, make_population
    from atoll.data.tabular.data_frames import from_pandas
    from atoll.engine.assignment import as_scheduled, least_loss
    from atoll.engine.chain import Chain, chain_of
    from atoll.engine.cohorts import Executor, only_model
    from atoll.engine.engine import Method, State, Step, init, train
    from atoll.engine.grouping import Grouping
    from atoll.engine.server_rule import ServerRule
    from atoll.engine.stages import Need, Stage
    from atoll.engine.trainer_spec import TrainerSpec
    from atoll.evaluation.scores import Evaluator, Heterogeneity, Score, heterogeneity
    from atoll.evaluation.theory import CflMgdBound, CflMgdTerms, FedClusterBound, cfl_mgd_bound, fedcluster_bound
    from atoll.executors.cores.cores_executor import Cores
    from atoll.executors.serial import Serial
    from atoll.executors.stacked.stacked_executor import Stacked
    from atoll.experiment.experiment import Experiment
    from atoll.faults import attacks
    from atoll.faults.attacks import attacking, draw_attackers
    from atoll.faults.dropouts import lose_clients
    from atoll.local import models
    from atoll.local import rule as optimizers
    from atoll.local.models import draw_model
    from atoll.local.rule import LocalRule
    from atoll.local.task import ClientTask, ClientUpdate
    from atoll.local.trainer import Trainer
    from atoll.local.weights import load_model, read_model
    from atoll.methods.papers.alone import alone
    from atoll.methods.papers.bcd import bcd
    from atoll.methods.papers.cfl import cfl
    from atoll.methods.papers.cfl_mgd import cfl_mgd
    from atoll.methods.papers.ditto import ditto
    from atoll.methods.papers.fedasync import fedasync
    from atoll.methods.papers.fedat import fedat
    from atoll.methods.papers.fedavg import centralized, fedavg
    from atoll.methods.papers.fedbcd import fedbcd
    from atoll.methods.papers.fedbuff import fedbuff
    from atoll.methods.papers.fedcluster import cycling, fedcluster
    from atoll.methods.papers.feddyn import feddyn
    from atoll.methods.papers.fedgroup import fedgroup
    from atoll.methods.papers.fednova import fednova
    from atoll.methods.papers.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
    from atoll.methods.papers.fesem import fesem
    from atoll.methods.papers.flhc import flhc
    from atoll.methods.papers.hierarchical import Phase, hierarchical
    from atoll.methods.papers.hierfavg import hierfavg
    from atoll.methods.papers.ifca import ifca
    from atoll.methods.papers.pacfl import pacfl
    from atoll.methods.papers.personal_parts import fedbn, fedper, fedrep
    from atoll.methods.papers.scaffold import scaffold
    from atoll.methods.parts.corrected_trainers import CorrectedTrainer
    from atoll.methods.parts.equal_clients import MeanAndShare, take_share, weigh_equally
    from atoll.methods.parts.staying import keep_at_clients
    from atoll.methods.parts.update_trainers import ModelTrainer, UpdateTrainer
    from atoll.methods.selection import Selection
    from atoll.network import topology as topologies
    from atoll.network.mobility import Trace, random_waypoint
    from atoll.network.network import Network
    from atoll.network.network_files import matrix_network
    from atoll.network.wireless import Radio, draw_watts, grid_positions, place_clients, wireless_network
    from atoll.report.figures import plot
    from atoll.report.figures.curves import plot_curves
    from atoll.report.reading.runs import Run, find_runs, read_run
    from atoll.report.report_files import save_figure, write_report
    from atoll.report.tables.frames import read_runs
    from atoll.report.tables.run_tables import rounds_to_target
    from atoll.runs.export import Exported, export_model
    from atoll.runs.result import Result, read_result
    from atoll.runs.run import run_events
    from atoll.schedules.events import Clock, Event, Mix, Schedule, make_event
    from atoll.schedules.overlapping import PendingWork, buffered, merge_jobs
    from atoll.schedules.timeline import cohort_size, draw_cohort
    from atoll.settings.experiment_file import make_runs, read_experiment
    from atoll.settings.sections import Settings
    from atoll.support.errors import AtollError, InputError, RunError
    from atoll.support.seeds import generator

    __version__: str

_HOMES = {
    "atoll.aggregation.mean": "average_gradients average_models",
    "atoll.aggregation.robust": "bulyan centred_clipping geometric_median krum median multi_krum norm_clipping "
    "trimmed_mean",
    "atoll.aggregation.screening": "Screening",
    "atoll.api": "run run_all",
    "atoll.clustering.clustering": "Clustering",
    "atoll.clustering.feduc.problem": "Problem",
    "atoll.codecs.codec": "Codec",
    "atoll.data.datasets": "Dataset load",
    "atoll.data.tabular.data_frames": "from_pandas",
    "atoll.data.population": "Population make_population",
    "atoll.data.files.torch_data": "from_torch",
    "atoll.engine.assignment": "as_scheduled least_loss",
    "atoll.engine.cohorts": "Executor only_model",
    "atoll.engine.engine": "Method State Step init train",
    "atoll.engine.grouping": "Grouping",
    "atoll.engine.server_rule": "ServerRule",
    "atoll.evaluation.scores": "Evaluator Heterogeneity Score heterogeneity",
    "atoll.evaluation.theory": "CflMgdBound CflMgdTerms FedClusterBound cfl_mgd_bound fedcluster_bound",
    "atoll.executors.cores.cores_executor": "Cores",
    "atoll.executors.serial": "Serial",
    "atoll.executors.stacked.stacked_executor": "Stacked",
    "atoll.experiment.experiment": "Experiment",
    "atoll.settings.experiment_file": "make_runs read_experiment",
    "atoll.settings.sections": "Settings",
    "atoll.engine.chain": "Chain chain_of",
    "atoll.engine.stages": "Need Stage",
    "atoll.engine.trainer_spec": "TrainerSpec",
    "atoll.faults.attacks": "attacking draw_attackers",
    "atoll.faults.dropouts": "lose_clients",
    "atoll.local.models": "draw_model",
    "atoll.local.rule": "LocalRule",
    "atoll.local.task": "ClientTask ClientUpdate",
    "atoll.local.trainer": "Trainer",
    "atoll.local.weights": "load_model read_model",
    "atoll.methods.papers.alone": "alone",
    "atoll.methods.papers.bcd": "bcd",
    "atoll.methods.papers.cfl": "cfl",
    "atoll.methods.papers.cfl_mgd": "cfl_mgd",
    "atoll.methods.papers.ditto": "ditto",
    "atoll.methods.papers.fedasync": "fedasync",
    "atoll.methods.papers.fedat": "fedat",
    "atoll.methods.papers.fedavg": "centralized fedavg",
    "atoll.methods.papers.fedbcd": "fedbcd",
    "atoll.methods.papers.fedbuff": "fedbuff",
    "atoll.methods.papers.fedcluster": "cycling fedcluster",
    "atoll.methods.papers.feddyn": "feddyn",
    "atoll.methods.papers.fedgroup": "fedgroup",
    "atoll.methods.papers.fednova": "fednova",
    "atoll.methods.papers.fedopt": "fedadagrad fedadam fedavgm fedyogi",
    "atoll.methods.papers.fesem": "fesem",
    "atoll.methods.papers.flhc": "flhc",
    "atoll.methods.papers.hierarchical": "Phase hierarchical",
    "atoll.methods.papers.hierfavg": "hierfavg",
    "atoll.methods.papers.ifca": "ifca",
    "atoll.methods.papers.pacfl": "pacfl",
    "atoll.methods.papers.personal_parts": "fedbn fedper fedrep",
    "atoll.methods.papers.scaffold": "scaffold",
    "atoll.methods.selection": "Selection",
    "atoll.methods.parts.staying": "keep_at_clients",
    "atoll.network.network": "Network",
    "atoll.network.network_files": "matrix_network",
    "atoll.network.mobility": "Trace random_waypoint",
    "atoll.network.wireless": "Radio draw_watts grid_positions place_clients wireless_network",
    "atoll.report.figures.curves": "plot_curves",
    "atoll.report.report_files": "save_figure write_report",
    "atoll.report.tables.frames": "read_runs",
    "atoll.report.reading.runs": "Run find_runs read_run",
    "atoll.report.tables.run_tables": "rounds_to_target",
    "atoll.runs.export": "Exported export_model",
    "atoll.runs.result": "Result read_result",
    "atoll.runs.run": "run_events",
    "atoll.schedules.events": "Clock Event Mix Schedule make_event",
    "atoll.schedules.overlapping": "PendingWork buffered merge_jobs",
    "atoll.schedules.timeline": "cohort_size draw_cohort",
    "atoll.methods.parts.equal_clients": "MeanAndShare take_share weigh_equally",
    "atoll.methods.parts.corrected_trainers": "CorrectedTrainer",
    "atoll.methods.parts.update_trainers": "ModelTrainer UpdateTrainer",
    "atoll.support.errors": "AtollError InputError RunError",
    "atoll.support.seeds": "generator",
}
"""Public names by the module that defines them."""

_MODULES = {
    "attacks": "atoll.faults.attacks",
    "clusterings": "atoll.clustering.named_clusterings",
    "datasets": "atoll.data.datasets",
    "models": "atoll.local.models",
    "optimizers": "atoll.local.rule",
    "partitions": "atoll.data.dealing.partition",
    "plot": "atoll.report.figures.plot",
    "topologies": "atoll.network.topology",
}
"""Modules of functions: what a setting may name, and what draws into axes."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AtollError",
    "CflMgdBound",
    "CflMgdTerms",
    "Chain",
    "ClientTask",
    "ClientUpdate",
    "Clock",
    "Clustering",
    "Codec",
    "Cores",
    "CorrectedTrainer",
    "Dataset",
    "Evaluator",
    "Event",
    "Executor",
    "Experiment",
    "Exported",
    "FedClusterBound",
    "Grouping",
    "Heterogeneity",
    "InputError",
    "LocalRule",
    "MeanAndShare",
    "Method",
    "Mix",
    "ModelTrainer",
    "Need",
    "Network",
    "PendingWork",
    "Phase",
    "Population",
    "Problem",
    "Radio",
    "Result",
    "Run",
    "RunError",
    "Schedule",
    "Score",
    "Screening",
    "Selection",
    "Serial",
    "ServerRule",
    "Settings",
    "Stacked",
    "Stage",
    "State",
    "Step",
    "Trace",
    "Trainer",
    "TrainerSpec",
    "UpdateTrainer",
    "__version__",
    "alone",
    "as_scheduled",
    "attacking",
    "attacks",
    "average_gradients",
    "average_models",
    "bcd",
    "buffered",
    "bulyan",
    "centralized",
    "centred_clipping",
    "cfl",
    "cfl_mgd",
    "cfl_mgd_bound",
    "chain_of",
    "clusterings",
    "cohort_size",
    "cycling",
    "datasets",
    "ditto",
    "draw_attackers",
    "draw_cohort",
    "draw_model",
    "draw_watts",
    "export_model",
    "fedadagrad",
    "fedadam",
    "fedasync",
    "fedat",
    "fedavg",
    "fedavgm",
    "fedbcd",
    "fedbn",
    "fedbuff",
    "fedcluster",
    "fedcluster_bound",
    "feddyn",
    "fedgroup",
    "fednova",
    "fedper",
    "fedrep",
    "fedyogi",
    "fesem",
    "find_runs",
    "flhc",
    "from_pandas",
    "from_torch",
    "generator",
    "geometric_median",
    "grid_positions",
    "heterogeneity",
    "hierarchical",
    "hierfavg",
    "ifca",
    "init",
    "keep_at_clients",
    "krum",
    "least_loss",
    "load",
    "load_model",
    "lose_clients",
    "make_event",
    "make_population",
    "make_runs",
    "matrix_network",
    "median",
    "merge_jobs",
    "models",
    "multi_krum",
    "norm_clipping",
    "only_model",
    "optimizers",
    "pacfl",
    "partitions",
    "place_clients",
    "plot",
    "plot_curves",
    "random_waypoint",
    "read_experiment",
    "read_model",
    "read_result",
    "read_run",
    "read_runs",
    "rounds_to_target",
    "run",
    "run_all",
    "run_events",
    "save_figure",
    "scaffold",
    "take_share",
    "topologies",
    "train",
    "trimmed_mean",
    "weigh_equally",
    "wireless_network",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("atoll")
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
