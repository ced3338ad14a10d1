"""From settings to what is trained and how: modules, the local rule, and whether they go together."""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from atoll.data.datasets import Dataset
from atoll.engine.cohorts import ClientTrainer
from atoll.experiment.plugins import bind, resolve
from atoll.experiment.settings import Settings
from atoll.local.models import MODELS, Model
from atoll.local.rule import OPTIMIZERS, LocalRule, MakeOptimizer
from atoll.local.task import ClientTask
from atoll.methods.parties import split_model
from atoll.schedules.events import Event
from atoll.support.errors import InputError, RunError
from atoll.support.seeds import layers_drawing_from


def draw_module(settings: Settings, data: Dataset, cluster: int = 0, restart: int = 0) -> nn.Module:
    """Make a module with weights of its own for each cluster and restart."""
    name = settings.model.name
    method = settings.method
    given = {"shape": data.shape, "classes": data.classes or 1, "dataset": data, "parties": method.parties}
    make = split_model(name) if method.name == "fedbcd" else resolve("model.name", name, MODELS)
    factory = bind("model.name", make, given, settings.model.options)
    key = (cluster, restart) if cluster or restart else ()
    with layers_drawing_from(settings.seed, "model", *key):
        try:
            module = factory()
        except InputError:
            raise
        except Exception as error:  # PyTorch refuses the factory's options in its own way
            raise InputError(f"model.name = {name!r}: cannot be made ({type(error).__name__}: {error})") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model.name = {name!r}: must return a torch.nn.Module, it returned {type(module).__name__!r}")
    return module


def shared_names(module: nn.Module, wanted: int) -> tuple[str, ...]:
    """Return the names of the parameters and buffers of the first `wanted` layers that have any."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in module.state_dict()))
    if wanted >= len(layers):
        raise InputError(
            f"method.shared_layers = {wanted}: must be less than the model's {len(layers)} layers with parameters"
        )
    return tuple(name for name in module.state_dict() if name.rpartition(".")[0] in layers[:wanted])


def count_parts(settings: Settings, sizes: npt.NDArray[np.int64]) -> int:
    """Return how many parts each client's data is split into for resampling, 0 for none.

    Raises:
        InputError: a client has too few samples.
    """
    if not settings.method.resample:
        return 0
    parts = 2 * settings.rounds
    if sizes.min() < parts:
        raise InputError(
            f"method.resample = true: client {sizes.argmin()} has {sizes.min()} samples, it needs at least "
            f"2 x rounds = {parts}"
        )
    return parts


def make_rule(settings: Settings, parts: int) -> LocalRule:
    """Return the local rule; `parts` is the number of disjoint parts of each client's data, 0 without resampling.

    Raises:
        InputError: an optimiser that is unknown, fails, or does not go with the method.
    """
    wanted = settings.local
    make = resolve("local.optimizer", wanted.optimizer, OPTIMIZERS)
    fixed = {key: value for key, value in dict(wanted).items() if key not in ("lr", "options")}
    optimizer = bind("local.optimizer", make, fixed, wanted.options, later=("parameters", "params", "lr"))
    _try_optimizer(settings, optimizer)
    if settings.method.name == "cfl-mgd" and wanted.optimizer != "sgd":
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
        resample_parts=parts,
    )


def require_device(device: str) -> str:
    """Return the device if tensors can be put on it.

    Raises:
        InputError: they cannot.
    """
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"run.device = {device!r}: is not available here ({reason}); use 'cpu'") from error
    return device


def rehearse(settings: Settings, trainer: ClientTrainer, event: Event, start: Model) -> None:
    """Train one client for one step, so that a model or optimiser that fails is met before the run.

    Raises:
        InputError: names the model, the optimiser and the batch size.
    """
    try:
        trainer.train(ClientTask(event=0, round=0, repeat=0, cluster=0, client=int(event.cohort[0]), start=start))
    except RunError:  # a loss that is not finite: the run will say where
        return
    except InputError:
        raise
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"model.name = {settings.model.name!r}: a step of training with local.optimizer = "
            f"{settings.local.optimizer!r} and local.batch_size = {settings.local.batch_size!r} failed ({told})"
        ) from error


def _try_optimizer(settings: Settings, make: MakeOptimizer) -> None:
    """Make the optimiser once, so that a faulty one is refused before anything is trained."""
    name = settings.local.optimizer
    made: object = make([nn.Parameter(torch.zeros(1))], settings.local.lr)
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"local.optimizer = {name!r}: must return a torch.optim.Optimizer, it returned {type(made).__name__!r}"
        )
