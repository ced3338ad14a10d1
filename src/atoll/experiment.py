"""From settings to objects: data, population, clustering, module and method of one run."""

import os
import sys
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from atoll import datasets
from atoll.clustering import CLUSTERINGS, Clustering, one_cluster
from atoll.config import Settings
from atoll.engine import Method
from atoll.errors import InputError, RunError
from atoll.evaluate import Evaluator
from atoll.executors import Executor, Serial
from atoll.local import OPTIMIZERS, LocalRule, MakeOptimizer, Model, Task, Trainer, read_model
from atoll.methods import METHODS
from atoll.models import MODELS, check_outputs
from atoll.partition import PARTITIONS
from atoll.plugins import bind, call, resolve
from atoll.population import Population, make_population, read_clients
from atoll.returned import read_dataset, read_labels, read_parts
from atoll.schedules import Clock
from atoll.seeds import generator, layers_drawing_from


@dataclass(frozen=True)
class Experiment:
    """The objects of one run, each made from the settings when it is first asked for.

    Whatever is wrong with the settings comes out as an `InputError` from the property that meets it.
    """

    settings: Settings

    @cached_property
    def clients(self) -> Population:
        """The population as the partition makes it."""
        wanted = self.settings.data
        data = self._load_data()
        rule = resolve("data.partition", wanted.partition, PARTITIONS)
        given = {
            **dict(wanted),
            "labels": data.labels,
            "classes": data.classes,
            "dataset": data,
            "rng": generator(self.settings.seed, "partition"),
        }
        parts = read_parts(call("data.partition", rule, given, wanted.options), wanted.partition)
        if len(parts) != wanted.clients:
            raise InputError(
                f"data.partition = {wanted.partition!r}: made {len(parts)} clients, but data.clients = {wanted.clients}"
            )
        if empty := [client for client, part in enumerate(parts) if not len(part)]:
            raise InputError(
                f"data.partition = {wanted.partition!r}: client {empty[0]} has no samples "
                f"({len(empty)} of {len(parts)} have none); every client needs at least one"
            )
        attributes = read_clients(wanted.clients_file, wanted.clients) if wanted.clients_file else {}
        return make_population(data, parts, attributes)

    @cached_property
    def population(self) -> Population:
        """The population that trains: pooled into one client for the centralised baseline."""
        return self.clients.pooled() if self.settings.method.name == "centralized" else self.clients

    @cached_property
    def clustering(self) -> Clustering:
        """The clustering; a single cluster where the method has no use for one."""
        wanted = self.settings.clustering
        if self.settings.method.name in ("fedavg", "centralized"):
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
        name = self.settings.model.name
        data = self.clients.data
        given = {"shape": data.shape, "classes": data.classes or 1, "dataset": data}
        factory = bind("model.name", resolve("model.name", name, MODELS), given, self.settings.model.options)
        with layers_drawing_from(self.settings.seed, "model"):
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
        check_outputs(module, data.shape, data.classes or 1, name)
        return module

    @cached_property
    def rule(self) -> LocalRule:
        """The local rule."""
        wanted = self.settings.local
        make = resolve("local.optimizer", wanted.optimizer, OPTIMIZERS)
        fixed = {key: value for key, value in dict(wanted).items() if key not in ("lr", "options")}
        optimizer = bind("local.optimizer", make, fixed, wanted.options, later=("parameters", "params", "lr"))
        self._try_optimizer(optimizer)
        lr = wanted.lr * wanted.lr_factor
        return LocalRule(optimizer, lr, wanted.steps, wanted.batch_size, wanted.proximal, wanted.lr_decay)

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
        return method

    @property
    def model_bytes(self) -> int:
        """Bytes of one model."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.module.state_dict().values())

    def check(self) -> None:
        """Make everything that can be made before training, so that bad input is met before anything is written."""
        self._device()
        self.rule  # noqa: B018
        self.method  # noqa: B018
        self.module  # noqa: B018
        self._rehearse()

    def initial_model(self) -> Model:
        """Return the model that a run begins with, on the device."""
        return read_model(self._copy_module())

    def make_executor(self) -> Executor:
        """Return the executor that the settings name."""
        return Serial(Trainer(self._copy_module(), self.population, self.rule, self.settings.seed, self._device()))

    def make_evaluator(self) -> Evaluator:
        """Return the evaluator of the union of the clients' data and the test set."""
        samples = self.settings.run.evaluate_samples
        return Evaluator(self.population, self._copy_module(), samples, self.settings.seed)

    def _load_data(self) -> datasets.Dataset:
        wanted = self.settings.data
        if ":" in wanted.dataset:
            made = call("data.dataset", resolve("data.dataset", wanted.dataset, {}), {"root": wanted.root}, {})
            return read_dataset(made, wanted.dataset)
        return _load_once(wanted.dataset, wanted.root, wanted.fetch, os.environ.get("ATOLL_DATA"))

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
        module, rule = self._copy_module(), replace(self.rule, steps=1)
        trainer = Trainer(module, self.population, rule, self.settings.seed, self._device())
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


@lru_cache(maxsize=1)
def _load_once(name: str, root: str | None, fetch: bool, _environment: str | None) -> datasets.Dataset:
    """Read a data set once for all runs of an experiment; `_environment` tells where it was read from."""
    return datasets.load(name, root, fetch)


def import_from(folder: Path) -> None:
    """Let ``module:function`` names find modules beside the experiment file and in the working folder."""
    for place in (Path.cwd(), folder.resolve()):
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
