"""The memory that a stack of clients takes, and has."""

import torch

from atoll.executors.stacked.fit import Fit
from atoll.local.task import ClientTask
from atoll.local.trainer import Trainer

STACK_BYTES = 64 << 20  # where the trainer is not on a GPU: larger stacks are no faster there, or slower


def client_bytes(trainer: Trainer, fit: Fit, samples: int) -> int:
    """Estimate what one client takes in a stack, with batches of so many samples.

    ``parameters x (model + gradient + moments + 1) + samples x (input + 3 x what its forward pass keeps)``; the
    proximal term needs the parameters once more, and moments that are carried are held twice.
    """
    rule = trainer.rule
    copies = 3 + fit.moments * (2 if rule.carry_moments else 1) + (1 if rule.proximal else 0)
    return copies * fit.model_bytes + samples * (fit.input_bytes + 3 * fit.saved_bytes)


def count_samples(task: ClientTask, trainer: Trainer) -> int:
    """Return the samples of each of the task's batches."""
    size = trainer.rule.batch_size
    return trainer.draw_rows(task).shape[1] if size == "full" else size


def default_bytes(device: torch.device) -> int:
    """Return half of a GPU's memory, whatever is free now: how clients are stacked must not depend on the moment."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // 2
    return STACK_BYTES


def is_out_of_memory(error: Exception) -> bool:
    """Return whether this is how the processor, a GPU or a library of CUDA's says that memory has run out."""
    messages = ("DefaultCPUAllocator", "ALLOC_FAILED")  # of the CPU; of CUDA's libraries
    is_known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_known or any(message in str(error) for message in messages)
