"""A data set: one pool of samples for training and one for testing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.data.dataset_checks import checked_parts
from atoll.support.arrays import Floats
from atoll.support.errors import InputError

_KINDS = {
    "squared": "real targets",
    "binary-cross-entropy": "labels that apply or not",
    "next-token": "each token a target",
}


@dataclass(frozen=True)
class Standard:
    """How inputs, once multiplied by `scale`, are standardised when a batch is gathered.

    Attributes:
        means: subtracted from each channel, [channels]; empty: each input is standardised by its own moments.
        deviations: each channel is then divided by, [channels].
    """

    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit each other."""
        if len(self.means) != len(self.deviations) or not all(value > 0 for value in self.deviations):
            raise InputError(
                f"standard: {len(self.means)} means and the deviations {list(self.deviations)}: must be one of each "
                "per channel, and deviations positive"
            )

    def __str__(self) -> str:
        """Return it in words, such as 'less 0.1307, over 0.3081'."""
        if not self.means:
            return "each less its own mean, over its own deviation"
        less, over = (", ".join(f"{value:.4g}" for value in values) for values in (self.means, self.deviations))
        return f"less {less}, over {over}" + (" by channel" if len(self.means) > 1 else "")


@dataclass(frozen=True, eq=False)
class Dataset:
    """One pool of samples for training and one for testing.

    Two data sets are equal only if they are the same object.

    Attributes:
        name: its name.
        inputs: [samples, *shape]; uint8 stay bytes until a batch is gathered.
        targets: [samples]; int64 class indices; or, for regression, real numbers, maybe several: [samples, numbers].
            With `turns`, they may be those of all copies, [samples * copies].
        test_inputs: [test samples, *shape].
        test_targets: [test samples].
        classes: number of classes; 0 for regression.
        scale: factor applied to input values when a batch is gathered.
        standard: how inputs are standardised after that; None: they are not.
        loss: "cross-entropy"; "squared", half the squared error, for regression; "binary-cross-entropy", for several
            labels that each apply or not: `targets` are 0 or 1, [samples, labels]; or "next-token", for texts:
            `targets` are the inputs, tokens [samples, length], -1 beyond a text's end.
        turns: the pool holds a copy of every image for each of these numbers of quarter turns: sample i is image
            ``i % len(inputs)`` turned by ``turns[i // len(inputs)]``; copies are made when a batch is gathered.
        groups: the planted group of each sample, [samples]; None: its index in `turns`.
        test_groups: the same for the test samples.
        planted: the parameters planted in each group, [groups, parameters], if known.
        owners: the client that holds each sample, [samples], if the data says so (`partition.natural`).
        test_owners: the same for the test samples, if clients have their own.
        names: names by number, if known, of "inputs", "targets", "owners" and "groups".
        encode: for tables, turns the rows of a data frame into inputs.

    Arrays may be lists, tensors, or Series and frames of pandas, with any type of number. Labels become int64; texts
    are numbered in their natural order.

    Raises:
        InputError: if a part does not hold finite numbers, parts do not fit each other, or a label is out of range.
    """

    name: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    test_inputs: npt.NDArray[Any]
    test_targets: npt.NDArray[Any]
    classes: int
    scale: float = 1.0
    standard: Standard | None = None
    loss: str = "cross-entropy"
    turns: tuple[int, ...] = (0,)
    groups: npt.NDArray[Any] | None = None
    test_groups: npt.NDArray[Any] | None = None
    planted: Floats | None = None
    owners: npt.NDArray[Any] | None = None
    test_owners: npt.NDArray[Any] | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    encode: Callable[[Any], npt.NDArray[Any]] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Convert the parts to arrays, and refuse those that do not fit each other."""
        for name, value in checked_parts(self).items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        kind = f"{self.classes} classes" if self.classes else _KINDS[self.loss]
        counts = f"{len(self):,} samples of {list(self.shape)}, {len(self.test_inputs):,} to test"
        return f"Dataset({self.name!r}: {counts}, {kind})"

    def __len__(self) -> int:
        """Return the number of training samples, turned copies included."""
        return len(self.inputs) * len(self.turns)

    @property
    def outputs(self) -> int:
        """How many numbers a model returns for an input: one per class, or one per target."""
        return self.classes or int(np.prod(self.targets.shape[1:]))

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Targets of all training samples, turned copies included, [len(self)]; the first if several."""
        first = self.targets if self.targets.ndim == 1 else self.targets.reshape(len(self.targets), -1)[:, 0]
        return np.tile(first, len(self) // len(first))

    def inputs_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the inputs of these training samples as stored, turned copies turned, [len(rows), *shape]."""
        inputs, copies = self.inputs[rows % len(self.inputs)], rows // len(self.inputs)
        for copy in np.unique(copies):
            own = copies == copy
            if self.turns[copy]:
                inputs[own] = np.rot90(inputs[own], self.turns[copy], axes=(-2, -1))
        return np.asarray(inputs)

    def labels_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the targets of these training samples."""
        return np.asarray(self.targets[rows % len(self.targets)])

    def groups_of(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the planted group of these training samples; 0 for all if nothing is planted."""
        return rows // len(self.inputs) if self.groups is None else np.asarray(self.groups[rows])

    @property
    def test(self) -> "Dataset":
        """The test samples as a pool of their own."""
        return replace(
            self, inputs=self.test_inputs, targets=self.test_targets, groups=self.test_groups, owners=self.test_owners
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, such as (1, 28, 28): channels, height, width."""
        return self.inputs.shape[1:]
