"""The initial model of a run."""

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from atoll.experiment.chosen_stages import upload_share
from atoll.experiment.clients import Clients
from atoll.experiment.modules import draw_module
from atoll.experiment.start_model import load_start
from atoll.local.models import without
from atoll.local.travel import Shared, frozen, staying
from atoll.local.weights import check_outputs, count_bytes, place, require_devices, warn_of_softmax
from atoll.methods.papers.fmcl import ENCODERS
from atoll.settings.choices import method_kind
from atoll.settings.plugins import call, resolve
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.support.seeds import layers_drawing_from


@dataclass(frozen=True, eq=False)
class InitialModel:
    """The initial model of a run, drawn on first use, and the device that trains it."""

    settings: Settings
    clients: Clients

    @property
    def device(self) -> str:
        """The device to train on, the first if there are several."""
        return require_devices(self.settings.run.device)[0]

    @cached_property
    def module(self) -> nn.Module:
        """The initial model, drawn from the seed."""
        data = self.clients.dealt.data
        module = self.draw()
        check_outputs(module, data.shape, data.outputs, self.settings.model.name)
        if data.loss == "cross-entropy" and ":" in self.settings.model.name:
            warn_of_softmax(module, data.shape, self.settings.model.name)
        return module

    def draw(self, cluster: int = 0, restart: int = 0) -> nn.Module:
        """Return a module with separate initial weights for each cluster and restart, or those of `model.start`."""
        module = draw_module(self.settings, self.clients.dealt.data, cluster, restart)
        if self.settings.model.start is not None:
            load_start(module, self.settings.model.start)
        return module

    def copy(self) -> nn.Module:
        """Return a copy of the module on the device; the original stays untrained, so that a run can be repeated."""
        return place(deepcopy(self.module, dict(self._frozen)), self.device)

    @cached_property
    def _frozen(self) -> dict[int, nn.Parameter]:
        """The frozen parameters that are not communicated, on the device, by their `id`: all copies share them."""
        own = self.module.state_dict(keep_vars=True)
        kept = [own[name] for name in set(self.stays).intersection(frozen(self.module))]
        return {id(each): Shared(each.to(self.device), requires_grad=False) for each in kept}

    def encoder(self) -> nn.Module | None:
        """Return the frozen model of `method.encoder`, on the device; None: the initial model."""
        wanted, data = self.settings.method, self.clients.dealt.data
        make = resolve("method.encoder", wanted.encoder, ENCODERS)
        given = {"shape": data.shape, "dataset": data, **dict(wanted)}
        with layers_drawing_from(self.settings.seed, "encoder"):
            made = call("method.encoder", make, given, wanted.model_extra)
        if not isinstance(made, nn.Module | None):
            found = type(made).__name__
            raise InputError(f"method.encoder = {wanted.encoder!r}: must return a PyTorch module, not {found!r}")
        return made and place(made, self.device)

    @cached_property
    def stays(self) -> tuple[str, ...]:
        """The tensors that the settings keep from being communicated."""
        return staying(self.module, self.settings.model.travelling)

    def bytes_without(self, names: tuple[str, ...]) -> int:
        """Return the bytes of the model without the tensors of these names."""
        return count_bytes(without(self.module.state_dict(), names))

    @cached_property
    def upload_share(self) -> float:
        """Bytes of an uploaded update, relative to the model's."""
        return upload_share(self.settings, self.module)

    def serves(self, settings: Settings) -> bool:
        """Return whether other settings with the same clients make the same model."""
        own = self.settings
        if own.method != settings.method and any(method_kind(each).together for each in (own, settings)):
            return False
        alike = all(getattr(own, name) == getattr(settings, name) for name in ("model", "travel", "secure"))
        return alike and (own.run.device, own.method.encoder) == (settings.run.device, settings.method.encoder)
