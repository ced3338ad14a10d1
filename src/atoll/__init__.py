"""Atoll: clustered and hierarchical federated learning, one engine, schedules known before training."""

from importlib.metadata import version as _version

from atoll import clustering
from atoll.clustering.clustering import Clustering
from atoll.data import datasets, partition
from atoll.data.datasets import Dataset, load
from atoll.data.population import Population, make_population
from atoll.data.torch_data import from_torch
from atoll.engine.cohorts import Executor
from atoll.engine.engine import Method, State, Step, init, train
from atoll.evaluation.scores import Evaluator, Heterogeneity, Score, heterogeneity
from atoll.evaluation.theory import FedClusterBound, fedcluster_bound
from atoll.executors.serial import Serial
from atoll.experiment.experiment import Experiment
from atoll.experiment.file import make_runs, read_experiment
from atoll.experiment.settings import Settings
from atoll.local import models
from atoll.local import trainer as local
from atoll.local.models import read_model
from atoll.local.rule import LocalRule
from atoll.local.trainer import Trainer
from atoll.methods.cfl_mgd import cfl_mgd
from atoll.methods.fedavg import centralized, fedavg
from atoll.methods.fedbcd import fedbcd
from atoll.methods.fedcluster import cycling, fedcluster
from atoll.methods.ifca import ifca
from atoll.runs.export import Exported, export_model
from atoll.runs.run import run_events
from atoll.schedules.events import Clock, Event, Mix, Schedule
from atoll.support.errors import AtollError, InputError, RunError
from atoll.support.seeds import generator

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
    "FedClusterBound",
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
    "Trainer",
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
    "init",
    "load",
    "local",
    "make_population",
    "make_runs",
    "models",
    "partition",
    "read_experiment",
    "read_model",
    "run_events",
    "train",
]
