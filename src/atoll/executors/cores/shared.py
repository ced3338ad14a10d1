"""Models in memory shared with processes that are forked later."""

import math
import mmap

import torch

from atoll.local.models import Model
from atoll.support.errors import RunError

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
"""Name, type and shape of each tensor of a model, in order."""

_ALIGNMENT = 16  # bytes: the largest element of any type
_SPARE_BYTES = 4096 * _ALIGNMENT  # to align this many tensors


class SharedModels:
    """Slots of equal size for one model each; unused slots take no memory.

    The memory is anonymous, so it is freed with the last process that has it.
    """

    def __init__(self, slots: int, model_bytes: int) -> None:
        """Reserve the slots, each for a model of at most `model_bytes` bytes; an OSError if memory has no room."""
        self.model_bytes = model_bytes
        self._slot_bytes = math.ceil(model_bytes / _ALIGNMENT) * _ALIGNMENT + _SPARE_BYTES
        self._memory = torch.frombuffer(mmap.mmap(-1, slots * self._slot_bytes), dtype=torch.uint8)

    def write(self, slot: int, model: Model) -> Layout:
        """Copy a model into a slot; return its layout."""
        layout = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in model.items())
        for shared, tensor in zip(self.view(slot, layout).values(), model.values(), strict=True):
            shared.copy_(tensor)
        return layout

    def view(self, slot: int, layout: Layout) -> Model:
        """Return the model in a slot; its tensors are views of the shared memory."""
        model, low = {}, slot * self._slot_bytes
        end = low + self._slot_bytes
        for name, dtype, shape in layout:
            high = low + math.prod(shape) * dtype.itemsize
            if high > end:
                raise RunError(f"a model does not fit into the {self.model_bytes} bytes reserved for it; use 'serial'")
            model[name] = self._memory[low:high].view(dtype).view(shape)
            low = math.ceil(high / _ALIGNMENT) * _ALIGNMENT
        return model
