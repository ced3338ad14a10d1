"""The stages of `travel.stages` by name. A custom stage is a function that returns an `atoll.Stage`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from atoll.support.limits import PositiveFloat

if TYPE_CHECKING:
    from atoll.engine.stages import Stage


def clip(clip_norm: PositiveFloat = 1.0) -> "Stage":
    """Clients scale longer updates down to this norm: ``W + min(1, C / ||w - W||) (w - W)``.

    Args:
        clip_norm: C, the largest norm of an update.
    """
    from atoll.codecs.clip_stage import clip_updates  # late: reading settings needs no PyTorch

    return clip_updates(clip_norm)


STAGES: "dict[str, Callable[..., Stage]]" = {"clip": clip}
