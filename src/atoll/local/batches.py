"""Batches: samples gathered from the pool, their losses, and many models evaluated on them at once."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from atoll.data.dataset import Dataset
from atoll.local.layers import standardised
from atoll.local.models import Model
from atoll.local.precision import products_in
from atoll.local.threads import side_by_side
from atoll.local.weights import load_model
from atoll.support.arrays import Floats

SHARED_BATCH = {"cpu": 500, "cuda": 8000}  # samples per forward pass when models are evaluated
_FETCHED = 2000  # samples fetched from the pool at once, for several batches
Samples = tuple[Tensor, Tensor]  # inputs [n, ...] and targets [n]


class Batches:
    """A pool of samples on the module's device, gathered into batches of the module's floating-point type."""

    def __init__(self, data: Dataset, module: nn.Module) -> None:
        """Share the training pool's arrays with PyTorch; nothing is copied on the CPU."""
        self._made_of = data, module
        first = next(module.parameters())
        self.dtype = first.dtype
        self.prepare = preparation(data, first)
        self.turns, self._turns = data.turns, torch.tensor(data.turns, device=first.device)
        self.inputs, self.targets = (as_tensor(own).to(first.device) for own in (data.inputs, data.targets))
        self.losses = LOSSES[data.loss]
        self.hits = HITS.get(data.loss)
        self.classifies = self.hits is not None

    def __reduce__(self) -> tuple[type["Batches"], tuple[Dataset, nn.Module]]:
        """Pickle the data and the module: unlike tensors, NumPy arrays can stay in memory shared by processes."""
        return Batches, self._made_of

    def __len__(self) -> int:
        return len(self.inputs) * len(self.turns)

    def gather(self, rows: npt.NDArray[np.integer]) -> Samples:
        """Return inputs [len(rows), ...] and targets of these samples."""
        return next(self.gather_each(rows[None]))

    def gather_each(self, rows: npt.NDArray[np.integer] | Tensor) -> Iterator[Samples]:
        """Yield inputs and targets of the samples in each row of `rows`, [batches, samples].

        Rows that are on a GPU are never waited for, so that a CUDA graph can read others there.
        """
        rows = (as_tensor(rows) if isinstance(rows, np.ndarray) else rows).to(self.inputs.device)
        fetched = self.fetch_each(*self.places(rows))
        for inputs, targets in self._turn_each(fetched, rows // len(self.inputs)) if any(self.turns) else fetched:
            yield self.prepare(inputs), targets

    def places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return where these samples' inputs lie, and their targets: copies have targets of their own."""
        index = rows % len(self.inputs) if len(self) > len(self.inputs) else rows
        return index, rows % len(self.targets) if len(self.targets) > len(self.inputs) else index

    def fetch_each(self, index: Tensor, own: Tensor) -> Iterator[Samples]:
        """Yield stored inputs and targets of each row of `places`.

        The samples of several batches are fetched at once, so that a GPU waits once for all of them.
        """
        several = max(1, _FETCHED // max(1, index.shape[1]))
        for low in range(0, len(index), several):
            high = low + several
            fetched = (
                pool.index_select(0, rows.flatten()).reshape(*rows.shape, *pool.shape[1:])
                for pool, rows in ((self.inputs, index[low:high]), (self.targets, own[low:high]))
            )
            yield from zip(*fetched, strict=True)

    def _turn_each(self, fetched: Iterable[Samples], copies: Tensor) -> Iterator[Samples]:
        """Rotate each image of each batch as its copy requires; on the processor most batches hold one copy only."""
        is_one = [False] * len(copies) if copies.is_cuda else (copies == copies[:, :1]).all(dim=1).tolist()
        for (inputs, targets), own, alike in zip(fetched, copies, is_one, strict=True):
            if alike:
                turned = torch.rot90(inputs, self.turns[int(own[0])], dims=(-2, -1))
            else:
                turned, turns = inputs, self._turns[own].reshape(-1, *[1] * (inputs.ndim - 1))
                for quarters in sorted({*self.turns} - {0}):
                    turned = torch.where(turns == quarters, torch.rot90(inputs, quarters, dims=(-2, -1)), turned)
            yield turned.contiguous(), targets


class FromStored(nn.Module):
    """A module with its inputs' scaling and standardisation in front of it: it takes inputs as they are stored."""

    def __init__(self, module: nn.Module, data: Dataset) -> None:
        super().__init__()
        self.module = module
        self._prepare = preparation(data, next(module.parameters()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the module's outputs for stored inputs [n, *shape]."""
        outputs: Tensor = self.module(self._prepare(inputs))
        return outputs


def as_tensor(array: npt.NDArray[np.generic]) -> Tensor:
    """Return a tensor that shares the array's memory, without PyTorch's warning if that is read-only."""
    with nullcontext() if array.flags.writeable else warnings.catch_warnings(action="ignore"):
        return torch.from_numpy(array)


def preparation(data: Dataset, like: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function from stored inputs to a model's: scaled, standardised, in the type of `like`."""
    scale = torch.tensor(data.scale, dtype=like.dtype)

    def scaled(inputs: Tensor, factor: Tensor = scale) -> Tensor:
        return (inputs.to(like.dtype) if inputs.is_floating_point() else inputs) * factor

    if data.standard is None:
        return scaled if data.scale != 1 else lambda inputs: inputs.to(like.dtype)
    if not data.standard.means:
        return lambda inputs: standardised(scaled(inputs))
    moments = torch.tensor([data.standard.means, data.standard.deviations], dtype=torch.float64)
    means, deviations = moments.reshape(2, -1, *[1] * (len(data.shape) - 1))
    device = "cpu" if like.device.type == "mps" else like.device  # which lacks float64
    wide = [each.to(device) for each in (data.scale / deviations, -means / deviations)]
    factor, shift = (each.to(like) for each in wide)

    def prepared(inputs: Tensor) -> Tensor:
        """Return (scale x - mean) / deviation; of numbers that `like` may not tell apart, such as times, in float64."""
        if inputs.dtype in (torch.float64, torch.int64) and inputs.device.type != "mps":
            wanted: Tensor = (inputs * wide[0]).add_(wide[1])
            return wanted.to(like.dtype)
        return scaled(inputs, factor).add_(shift)

    return prepared


@dataclass(frozen=True, eq=False)
class MeasuredLosses:
    """Each model's mean loss, and accuracy (0 for regression), on each client's data: both [clients, models]."""

    losses: Floats
    accuracies: Floats


def measure_models(
    module: nn.Module,
    batches: Batches,
    models: Sequence[Model],
    rows: Sequence[npt.NDArray[np.int32]],
    threads: int = 1,
) -> MeasuredLosses:
    """Evaluate all models on each client's samples, ``rows[client]``.

    Every sample is gathered once for all models, and clients share batches, so the cost is one forward pass per model
    and sample; threads take one batch each.
    """
    own = cut_rows(rows, batches.inputs.device.type)
    parts = side_by_side(lambda copy, part: measure_samples(copy, batches, models, part), module, own, threads)
    losses, hits = (torch.cat(each).cpu().numpy() for each in zip(*parts, strict=True))
    return MeasuredLosses(mean_by_client(losses, rows), mean_by_client(hits, rows))


@torch.no_grad()
def measure_samples(
    module: nn.Module, batches: Batches, models: Sequence[Model], rows: npt.NDArray[np.int32]
) -> tuple[Tensor, Tensor]:
    """Return each model's loss on each sample of a batch, and whether it is correct: [samples, models]."""
    module.eval()
    inputs, targets = batches.gather(rows)
    outputs = []
    with products_in("float32"):
        for model in models:
            load_model(module, model)  # `torch.func.functional_call` does not restore a layer used in two places
            outputs.append(module(inputs))
    losses = torch.stack([batches.losses(each, targets).double() for each in outputs], dim=1)
    if batches.hits is None:
        return losses, torch.zeros_like(losses)
    return losses, torch.stack([batches.hits(each, targets) for each in outputs], dim=1).double()


def cut_rows(rows: Sequence[npt.NDArray[np.int32]], device: str = "cpu") -> list[npt.NDArray[np.int32]]:
    """Return all clients' samples, client by client, in the batches on which models are evaluated."""
    flat, size = np.concatenate(rows), SHARED_BATCH.get(device, SHARED_BATCH["cpu"])
    return [flat[low : low + size] for low in range(0, len(flat), size)]


def mean_by_client(table: Floats, rows: Sequence[npt.NDArray[np.int32]]) -> Floats:
    """Return the mean over each client's samples, [clients, models], of measurements on these rows."""
    sizes = np.array([len(own) for own in rows])
    return np.asarray(np.add.reduceat(table, np.cumsum(sizes) - sizes) / sizes[:, None])


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's cross-entropy; outputs [samples, classes], targets [samples]."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return half of each sample's squared error; outputs and targets [samples] or [samples, outputs]."""
    return (outputs.reshape(targets.shape) - targets).square().reshape(len(targets), -1).sum(dim=1) / 2


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each sample's mean cross-entropy over its labels; outputs and targets [samples, labels]."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=1)


def next_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return minus each text's mean log-probability of its tokens after the first.

    Outputs [samples, length] are the log-probability of each token after those before it; targets the tokens, -1 beyond
    a text's end.
    """
    known = targets[:, 1:] >= 0
    return -(outputs[:, 1:] * known).sum(dim=1) / known.sum(dim=1)


def perplexity(losses: npt.ArrayLike) -> Floats:
    """Return the exponential of `next_token`'s means, infinite where it is beyond a float.

    >>> perplexity([0.0, 1000.0]).tolist()
    [1.0, inf]
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(losses))


def right_class(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether each sample's largest output is that of its class."""
    return outputs.argmax(dim=1) == targets


def right_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of each sample's labels that are predicted correctly."""
    return ((outputs > 0) == (targets > 0)).double().mean(dim=1)


Losses = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Losses] = {
    "cross-entropy": cross_entropy,
    "squared": half_squared,
    "binary-cross-entropy": binary_cross_entropy,
    "next-token": next_token,
}
HITS: dict[str, Losses] = {"cross-entropy": right_class, "binary-cross-entropy": right_labels}
"""Accuracy of each sample, by loss; regression and texts have none."""
