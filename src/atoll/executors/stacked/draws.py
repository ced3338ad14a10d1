"""The batches of many clients drawn at once where they are trained, to the bit those that each draws alone.

A client's generator is NumPy's: `SeedSequence` makes the start of PCG64 (O'Neill 2014), whose j-th state is
``M^j s + (1 + M + ... + M^(j-1)) c`` modulo 2^128. In pieces of 16 bits all states are one product of matrices of whole
numbers below 2^53, so nothing has to be drawn one after the other; and float64 holds them exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from atoll.local.batches import as_tensor
from atoll.local.task import ClientTask
from atoll.local.trainer import Trainer
from atoll.support.arrays import Floats, Ids
from atoll.support.many_seeds import MULTIPLIER, seed_words

SPARE = 16  # drawn beside what is needed, for those that Lemire's method rejects
_RARE = 1 << 30  # draws times samples, below which more than `SPARE` of 2^32 / samples are not rejected in practice
_BYTES = 150  # that a draw takes on the way, at most
_TABLE = 1 << 26  # bytes of `held` that are always taken; more if the pool's inputs take as many
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws the batches of a trainer's clients on its device.

    Attributes:
        held: the positions in the pool of all clients' samples, one client after the other.
        jumps: what makes the states of all draws of a client from its start, float64 [16, pairs x 8].
        shape: local steps, and samples of each.
    """

    trainer: Trainer
    held: Tensor
    jumps: Tensor
    shape: tuple[int, int]

    @staticmethod
    def of(trainer: Trainer, room: int) -> "Draws | None":
        """Return what draws this trainer's batches; None if generators must, or it takes more bytes a client."""
        rule, people = trainer.rule, trainer.population
        held, size = people.indices, rule.batch_size
        if size == "full" or rule.resample_parts or people.later or not isinstance(held, np.ndarray):
            return None
        number = rule.steps * size
        is_small = number * _BYTES <= room and held.nbytes <= max(_TABLE, trainer.batches.inputs.nbytes)
        if not is_small or number * int(people.sizes.max()) >= _RARE:
            return None
        device = trainer.batches.inputs.device
        return Draws(trainer, as_tensor(held).to(device), _jumps(number).to(device), (rule.steps, size))

    def begin(self, tasks: Sequence[ClientTask]) -> Tensor:
        """Return what these clients draw from, on the device: starts, numbers of samples, where these are held."""
        clients = np.array([task.client for task in tasks])
        people = self.trainer.population
        offsets = people.offsets[clients]
        sizes = people.offsets[clients + 1] - offsets
        starts = starts_of(self.trainer.seed, "batches", np.array([task.key for task in tasks]))
        given = np.column_stack([starts, sizes, (1 << 32) % sizes, offsets])
        return torch.from_numpy(given).to(self.held.device)

    def rows(self, given: Tensor) -> Tensor:
        """Return the rows that `Trainer.draw_rows` gives for what was begun, [steps, clients x samples]."""
        sizes, least, offsets = given[:, 16:].long().T[..., None]
        steps, samples = self.shape
        drawn = offsets + draw(given[:, :16], sizes, least, self.jumps, steps * samples)
        return self.held[drawn].reshape(-1, steps, samples).transpose(0, 1).flatten(1)


def draw(starts: Tensor, sizes: Tensor, least: Tensor, jumps: Tensor, number: int) -> Tensor:
    """Return what ``integers(size, size=number)`` of each generator returns, [generators, number].

    Args:
        starts: `starts_of` the generators, float64 [generators, 16].
        sizes: what the numbers are below, int64 [generators, 1].
        least: 2^32 modulo the sizes.
        jumps: `_jumps` for so many numbers.
        number: how many.
    """
    scaled = _halves((starts @ jumps).long().reshape(len(starts), -1, 4, 2)) * sizes
    taken = ((scaled & _WORD) >= least).cumsum(1)
    wanted = torch.arange(1, number + 1, device=taken.device).repeat(len(taken), 1)
    return (scaled >> 32).gather(1, torch.searchsorted(taken, wanted))


def _halves(sums: Tensor) -> Tensor:
    """Return what PCG64 makes of states, the lower 32 bits of each before the upper: [generators, 2 x states].

    A state's high half, xor its low half, is turned right by its first six bits. `sums` are of pieces of 16 bits
    without what they carry over, [generators, states, 4, 2].
    """
    words = list((sums[..., 0] + (sums[..., 1] << 16)).unbind(2))
    for own in range(1, 4):
        words[own] = words[own] + (words[own - 1] >> 32)
    low, high = torch.stack(words[:2], 2) & _WORD, torch.stack(words[2:], 2) & _WORD
    turn, mixed = high[..., 1:] >> 26, low ^ high
    first = torch.where(turn < 32, mixed, mixed.flip(2))
    by = turn & 31
    return (((first >> by) | (first.flip(2) << (32 - by))) & _WORD).flatten(1)


def starts_of(seed: int, purpose: str, keys: Ids) -> Floats:
    """Return the starts of ``generator(seed, purpose, *key)`` for each key [keys, numbers below 2^32].

    Each is ``increment + state`` and ``increment`` in pieces of 16 bits, the lowest first, some with a bit or two more:
    float64 [keys, 16].
    """
    words = seed_words(seed, purpose, keys).T
    pieces = np.stack([words & 0xFFFF, words >> 16], 2).reshape(-1, 16).astype(float)
    increment = 2 * pieces[:, 8:] + (np.arange(8) == 0)
    return np.hstack([pieces[:, :8] + increment, increment])


@lru_cache
def _jumps(number: int) -> Tensor:
    """Return ``M^(j+1)`` and ``1 + M + ... + M^j`` for the j-th pair of numbers, as products of pieces of 16 bits."""
    pairs = -(-(number + SPARE) // 2)
    table = np.zeros((pairs, 2, 16))
    power, total = MULTIPLIER, 1
    for pair in range(pairs):
        total = (total + power) % (1 << 128)
        power = power * MULTIPLIER % (1 << 128)
        for own, factor in enumerate((power, total)):
            table[pair, own, 8:] = np.frombuffer(factor.to_bytes(16, "little"), "<u2")
    diagonals = 8 + np.arange(8) - np.arange(8)[:, None]  # the piece of the factor that takes one piece to another
    return torch.from_numpy(table[:, :, diagonals].transpose(1, 2, 0, 3).reshape(16, -1))
