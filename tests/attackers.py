"""Clients some of whom attack."""

from atoll import Chain, Trainer, attacking
from atoll.support.arrays import Ids


def attacked_by(
    trainer: Trainer,
    attackers: Ids,
    attack: str = "sign-flip",
    strength: float | None = None,
    claimed_loss: float | None = None,
) -> Chain:
    """Return what trains clients of whom these attack."""
    return Chain(trainer, [attacking(attackers, attack, strength, claimed_loss, trainer.seed)])
