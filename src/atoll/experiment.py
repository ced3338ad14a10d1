"""From settings to objects: data, population, clustering, module and method of one run."""

import sys
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from atoll.clients import make_clients, make_test_clients
from atoll.clustering import CLUSTERINGS, Clustering, one_cluster
from atoll.config import Settings
from atoll.engine import Method
from atoll.errors import InputError, RunError
from atoll.evaluate import ClusterEvaluator, Evaluator
from atoll.executors import Executor, Serial, Trains
from atoll.local import OPTIMIZERS, LocalRule, MakeOptimizer, Task, Trainer, carried_bytes
from atoll.methods import METHODS
from atoll.models import MODELS, Model, check_outputs, count_bytes, read_model
from atoll.plugins import bind, call, resolve
from atoll.population import Population
from atoll.restarts import choose_start
from atoll.returned import read_labels
from atoll.schedules import Clock
from atoll.seeds import generator, layers_drawing_from
from atoll.vertical import PartyTrainer, share_samples, split_model


@dataclass(frozen=True)
class Experiment:
    """The objects of one run, each made from the settings when it is first asked for.

    Whatever is wrong with the settings comes out as an `InputError` from the property that meets it.
    """

    settings: Settings

    @cached_property
    def clients(self) -> Population:
        """The population as the partition makes it."""
        return make_clients(self.settings)

    @cached_property
    def test_clients(self) -> Population:
        """Clients that hold the test samples."""
        return make_test_clients(self.settings, self.clients)

    @cached_property
    def population(self) -> Population:
        """The population that trains: one client with all samples for the centralised baseline, or such parties."""
        wanted = self.settings.method
        if wanted.name == "fedbcd":
            return share_samples(self.clients, wanted.parties)
        return self.clients.pooled() if wanted.name == "centralized" else self.clients

    @cached_property
    def clustering(self) -> Clustering:
        """The clustering; a single cluster where the method has no use for one."""
        wanted = self.settings.clustering
        if self.settings.method.name in ("fedavg", "centralized", "ifca", "cfl-mgd", "fedbcd"):
            return one_cluster(len(self.population))
        if wanted.clusters > len(self.population):
            raise InputError(
                f"clustering.clusters = {wanted.clusters}: must be at most data.clients = {len(self.population)}"
            )
        rule = resolve("clustering.method", wanted.method, CLUSTERINGS)
        given = {
            **dict(wanted),
            "population": self.population,
            "rng": generator(self.settings.seed, "clustering"),
            "seed": self.settings.seed,
        }
        made = call("clustering.method", rule, given, wanted.options)
        clustering = made if isinstance(made, Clustering) else read_labels(made, wanted.clusters, wanted.method)
        if len(clustering.labels) != len(self.population):
            raise InputError(
                f"clustering.method = {wanted.method!r}: gave {len(clustering.labels)} labels "
                f"for {len(self.population)} clients"
            )
        if (empty := np.flatnonzero(clustering.sizes == 0)).size:
            raise InputError(
                f"clustering.clusters = {clustering.clusters}: clustering.method = {wanted.method!r} leaves "
                f"cluster {empty[0]} without clients; lower clustering.clusters"
            )
        return clustering

    @cached_property
    def module(self) -> nn.Module:
        """The initial model, drawn from the seed."""
        data = self.clients.data
        module = self._draw_module()
        check_outputs(module, data.shape, data.classes or 1, self.settings.model.name)
        return module

    @cached_property
    def rule(self) -> LocalRule:
        """The local rule."""
        wanted = self.settings.local
        make = resolve("local.optimizer", wanted.optimizer, OPTIMIZERS)
        fixed = {key: value for key, value in dict(wanted).items() if key not in ("lr", "options")}
        optimizer = bind("local.optimizer", make, fixed, wanted.options, later=("parameters", "params", "lr"))
        self._try_optimizer(optimizer)
        if self.settings.method.name == "cfl-mgd" and wanted.optimizer != "sgd":
            raise InputError(
                f"local.optimizer = {wanted.optimizer!r}: must be 'sgd' with method.name = 'cfl-mgd', whose momentum "
                "is the clusters' own (method.beta); with 'ifca' any optimizer runs, its state afresh every round"
            )
        return LocalRule(
            optimizer=optimizer,
            lr=wanted.lr * wanted.lr_factor,
            steps=wanted.steps,
            batch_size=wanted.batch_size,
            proximal=wanted.proximal,
            lr_decay=wanted.lr_decay,
            parts=self._parts(),
        )

    @cached_property
    def clock(self) -> Clock:
        """Seconds that each client's work takes."""
        local, network = self.settings.local, self.settings.network
        sizes = self.population.sizes
        batch = sizes if local.batch_size == "full" else np.full(len(sizes), local.batch_size)
        upload = 0.0 if self.settings.method.name == "centralized" else network.upload_seconds
        compute = np.asarray(batch * local.steps * network.seconds_per_sample, float)
        return Clock(compute, np.full(len(sizes), upload))

    @cached_property
    def method(self) -> Method:
        """The method, with its whole schedule."""
        wanted = self.settings.method
        given = {
            **dict(wanted),
            "population": self.population,
            "clustering": self.clustering,
            "rule": self.rule,
            "rounds": self.settings.rounds,
            "clock": self.clock,
            "seed": self.settings.seed,
        }
        method = call("method.name", resolve("method.name", wanted.name, METHODS), given, wanted.options)
        if not isinstance(method, Method):
            raise InputError(
                f"method.name = {wanted.name!r}: must return an atoll.Method, it returned {type(method).__name__!r}"
            )
        return replace(method, shared=self._shared_names()) if wanted.shared_layers else method

    @property
    def model_bytes(self) -> int:
        """Bytes of one model."""
        return count_bytes(self.module.state_dict())

    @cached_property
    def message_bytes(self) -> int:
        """Bytes of what an event's `models_down` and `models_up` count, unless the schedule says otherwise: models.

        Moments that travel with a model (CFL-MGD's u_p) count too.
        """
        if (size := self.method.schedule.message_bytes) is not None:
            return size
        return self.model_bytes + carried_bytes(self.method.rule, self._copy_module())

    def check(self) -> None:
        """Make everything that can be made before training, so that bad input is met before anything is written."""
        self._device()
        self.rule  # noqa: B018
        self.method  # noqa: B018
        self.module  # noqa: B018
        self._rehearse()

    def initial_models(self, restart: int = 0) -> tuple[Model, ...]:
        """Return the models that a run begins with, on the device: one, or one a cluster, drawn anew each restart."""
        count = self.method.starts
        drawn = [read_model(self._draw_module(p, restart).to(self._device())) for p in range(count)]
        common = {name: drawn[0][name] for name in self.method.shared}
        return tuple(model | common for model in drawn)

    def best_start(self, executor: Executor) -> tuple[Model, ...]:
        """Return the initial models of the best of `method.restarts` starts."""
        wanted = self.settings.method
        candidates = [self.initial_models(restart) for restart in range(wanted.restarts)]
        if len(candidates) == 1:
            return candidates[0]
        chosen = choose_start(self.method, executor, candidates, len(self.population), wanted.restart_rounds)
        return candidates[chosen]

    def make_executor(self) -> Executor:
        """Return the executor that the settings name."""
        return Serial(self._make_trainer(self.method.rule))

    def make_evaluator(self) -> Evaluator:
        """Return the evaluator of the union of the clients' data and the test set."""
        samples = self.settings.run.evaluate_samples
        return Evaluator(self.clients, self._copy_module(), samples, self.settings.seed)

    def make_cluster_evaluator(self) -> ClusterEvaluator:
        """Return the evaluator of several models, of which each client takes the one with the least loss."""
        samples, seed = self.settings.run.evaluate_samples, self.settings.seed
        return ClusterEvaluator(self.population, self.test_clients, self._copy_module(), samples, seed)

    def _parts(self) -> int:
        """Return how many parts each client's data is split into for resampling, 0 for none."""
        if not self.settings.method.resample:
            return 0
        parts, sizes = 2 * self.settings.rounds, self.population.sizes
        if sizes.min() < parts:
            raise InputError(
                f"method.resample = true: client {sizes.argmin()} has {sizes.min()} samples, it needs at least "
                f"2 x rounds = {parts}"
            )
        return parts

    def _shared_names(self) -> tuple[str, ...]:
        """Return the names of the parameters and buffers of the first layers that have any."""
        wanted = self.settings.method.shared_layers
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in self.module.state_dict()))
        if wanted >= len(layers):
            raise InputError(
                f"method.shared_layers = {wanted}: must be less than the model's {len(layers)} layers with parameters"
            )
        return tuple(name for name in self.module.state_dict() if name.rpartition(".")[0] in layers[:wanted])

    def _draw_module(self, cluster: int = 0, restart: int = 0) -> nn.Module:
        """Make a module with weights of its own for each cluster and restart."""
        name = self.settings.model.name
        data = self.clients.data
        method = self.settings.method
        given = {"shape": data.shape, "classes": data.classes or 1, "dataset": data, "parties": method.parties}
        make = split_model(name) if method.name == "fedbcd" else resolve("model.name", name, MODELS)
        factory = bind("model.name", make, given, self.settings.model.options)
        key = (cluster, restart) if cluster or restart else ()
        with layers_drawing_from(self.settings.seed, "model", *key):
            try:
                module = factory()
            except InputError:
                raise
            except Exception as error:  # PyTorch refuses the factory's options in its own way
                raise InputError(f"model.name = {name!r}: cannot be made ({type(error).__name__}: {error})") from error
        if not isinstance(module, nn.Module):
            raise InputError(
                f"model.name = {name!r}: must return a torch.nn.Module, it returned {type(module).__name__!r}"
            )
        return module

    def _make_trainer(self, rule: LocalRule) -> Trains:
        make = PartyTrainer if self.settings.method.name == "fedbcd" else Trainer
        return make(self._copy_module(), self.population, rule, self.settings.seed, self._device())

    def _copy_module(self) -> nn.Module:
        """Return a copy of the module on the device; itself it stays untrained, so that a run can be repeated."""
        return deepcopy(self.module).to(self._device())

    def _try_optimizer(self, make: MakeOptimizer) -> None:
        """Make the optimiser once, so that a faulty one is refused before anything is trained."""
        name = self.settings.local.optimizer
        made: object = make([nn.Parameter(torch.zeros(1))], self.settings.local.lr)
        if not isinstance(made, torch.optim.Optimizer):
            raise InputError(
                f"local.optimizer = {name!r}: must return a torch.optim.Optimizer, it returned {type(made).__name__!r}"
            )

    def _rehearse(self) -> None:
        """Train one client for one step, on a copy, so that a model or optimiser that fails is met before the run."""
        client = int(self.method.schedule.events[0].cohort[0])
        module, trainer = self._copy_module(), self._make_trainer(replace(self.method.rule, steps=1))
        try:
            trainer.train(Task(event=0, round=0, repeat=0, cluster=0, client=client, start=read_model(module)))
        except RunError:  # a loss that is not finite: the run will say where
            return
        except InputError:
            raise
        except Exception as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(
                f"model.name = {self.settings.model.name!r}: a step of training with local.optimizer = "
                f"{self.settings.local.optimizer!r} and local.batch_size = {self.settings.local.batch_size!r} "
                f"failed ({told})"
            ) from error

    def _device(self) -> str:
        device = self.settings.run.device
        try:
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"run.device = {device!r}: is not available here ({reason}); use 'cpu'") from error
        return device


def import_from(folder: Path) -> None:
    """Let ``module:function`` names find modules beside the experiment file and in the working folder."""
    for place in (Path.cwd(), folder.resolve()):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
