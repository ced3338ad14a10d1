# Every public name: read by type checkers and editors, and by __init__.py for what to import when.

from atoll.aggregation.mean import average_gradients as average_gradients
from atoll.aggregation.mean import average_models as average_models
from atoll.aggregation.robust import bulyan as bulyan
from atoll.aggregation.robust import centred_clipping as centred_clipping
from atoll.aggregation.robust import geometric_median as geometric_median
from atoll.aggregation.robust import krum as krum
from atoll.aggregation.robust import median as median
from atoll.aggregation.robust import multi_krum as multi_krum
from atoll.aggregation.robust import norm_clipping as norm_clipping
from atoll.aggregation.robust import trimmed_mean as trimmed_mean
from atoll.aggregation.screening import Screening as Screening
from atoll.api import run as run
from atoll.api import run_all as run_all
from atoll.clustering import named_clusterings
from atoll.clustering.clustering import Clustering as Clustering
from atoll.clustering.feduc.problem import Problem as Problem
from atoll.codecs.codec import Codec as Codec
from atoll.data import datasets as datasets
from atoll.data.datasets import Dataset as Dataset
from atoll.data.datasets import load as load
from atoll.data.dealing import partition
from atoll.data.files.torch_data import from_torch as from_torch
from atoll.data.population import Population as Population
from atoll.data.population import make_population as make_population
from atoll.data.tabular.data_frames import from_pandas as from_pandas
from atoll.engine.assignment import as_scheduled as as_scheduled
from atoll.engine.assignment import least_loss as least_loss
from atoll.engine.cohorts import Executor as Executor
from atoll.engine.engine import Method as Method
from atoll.engine.engine import State as State
from atoll.engine.engine import Step as Step
from atoll.engine.engine import init as init
from atoll.engine.engine import train as train
from atoll.engine.grouping import Grouping as Grouping
from atoll.engine.server_rule import ServerRule as ServerRule
from atoll.evaluation.scores import Evaluator as Evaluator
from atoll.evaluation.scores import Heterogeneity as Heterogeneity
from atoll.evaluation.scores import Score as Score
from atoll.evaluation.scores import heterogeneity as heterogeneity
from atoll.evaluation.theory import CflMgdBound as CflMgdBound
from atoll.evaluation.theory import CflMgdTerms as CflMgdTerms
from atoll.evaluation.theory import FedClusterBound as FedClusterBound
from atoll.evaluation.theory import cfl_mgd_bound as cfl_mgd_bound
from atoll.evaluation.theory import fedcluster_bound as fedcluster_bound
from atoll.executors.cores.cores_executor import Cores as Cores
from atoll.executors.serial import Serial as Serial
from atoll.executors.stacked.stacked_executor import Stacked as Stacked
from atoll.experiment.experiment import Experiment as Experiment
from atoll.faults import attacks as attacks
from atoll.faults.attacks import Attacked as Attacked
from atoll.faults.attacks import draw_attackers as draw_attackers
from atoll.faults.dropouts import lose_clients as lose_clients
from atoll.local import models as models
from atoll.local import rule
from atoll.local.models import draw_model as draw_model
from atoll.local.rule import LocalRule as LocalRule
from atoll.local.task import ClientTask as ClientTask
from atoll.local.task import ClientUpdate as ClientUpdate
from atoll.local.trainer import Trainer as Trainer
from atoll.local.weights import load_model as load_model
from atoll.local.weights import read_model as read_model
from atoll.methods.papers.alone import alone as alone
from atoll.methods.papers.bcd import bcd as bcd
from atoll.methods.papers.cfl import cfl as cfl
from atoll.methods.papers.cfl_mgd import cfl_mgd as cfl_mgd
from atoll.methods.papers.ditto import ditto as ditto
from atoll.methods.papers.fedasync import fedasync as fedasync
from atoll.methods.papers.fedat import fedat as fedat
from atoll.methods.papers.fedavg import centralized as centralized
from atoll.methods.papers.fedavg import fedavg as fedavg
from atoll.methods.papers.fedbcd import fedbcd as fedbcd
from atoll.methods.papers.fedbuff import fedbuff as fedbuff
from atoll.methods.papers.fedcluster import cycling as cycling
from atoll.methods.papers.fedcluster import fedcluster as fedcluster
from atoll.methods.papers.feddyn import feddyn as feddyn
from atoll.methods.papers.fedgroup import fedgroup as fedgroup
from atoll.methods.papers.fednova import fednova as fednova
from atoll.methods.papers.fedopt import fedadagrad as fedadagrad
from atoll.methods.papers.fedopt import fedadam as fedadam
from atoll.methods.papers.fedopt import fedavgm as fedavgm
from atoll.methods.papers.fedopt import fedyogi as fedyogi
from atoll.methods.papers.fesem import fesem as fesem
from atoll.methods.papers.flhc import flhc as flhc
from atoll.methods.papers.hierarchical import Phase as Phase
from atoll.methods.papers.hierarchical import hierarchical as hierarchical
from atoll.methods.papers.hierfavg import hierfavg as hierfavg
from atoll.methods.papers.ifca import ifca as ifca
from atoll.methods.papers.pacfl import pacfl as pacfl
from atoll.methods.papers.personal_parts import fedbn as fedbn
from atoll.methods.papers.personal_parts import fedper as fedper
from atoll.methods.papers.personal_parts import fedrep as fedrep
from atoll.methods.papers.scaffold import scaffold as scaffold
from atoll.methods.parts.staying import keep_at_clients as keep_at_clients
from atoll.methods.selection import Selection as Selection
from atoll.network import topology
from atoll.network.mobility import Trace as Trace
from atoll.network.mobility import random_waypoint as random_waypoint
from atoll.network.network import Network as Network
from atoll.network.network_files import matrix_network as matrix_network
from atoll.network.wireless import Radio as Radio
from atoll.network.wireless import draw_watts as draw_watts
from atoll.network.wireless import grid_positions as grid_positions
from atoll.network.wireless import place_clients as place_clients
from atoll.network.wireless import wireless_network as wireless_network
from atoll.report.figures import plot as plot
from atoll.report.figures.curves import plot_curves as plot_curves
from atoll.report.reading.runs import Run as Run
from atoll.report.reading.runs import find_runs as find_runs
from atoll.report.reading.runs import read_run as read_run
from atoll.report.report_files import save_figure as save_figure
from atoll.report.report_files import write_report as write_report
from atoll.report.tables.frames import read_runs as read_runs
from atoll.report.tables.run_tables import rounds_to_target as rounds_to_target
from atoll.runs.export import Exported as Exported
from atoll.runs.export import export_model as export_model
from atoll.runs.result import Result as Result
from atoll.runs.result import read_result as read_result
from atoll.runs.run import run_events as run_events
from atoll.schedules.events import Clock as Clock
from atoll.schedules.events import Event as Event
from atoll.schedules.events import Mix as Mix
from atoll.schedules.events import Schedule as Schedule
from atoll.settings.experiment_file import make_runs as make_runs
from atoll.settings.experiment_file import read_experiment as read_experiment
from atoll.settings.sections import Settings as Settings
from atoll.support.errors import AtollError as AtollError
from atoll.support.errors import InputError as InputError
from atoll.support.errors import RunError as RunError
from atoll.support.seeds import generator as generator

__all__: list[str]
__version__: str
clusterings = named_clusterings
optimizers = rule
partitions = partition
topologies = topology
