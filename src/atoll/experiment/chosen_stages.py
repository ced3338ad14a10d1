"""From settings to the clients of each cohort, and the stages that their updates pass through (`Method.stages`).

A simulation, a fleet's server and each of its nodes make the same.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from atoll.aggregation.fixed_point import FixedPoint
from atoll.codecs.codec import Codec
from atoll.codecs.codec_stage import code_updates
from atoll.codecs.coding import Coding
from atoll.codecs.named_codecs import CODECS, STAGES
from atoll.data.array_inputs import kind_of
from atoll.data.population import Population
from atoll.engine.method import Method
from atoll.engine.stages import Need, Stage, sent_form
from atoll.experiment.faults import attack_stage, loses_clients
from atoll.experiment.modules import let_stay
from atoll.experiment.privacy import hide, read_mechanism
from atoll.local.models import form_of, without
from atoll.local.travel import staying
from atoll.local.weights import bytes_of_form
from atoll.methods.selection import SELECTIONS, Selection, reselect
from atoll.privacy.noise import Noise
from atoll.schedules.clock import Clock
from atoll.secure.fixed import masked_form, sum_securely
from atoll.secure.requirements import refuse_module, weighs_by_samples
from atoll.settings.choices import method_kind, method_needs
from atoll.settings.plugins import call, resolve
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import InputError


def choose_clients(settings: Settings, method: Method, population: Population, clock: Clock | None) -> Method:
    """Return the method with the cohorts that `method.select` chooses."""
    wanted = settings.method
    if wanted.select == "uniform":
        return method
    told, make = f"method.select = {wanted.select!r}", resolve("method.select", wanted.select, SELECTIONS)
    if (kind := method_kind(settings)).population is not None:
        raise InputError(f"{told}: cannot be used with method.name = {wanted.name!r}, {kind.why_one_place}")
    given = {**dict(wanted), "population": population, "clock": clock, "seed": settings.seed}
    selection = call("method.select", make, given, wanted.model_extra)
    if not isinstance(selection, Selection):
        raise InputError(f"{told}: must return an atoll.Selection, not {kind_of(selection)}")
    if selection.by_loss and loses_clients(settings):
        raise InputError(
            f"{told}: cannot be used with [faults] that lose clients, since it is known who trains only once losses "
            "have been reported"
        )
    if method_needs(settings, "clustering"):
        raise InputError(f"{told}: cannot be used with method.name = {wanted.name!r}, whose cohorts come from clusters")
    return reselect(method, selection, population, clock)


def add_stages(
    settings: Settings, method: Method, sizes: Ids, module: nn.Module, noise: Noise, attacked: bool = True
) -> Method:
    """Return the method with the stages that the settings ask for, in this order: layers that stay, attack, clients'
    own noise, `travel.stages`, `travel.codec`, masks, clipping and noise by a trusted server.

    On nodes of a fleet clients are not `attacked`, whatever the settings say.
    """
    method, mechanism = let_stay(settings, method, module), read_mechanism(settings)
    attack = attack_stage(settings, len(sizes)) if attacked else None
    method = method if attack is None else method.with_stage(attack)
    if mechanism is not None and mechanism.is_local:
        method = hide(settings, mechanism, method, sizes, module, noise)
    for stage in sending_stages(settings):
        _require_updates(settings, stage)
        method = method.with_stage(stage)
    method = _add_masks(settings, method, sizes, module)
    if mechanism is not None and not mechanism.is_local:
        method = hide(settings, mechanism, method, sizes, module, noise)
    return method


def sending_stages(settings: Settings) -> Iterator[Stage]:
    """Yield the stages that determine what leaves a client: those of `travel.stages`, then `travel.codec`."""
    names = settings.travel.stages
    if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
        raise InputError(f"travel.stages = {list(names)}: names {twice!r} twice; each may come once")
    for name in names:
        yield _make_stage(settings, name)
    if settings.travel.codec != "none":
        yield _make_codec(settings)


def upload_share(settings: Settings, module: nn.Module) -> float:
    """Return the bytes of an update as it leaves its client or node, relative to the model's."""
    form = form_of(without(module.state_dict(), staying(module, settings.model.travelling)))
    if not form:
        return 1.0  # nothing is communicated, which `let_stay` rejects
    sent = sent_form(list(sending_stages(settings)), form)
    return bytes_of_form(masked_form(sent) if settings.secure.sums else sent) / bytes_of_form(form)


def _make_stage(settings: Settings, name: str) -> Stage:
    wanted, told = settings.travel, f"travel.stages = {name!r}"
    given = {**dict(wanted), "seed": settings.seed}
    stage = call("travel.stages", resolve("travel.stages", name, STAGES), given, wanted.model_extra)
    if not isinstance(stage, Stage):
        raise InputError(f"{told}: must return an atoll.Stage, it returned {type(stage).__name__!r}")
    lacks = dict.fromkeys(stage.lacks, told)
    lacks |= {Need.NUMBERS: told} if stage.receive or stage.form else {}
    lacks |= {Need.NO_STATE: told} if stage.keeps_state else {}
    lacks |= {Need.KNOWN_CODE: told} if ":" in name else {}
    needs = {Need.NUMBERS: "an earlier stage sends something other than a model", **stage.needs}
    needs |= {Need.NO_REGROUPING: "clusters are found from client states"} if stage.keeps_state or stage.send else {}
    return replace(stage, told=told, needs=needs, lacks=lacks, digest=wanted.model_dump())


def _make_codec(settings: Settings) -> Stage:
    wanted, told = settings.travel, f"travel.codec = {settings.travel.codec!r}"
    codec = call("travel.codec", resolve("travel.codec", wanted.codec, CODECS), dict(wanted), wanted.model_extra)
    if not isinstance(codec, Codec):
        raise InputError(f"{told}: must return an atoll.Codec, it returned {type(codec).__name__!r}")
    return code_updates(Coding(told, codec), wanted.feedback, settings.seed, ":" in wanted.codec, wanted.model_dump())


def _require_updates(settings: Settings, stage: Stage) -> None:
    kind = method_kind(settings)
    if kind.population is not None:
        raise InputError(
            f"{stage.told}: cannot be used with method.name = {settings.method.name!r}, {kind.why_one_place}"
        )


def _add_masks(settings: Settings, method: Method, sizes: Ids, module: nn.Module) -> Method:
    """Return the method with clients' updates summed as integers, which nodes of a fleet mask."""
    if not settings.secure.sums:
        return method
    if why := method_kind(settings).why_one_place:
        raise InputError(f"secure.sums = true: cannot be used with method.name = {settings.method.name!r}, {why}")
    by_samples = settings.method.weights != "equal" and weighs_by_samples(method, sizes)
    fixed = FixedPoint(**{k: v for k, v in dict(settings.secure).items() if k != "sums"}, by_samples=by_samples)
    masked = method.with_stage(sum_securely(fixed))
    refuse_module(module)
    return masked
