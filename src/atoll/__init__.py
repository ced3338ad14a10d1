"""Atoll: clustered and hierarchical federated learning, one engine, schedules known before training."""

from importlib.metadata import version as _version

from atoll import clustering, datasets, local, models, partition
from atoll.clustering import Clustering
from atoll.config import make_runs, read_experiment
from atoll.datasets import Dataset, load
from atoll.engine import Method, State, Step, begin, run
from atoll.errors import AtollError, InputError, RunError
from atoll.evaluate import Evaluator, Heterogeneity, Score, heterogeneity
from atoll.executors import Executor, Serial
from atoll.experiment import Experiment
from atoll.interop.exporting import Exported, export_model
from atoll.interop.torch_data import from_torch
from atoll.local import LocalRule, Trainer
from atoll.methods import centralized, cfl_mgd, fedavg, fedbcd, fedcluster, ifca
from atoll.models import read_model
from atoll.population import Population, make_population
from atoll.runner import carry_out
from atoll.schedules import Clock, Event, Mix, Schedule, cycling
from atoll.seeds import generator
from atoll.settings import Settings
from atoll.theory import Theorem1, fedcluster_bound

__version__ = _version("atoll")

__all__ = [
    "AtollError",
    "Clock",
    "Clustering",
    "Dataset",
    "Evaluator",
    "Event",
    "Executor",
    "Experiment",
    "Exported",
    "Heterogeneity",
    "InputError",
    "LocalRule",
    "Method",
    "Mix",
    "Population",
    "RunError",
    "Schedule",
    "Score",
    "Serial",
    "Settings",
    "State",
    "Step",
    "Theorem1",
    "Trainer",
    "begin",
    "carry_out",
    "centralized",
    "cfl_mgd",
    "clustering",
    "cycling",
    "datasets",
    "export_model",
    "fedavg",
    "fedbcd",
    "fedcluster",
    "fedcluster_bound",
    "from_torch",
    "generator",
    "heterogeneity",
    "ifca",
    "load",
    "local",
    "make_population",
    "make_runs",
    "models",
    "partition",
    "read_experiment",
    "read_model",
    "run",
]
