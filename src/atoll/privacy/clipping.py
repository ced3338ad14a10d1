"""Updates as vectors of bounded norm: extracted from clients' models, clipped, summed, and applied to a model."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.aggregation.mean import Sum, Weighted
from atoll.local.models import Form, Model
from atoll.local.rule import LocalRule
from atoll.local.weights import first_moments, trained_of
from atoll.privacy.noise import Draw
from atoll.support.process import one_thread

CLIP = "clip@privacy"
"""The name under which a model carries the clipping norm of the next updates, if it adapts."""

Update = dict[str, Tensor]
"""The changes in a model's tensors, in double precision; moments are multiplied by the learning rate."""


@dataclass(frozen=True, eq=False)
class Shape:
    """The tensors of an update; a model's other tensors keep the values that clients were sent.

    Attributes:
        tensors: shape and type of each, by name: trained parameters and communicated moments.
        moment_scale: factor for moments.
    """

    tensors: Form
    moment_scale: float

    @one_thread()
    def difference(self, model: Model, start: Model) -> Update:
        """Return the change in a model; moments that were not sent are zero, as are those without a gradient."""
        none = torch.zeros((), device=next(iter(model.values())).device)
        return {
            name: (model.get(name, none).double() - start.get(name, none).double()).expand(shape) * self._scale(name)
            for name, (shape, _) in self.tensors.items()
        }

    def only(self, update: Mapping[str, Tensor]) -> Update:
        """Return the update alone, without anything sent with it."""
        return {name: update[name] for name in self.tensors}

    def zeros(self, device: torch.device) -> Update:
        """Return a zero update."""
        made = self.tensors.items()
        return {name: torch.zeros(shape, dtype=torch.float64, device=device) for name, (shape, _) in made}

    @one_thread()
    def moved(self, start: Model, update: Mapping[str, Tensor]) -> Model:
        """Return the model with an update added."""
        made = dict(start)
        for name, (_, kind) in self.tensors.items():
            change = update[name] / self._scale(name)
            made[name] = (start[name].double() + change if name in start else change).to(kind)
        return made

    def noise(self, draw: Draw, deviation: float, device: torch.device) -> Update:
        """Return an update of independent normal numbers with this standard deviation."""
        counts = [shape.numel() for shape, _ in self.tensors.values()]
        parts = torch.split(torch.from_numpy(draw(sum(counts)) * deviation).to(device), counts)
        return {name: part.reshape(shape) for (name, (shape, _)), part in zip(self.tensors.items(), parts, strict=True)}

    def _scale(self, name: str) -> float:
        return self.moment_scale if "@" in name else 1.0


def shape_of(module: nn.Module, rule: LocalRule) -> Shape:
    """Return the tensors of clients' updates; takes a step on the module to find its moments."""
    sent: Model = {**trained_of(module), **first_moments(rule, module)}
    return Shape({name: (tensor.shape, tensor.dtype) for name, tensor in sent.items()}, rule.lr)


@one_thread()
def length_of(update: Update) -> float:
    """Return the Euclidean norm of an update."""
    return float(torch.stack([tensor.square().sum() for tensor in update.values()]).sum().sqrt())


def clip(update: Update, longest: float) -> Update:
    """Return the update, scaled down to norm `longest` if it is longer; zeros if it is not finite."""
    length = length_of(update)
    if not length < float("inf"):
        return {name: torch.zeros_like(tensor) for name, tensor in update.items()}
    factor = min(1.0, longest / length) if length else 1.0
    return {name: tensor * factor for name, tensor in update.items()}


@dataclass(frozen=True, eq=False)
class SumOfUpdates:
    """The combine rule that returns the weighted sum of clients' updates, from which `Publisher` makes a model.

    Attributes:
        longest: the clipping norm, unless the model carries another (`CLIP`); None: clients have clipped.
        adapts: whether unclipped updates are counted, as `CLIP`: half a weight each, minus half for clipped ones; those
            that are zero count as nothing, as their client's do when it is left out.
    """

    shape: Shape
    longest: float | None
    adapts: bool = False

    @one_thread()
    def __call__(self, models: Weighted, start: Model, cohort_weight: float) -> Model:
        """Return the sum; what clients do not send, such as frozen layers, is as at the start."""
        total = Sum()
        longest = None if self.longest is None else clip_of(start, self.longest)
        for weight, model in models:
            update = self.shape.difference(model, start)
            if longest is not None:
                length = length_of(update)
                fits = (0.5 if length <= longest else -0.5) if 0 < length < float("inf") else 0.0
                update = clip(update, longest) | ({CLIP: torch.tensor(fits).double()} if self.adapts else {})
            total.add(weight, update)
        return dict(start) | total.model


def clip_of(model: Model, first: float) -> float:
    """Return the clipping norm that a model carries; the first one if it carries none."""
    return float(model[CLIP]) if CLIP in model else first
