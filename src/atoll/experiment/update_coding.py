"""From settings to how clients' updates are coded."""

from dataclasses import replace

from torch import nn

from atoll.codecs.codec import Codec
from atoll.codecs.coded_trainer import MakeCoded
from atoll.codecs.coding import Coding
from atoll.codecs.named_codecs import CODECS
from atoll.engine.engine import Method
from atoll.local.models import form_of, without
from atoll.local.travel import staying
from atoll.local.weights import count_bytes
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call, resolve
from atoll.settings.sections import Settings
from atoll.support.errors import InputError


def make_coding(settings: Settings) -> Coding | None:
    """Return what codes clients' updates; None where they are sent as they are.

    Raises:
        InputError: an unknown codec, or one that cannot be made.
    """
    wanted = settings.travel
    if wanted.codec == "none":
        return None
    told = f"travel.codec = {wanted.codec!r}"
    codec = call("travel.codec", resolve("travel.codec", wanted.codec, CODECS), dict(wanted), wanted.model_extra)
    if not isinstance(codec, Codec):
        raise InputError(f"{told}: must return an atoll.Codec, it returned {type(codec).__name__!r}")
    return Coding(told, codec)


def code_updates(settings: Settings, method: Method) -> Method:
    """Return the method with clients' updates coded as the settings want.

    Raises:
        InputError: a codec that does not go with the method.
    """
    coding = make_coding(settings)
    if coding is None:
        return method
    if why := _why_not(settings, method):
        raise InputError(f"{coding.told}: does not go with method.name = {settings.method.name!r}, {why}")
    return replace(method, trainer=MakeCoded(coding, settings.travel.feedback, settings.seed, method.trainer))


def coding_of(method: Method) -> Coding | None:
    """Return what codes the updates of a method's clients; None where they are sent as they are."""
    return method.trainer.coding if isinstance(method.trainer, MakeCoded) else None


def upload_share(settings: Settings, module: nn.Module) -> float:
    """Return the bytes of a coded update as a share of the model's; 1 where updates are sent as they are.

    Raises:
        InputError: a codec that fails.
    """
    coding = make_coding(settings)
    if coding is None:
        return 1.0
    model = without(module.state_dict(), staying(module, settings.model.travels))
    return coding.bytes_of(form_of(model)) / count_bytes(model)


def _why_not(settings: Settings, method: Method) -> str:
    """Return why a method's clients have no updates that could be coded; an empty text if they have."""
    kind = method_kind(settings)
    if kind.population is not None:
        return kind.why_one_place
    if not any(event.models_up for event in method.schedule.events):
        return "whose clients send nothing"
    if method.regroup is not None:
        return "whose clusters are found from updates as clients trained them"
    return ""
