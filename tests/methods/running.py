"""What slow twins share: a method's trainer on a population, its run, and states compared to the bit."""

from contextlib import closing
from typing import Any

from torch import nn

from atoll import Executor, Method, Population, State, chain_of, init, read_model, train
from atoll.local.models import Model

SEED = 5


def trainer_of(method: Method, module: nn.Module, population: Population) -> Any:
    """Return the trainer that the method wants, with its stages."""
    return chain_of(method, module, population, SEED).for_executors()


def states_of(method: Method, executor: Executor, module: nn.Module) -> list[State]:
    """Return the state after each event of a run that begins with the module's model, and close the executor."""
    with closing(executor):
        return [step.state for step in train(method, executor, init(method, read_model(module)))]


def equal(one: Model | None, other: Model | None) -> bool:
    """Return whether two models that are there have the same tensors to the bit."""
    if one is None or other is None:
        return False
    return one.keys() == other.keys() and all(tensor.equal(other[name]) for name, tensor in one.items())


def same_bits(ours: list[State], theirs: list[State]) -> None:
    """Compare the server's models, what it keeps and what clients keep."""
    for one, other in zip(ours, theirs, strict=True):
        assert equal(one.server, other.server)
        assert equal(dict(one.server_state or {}), dict(other.server_state or {}))
        assert one.clients.keys() == other.clients.keys()
        assert all(equal(dict(kept), dict(other.clients[client])) for client, kept in one.clients.items())
