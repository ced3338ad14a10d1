"""Augmentation by name: functions that change the inputs of a training batch at random.

A function takes `inputs` [samples, *shape] as the model gets them and returns others of their shape and type. It draws
from PyTorch's generator, which is seeded for each client and step. A user's own is ``augment = "module:function"``.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from atoll.data.array_inputs import kind_of
from atoll.support.errors import InputError
from atoll.support.extras import load_extra
from atoll.support.limits import Count, Probability
from atoll.support.seeds import layers_drawing_from

if TYPE_CHECKING:  # imported only when a batch is augmented, so that reading settings stays fast
    from torch import Tensor

Augment = Callable[["Tensor"], "Tensor"]
Batch = tuple["Tensor", "Tensor"]


def augmented(augment: Augment, batches: Iterable[Batch], seed: int, *key: int) -> Iterator[Batch]:
    """Yield batches with their inputs changed, by random numbers of the key and the batch's place alone."""
    for step, (inputs, targets) in enumerate(batches):
        with layers_drawing_from(seed, "augment", *key, step):
            made = augment(inputs.clone())
        given, found = (f"{x.dtype} {list(x.shape)}"[6:] if hasattr(x, "clone") else kind_of(x) for x in (inputs, made))
        if given != found:
            raise InputError(f"data.augment: must return a tensor like its inputs, {given}; it returned {found}")
        yield made.detach(), targets


def crop_flip(
    inputs: "Tensor", shift: Count = 4, flip: Probability = 0.5, batchwise: bool = False, _name: str = "crop-flip"
) -> "Tensor":
    """Shift images and flip them left to right; before a model's centre crop this is a random crop.

    Args:
        shift: most pixels, up or down and left or right; what comes in is 0.
        flip: probability.
        batchwise: whether a batch has one shift, brightness and contrast for all images, as in IFCA's code.
    """
    kornia = load_extra("kornia.augmentation", "augment", f"data.augment = {_name!r}", "kornia")
    if inputs.ndim != 4 or 2 * shift >= min(inputs.shape[2:]):
        needs = f"needs images of more than {2 * shift}x{2 * shift} pixels, so that a shift by {shift} leaves some"
        raise InputError(f"data.augment = {_name!r}: {needs}; inputs have the shape {list(inputs.shape[1:])}")
    shifted = kornia.RandomCrop(tuple(inputs.shape[2:]), padding=shift, same_on_batch=batchwise)(inputs)
    return kornia.RandomHorizontalFlip(p=flip)(shifted)  # type: ignore[no-any-return]


def cifar(
    inputs: "Tensor", brightness: Probability = 63 / 255, contrast: Probability = 0.8, batchwise: bool = False
) -> "Tensor":
    """As `crop_flip` by up to 4 pixels, then brightness and contrast (TensorFlow's tutorial on CIFAR-10; IFCA).

    Args:
        brightness: most that is added to all pixels, for inputs from 0 to 1.
        contrast: largest relative change of the distances to each channel's mean.
    """
    images = crop_flip(inputs, batchwise=batchwise, _name="cifar")
    mean = images[:, :, 4:-4, 4:-4].mean(dim=(2, 3), keepdim=True)  # of pixels none of which came in
    by = mean.new_empty(2, 1 if batchwise else len(images), 1, 1, 1, device="cpu").uniform_(-1, 1).to(mean.device)
    return (images - mean) * (1 + contrast * by[0]) + mean + brightness * by[1]  # Kornia's contrast has no mean


AUGMENTS: dict[str, Callable[..., "Tensor"]] = {"none": lambda inputs: inputs, "crop-flip": crop_flip, "cifar": cifar}
