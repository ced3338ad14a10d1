"""Tests of what methods ask of a local rule."""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import getdoc, signature
from typing import Any

import pytest
import torch
from torch import nn

from atoll import InputError
from atoll.local.rule import LocalRule, adam, momentum, sgd
from atoll.methods.named_methods import METHODS
from atoll.methods.parts.kind import kind_of
from atoll.methods.parts.rule_requirements import require_sgd

Makes = Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]


def another_rate(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2 * lr)


def two_rates(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": parameters}, {"params": [nn.Parameter(torch.zeros(1))], "lr": 2 * lr}]
    return torch.optim.SGD(groups, lr=lr)


@pytest.mark.parametrize("optimizer", [sgd, torch.optim.SGD, partial(momentum, momentum=0.0)])
def test_plain_sgd_is_known(optimizer: Makes) -> None:
    require_sgd(LocalRule(optimizer, lr=0.1), "a method")


@pytest.mark.parametrize(
    "optimizer", [momentum, adam, partial(torch.optim.SGD, weight_decay=0.1), another_rate, two_rates]
)
def test_others_are_refused(optimizer: Makes) -> None:
    with pytest.raises(InputError, match=r"local\.optimizer = (SGD|Adam).*: must be 'sgd' with a method"):
        require_sgd(LocalRule(optimizer, lr=0.1), "a method")


def test_every_argument_of_a_method_is_described() -> None:
    for name, made in METHODS.items():
        told, asked = getdoc(kind_of(made).make) or "", signature(kind_of(made).make).parameters
        assert [each for each in asked if "Args:\n" in told and f"    {each}: " not in told] == [], name
