"""Server rules that use the clients' mean update, Delta, as optimisers use a gradient."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.local.models import Model

if TYPE_CHECKING:
    from torch import Tensor, nn


def buffers_of(module: "nn.Module | None") -> frozenset[str]:
    """Return the names of a module's tensors that are not parameters."""
    if module is None:
        return frozenset()
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return frozenset(module.state_dict().keys() - parameters)


@dataclass(frozen=True)
class HeavyBall:
    """The server rule of FedAvgM; its state is u."""

    lr: float
    momentum: float
    buffers: frozenset[str] = frozenset()

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model]:
        """Return the new x and u; ``x + lr * Delta`` is a `lerp`, which is exact if lr is 1."""
        moved, kept = dict(merged), Model()
        for name, x, mean in _parameters(before, merged, self.buffers):
            u = state[name] if state else x.new_zeros(x.shape)
            moved[name] = x.lerp(mean, self.lr).add(u, alpha=self.lr * self.momentum)
            kept[name] = (mean - x).add(u, alpha=self.momentum)
        return moved, kept


@dataclass(frozen=True)
class Adaptive:
    """The server rule of FedAdagrad, FedAdam and FedYogi; its state is m and v, as ``name@m`` and ``name@v``."""

    lr: float
    beta1: float
    beta2: float
    tau: float
    second: Callable[["Tensor", "Tensor", float], "Tensor"]
    buffers: frozenset[str] = frozenset()

    def __call__(self, before: Model, merged: Model, state: Model | None) -> tuple[Model, Model]:
        """Return the new x, m and v; adding weighted Delta is a `lerp`, which is exact if the weight is 1."""
        moved, kept = dict(merged), Model()
        for name, x, mean in _parameters(before, merged, self.buffers):
            m = state[f"{name}@m"] if state else x.new_zeros(x.shape)
            v = state[f"{name}@v"] if state else x.new_full(x.shape, self.tau**2)
            delta = mean - x
            v = self.second(v, delta.square(), self.beta2)
            scale = self.lr / (v.sqrt() + self.tau)
            moved[name] = x.lerp(mean, (1 - self.beta1) * scale) + self.beta1 * scale * m
            kept |= {f"{name}@m": m.lerp(delta, 1 - self.beta1), f"{name}@v": v}
        return moved, kept


def _parameters(before: Model, merged: Model, buffers: frozenset[str]) -> "Iterator[tuple[str, Tensor, Tensor]]":
    """Yield each parameter's name with its tensors before the event and after merging."""
    for name, mean in merged.items():
        if name not in buffers and "@" not in name and mean.is_floating_point():
            yield name, before[name], mean


def add_square(v: "Tensor", square: "Tensor", beta2: float) -> "Tensor":
    """Return FedAdagrad's second moment."""
    return v + square


def move_to_square(v: "Tensor", square: "Tensor", beta2: float) -> "Tensor":
    """Return FedAdam's second moment."""
    return v.lerp(square, 1 - beta2)


def step_to_square(v: "Tensor", square: "Tensor", beta2: float) -> "Tensor":
    """Return FedYogi's second moment."""
    return v - (1 - beta2) * square * (v - square).sign()
