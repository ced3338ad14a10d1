"""What the scripts share that replay a case of `agreement.py` in another library: reading, the model, the answer."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Job:
    """One client's part of an event: its number, events over when it began, its samples, and each step's batch."""

    client: int
    version: int
    samples: int
    batches: list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    """One method to replay."""

    settings: dict[str, Any]
    start: Tensor
    clients: int
    events: list[list[Job]]


def make_network(sizes: tuple[int, int, int] = (8, 6, 3)) -> nn.Sequential:
    """Return the model of all cases, in double precision."""
    width, hidden, classes = sizes
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, classes)).double()


def filled(vector: Tensor) -> nn.Sequential:
    module = make_network()
    nn.utils.vector_to_parameters(vector.clone(), module.parameters())
    return module


def as_vector(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def split(vector: Tensor) -> list[np.ndarray]:
    """Return a model's arrays."""
    return [parameter.detach().numpy().copy() for parameter in filled(vector).parameters()]


def join(arrays: list[np.ndarray]) -> Tensor:
    return torch.cat([torch.from_numpy(np.asarray(array)).reshape(-1) for array in arrays])


def descend(case: Case, start: Tensor, job: Job) -> Tensor:
    """Return a model after plain SGD on the job's batches, for libraries without a trainer."""
    module = filled(start)
    optimizer = torch.optim.SGD(module.parameters(), case.settings["lr"])
    for inputs, targets in job.batches:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
    return as_vector(module)


def read_case(path: Path) -> Case:
    stored = np.load(path)
    inputs, targets = torch.from_numpy(stored["inputs"]), torch.from_numpy(stored["targets"])
    told = json.loads(str(stored["told"]))
    events = [
        [
            Job(job["client"], job["version"], job["samples"], [(inputs[rows], targets[rows]) for rows in job["rows"]])
            for job in event
        ]
        for event in told["events"]
    ]
    return Case(told["settings"], torch.from_numpy(stored["start"]), told["clients"], events)


def answer(replays: dict[str, Callable[[Case], list[Tensor]]]) -> None:
    """Replay each case in the folder given, and write the models after every event, or why there are none."""
    for path in sorted(Path(sys.argv[-1]).glob("*.case.npz")):
        case = read_case(path)
        torch.manual_seed(0)
        try:
            found: dict[str, Any] = {"models": torch.stack(replays[case.settings["method"]](case)).numpy()}
        except Exception as error:  # whatever a library may raise is an answer too
            found = {"error": np.array(f"{type(error).__name__}: {error}")}
        np.savez(path.with_name(path.name.replace(".case.", ".answer.")), **found)
