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
    from atoll.clustering import table as clusterings
    from atoll.clustering.clustering import Clustering
    from atoll.clustering.feduc.problem import Problem
    from atoll.codecs.codec import Codec
    from atoll.data import datasets
    from atoll.data import partition as partitions
    from atoll.data.datasets import Dataset, load
    from atoll.data.frames import from_pandas
    from atoll.data.population import Population, make_population
    from atoll.data.torch_data import from_torch
    from atoll.engine.assignment import as_scheduled, least_loss
    from atoll.engine.cohorts import Executor
    from atoll.engine.engine import Method, State, Step, init, train
    from atoll.engine.grouping import Grouping
    from atoll.engine.server import ServerRule
    from atoll.evaluation.scores import Evaluator, Heterogeneity, Score, heterogeneity
    from atoll.evaluation.theory import CflMgdBound, CflMgdTerms, FedClusterBound, cfl_mgd_bound, fedcluster_bound
    from atoll.executors.cores.executor import Cores
    from atoll.executors.serial import Serial
    from atoll.executors.stacked.executor import Stacked
    from atoll.experiment.experiment import Experiment
    from atoll.experiment.file import make_runs, read_experiment
    from atoll.experiment.settings import Settings
    from atoll.faults import attacks
    from atoll.faults.attacks import Attacked, draw_attackers
    from atoll.faults.dropouts import lose_clients
    from atoll.local import models
    from atoll.local import rule as optimizers
    from atoll.local.models import draw_model
    from atoll.local.rule import LocalRule
    from atoll.local.task import ClientTask, ClientUpdate
    from atoll.local.trainer import Trainer
    from atoll.local.weights import load_model, read_model
    from atoll.methods.alone import alone
    from atoll.methods.bcd import bcd
    from atoll.methods.cfl import cfl
    from atoll.methods.cfl_mgd import cfl_mgd
    from atoll.methods.ditto import ditto
    from atoll.methods.fedasync import fedasync
    from atoll.methods.fedat import fedat
    from atoll.methods.fedavg import centralized, fedavg
    from atoll.methods.fedbcd import fedbcd
    from atoll.methods.fedbuff import fedbuff
    from atoll.methods.fedcluster import cycling, fedcluster
    from atoll.methods.feddyn import feddyn
    from atoll.methods.fedgroup import fedgroup
    from atoll.methods.fednova import fednova
    from atoll.methods.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
    from atoll.methods.fesem import fesem
    from atoll.methods.flhc import flhc
    from atoll.methods.hierarchical import Phase, hierarchical
    from atoll.methods.hierfavg import hierfavg
    from atoll.methods.ifca import ifca
    from atoll.methods.pacfl import pacfl
    from atoll.methods.personal_parts import fedbn, fedper, fedrep
    from atoll.methods.scaffold import scaffold
    from atoll.methods.selection import Selection
    from atoll.methods.staying import keep_at_clients
    from atoll.network import topology as topologies
    from atoll.network.base import Network
    from atoll.network.files import matrix_network
    from atoll.network.mobility import Trace, random_waypoint
    from atoll.network.wireless import Radio, draw_watts, grid_positions, place_clients, wireless_network
    from atoll.report import plot
    from atoll.report.curves import plot_curves
    from atoll.report.files import save_figure, write_report
    from atoll.report.frames import read_runs
    from atoll.report.runs import Run, find_runs, read_run
    from atoll.report.tables import rounds_to_target
    from atoll.runs.export import Exported, export_model
    from atoll.runs.result import Result, read_result
    from atoll.runs.run import run_events
    from atoll.schedules.events import Clock, Event, Mix, Schedule
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
    "atoll.data.frames": "from_pandas",
    "atoll.data.population": "Population make_population",
    "atoll.data.torch_data": "from_torch",
    "atoll.engine.assignment": "as_scheduled least_loss",
    "atoll.engine.cohorts": "Executor",
    "atoll.engine.engine": "Method State Step init train",
    "atoll.engine.grouping": "Grouping",
    "atoll.engine.server": "ServerRule",
    "atoll.evaluation.scores": "Evaluator Heterogeneity Score heterogeneity",
    "atoll.evaluation.theory": "CflMgdBound CflMgdTerms FedClusterBound cfl_mgd_bound fedcluster_bound",
    "atoll.executors.cores.executor": "Cores",
    "atoll.executors.serial": "Serial",
    "atoll.executors.stacked.executor": "Stacked",
    "atoll.experiment.experiment": "Experiment",
    "atoll.experiment.file": "make_runs read_experiment",
    "atoll.experiment.settings": "Settings",
    "atoll.faults.attacks": "Attacked draw_attackers",
    "atoll.faults.dropouts": "lose_clients",
    "atoll.local.models": "draw_model",
    "atoll.local.rule": "LocalRule",
    "atoll.local.task": "ClientTask ClientUpdate",
    "atoll.local.trainer": "Trainer",
    "atoll.local.weights": "load_model read_model",
    "atoll.methods.alone": "alone",
    "atoll.methods.bcd": "bcd",
    "atoll.methods.cfl": "cfl",
    "atoll.methods.cfl_mgd": "cfl_mgd",
    "atoll.methods.ditto": "ditto",
    "atoll.methods.fedasync": "fedasync",
    "atoll.methods.fedat": "fedat",
    "atoll.methods.fedavg": "centralized fedavg",
    "atoll.methods.fedbcd": "fedbcd",
    "atoll.methods.fedbuff": "fedbuff",
    "atoll.methods.fedcluster": "cycling fedcluster",
    "atoll.methods.feddyn": "feddyn",
    "atoll.methods.fedgroup": "fedgroup",
    "atoll.methods.fednova": "fednova",
    "atoll.methods.fedopt": "fedadagrad fedadam fedavgm fedyogi",
    "atoll.methods.fesem": "fesem",
    "atoll.methods.flhc": "flhc",
    "atoll.methods.hierarchical": "Phase hierarchical",
    "atoll.methods.hierfavg": "hierfavg",
    "atoll.methods.ifca": "ifca",
    "atoll.methods.pacfl": "pacfl",
    "atoll.methods.personal_parts": "fedbn fedper fedrep",
    "atoll.methods.scaffold": "scaffold",
    "atoll.methods.selection": "Selection",
    "atoll.methods.staying": "keep_at_clients",
    "atoll.network.base": "Network",
    "atoll.network.files": "matrix_network",
    "atoll.network.mobility": "Trace random_waypoint",
    "atoll.network.wireless": "Radio draw_watts grid_positions place_clients wireless_network",
    "atoll.report.curves": "plot_curves",
    "atoll.report.files": "save_figure write_report",
    "atoll.report.frames": "read_runs",
    "atoll.report.runs": "Run find_runs read_run",
    "atoll.report.tables": "rounds_to_target",
    "atoll.runs.export": "Exported export_model",
    "atoll.runs.result": "Result read_result",
    "atoll.runs.run": "run_events",
    "atoll.schedules.events": "Clock Event Mix Schedule",
    "atoll.support.errors": "AtollError InputError RunError",
    "atoll.support.seeds": "generator",
}
"""Public names by the module that defines them."""

_MODULES = {
    "attacks": "atoll.faults.attacks",
    "clusterings": "atoll.clustering.table",
    "datasets": "atoll.data.datasets",
    "models": "atoll.local.models",
    "optimizers": "atoll.local.rule",
    "partitions": "atoll.data.partition",
    "plot": "atoll.report.plot",
    "topologies": "atoll.network.topology",
}
"""Modules of functions: what a setting may name, and what draws into axes."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AtollError",
    "Attacked",
    "CflMgdBound",
    "CflMgdTerms",
    "ClientTask",
    "ClientUpdate",
    "Clock",
    "Clustering",
    "Codec",
    "Cores",
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
    "Method",
    "Mix",
    "Network",
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
    "State",
    "Step",
    "Trace",
    "Trainer",
    "__version__",
    "alone",
    "as_scheduled",
    "attacks",
    "average_gradients",
    "average_models",
    "bcd",
    "bulyan",
    "centralized",
    "centred_clipping",
    "cfl",
    "cfl_mgd",
    "cfl_mgd_bound",
    "clusterings",
    "cycling",
    "datasets",
    "ditto",
    "draw_attackers",
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
    "make_population",
    "make_runs",
    "matrix_network",
    "median",
    "models",
    "multi_krum",
    "norm_clipping",
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
    "topologies",
    "train",
    "trimmed_mean",
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
