"""What the tests of privacy share: small private methods on quadratics, their shape, and their runs."""

from dataclasses import replace
from typing import Any

from torch import nn

from atoll import Executor, Method, Population, Serial, State
from atoll.local.rule import LocalRule
from atoll.privacy.clipping import Shape, shape_of
from atoll.privacy.mechanism import Mechanism
from atoll.privacy.noise import from_seed
from atoll.privacy.private_release import make_private
from tests.methods.running import SEED, states_of, trainer_of
from tests.methods.twins import POPULATION
from tests.problems import linear_module

SERVER = Mechanism("server", clip=0.7, noise=1.3, delta=1e-5)
AGGREGATOR = replace(SERVER, trust="aggregator")
CLIENT = replace(SERVER, trust="client")


def shape(rule: LocalRule, module: nn.Module | None = None) -> Shape:
    return shape_of(module or linear_module(), rule)


def private(
    method: Method, mechanism: Mechanism, population: Population = POPULATION, seed: int = SEED, **changes: Any
) -> Method:
    """Return the method with privacy, its noise from a seed."""
    wanted = replace(mechanism, **changes)
    return make_private(method, wanted, shape(method.rule), population.sizes, from_seed(seed))


def run(method: Method, population: Population = POPULATION, executor: Executor | None = None) -> list[State]:
    """Return the state after each event."""
    module = linear_module()
    return states_of(method, executor or Serial(trainer_of(method, module, population)), module)
