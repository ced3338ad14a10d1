"""Sections that name a function: the functions available, and the settings that each of them takes.

A section of the experiment file holds such names, a few settings that always apply, and the named functions'
parameters. Built-in functions and a user's own (``module:function``) work alike: a function's parameters are settings
of its section, except for the objects that Atoll passes by name (`NamedChoice.given`). Some of these objects have
settings of their own, which apply when a function asks for the object (`SETTINGS_OF`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any

from atoll.methods.parts.kind import MethodKind, kind_of
from atoll.settings.plugins import resolve
from atoll.settings.sections import Sections
from atoll.settings.signatures import Function, Parameter, asks_for, settings_of

Table = Mapping[str, Any]


@dataclass(frozen=True)
class NamedChoice:
    """A setting that names a function.

    Attributes:
        key: its name there.
        default: the function's name if the setting is not set; None: the setting is a list of names, empty if not set.
        table: where the built-in functions are, as ``module:NAME``.
        given: the parameters that Atoll fills in, which are therefore not settings.
        parts: returns the functions that a name stands for, whose parameters are settings.
        is_open: whether users may give functions of their own.
    """

    section: str
    key: str
    default: str | None
    table: str
    given: frozenset[str]
    parts: Callable[[Function], tuple[Function, ...]] = lambda made: made if isinstance(made, tuple) else (made,)
    is_open: bool = True

    @property
    def setting(self) -> str:
        """The setting's path."""
        return f"{self.section}.{self.key}"

    @property
    def functions(self) -> Mapping[str, Function]:
        """The built-in functions by name."""
        return _load(self.table)  # type: ignore[no-any-return]

    def resolve(self, name: str) -> Function:
        """Return the function of this name."""
        return resolve(self.setting, name, self.functions, self.is_open)  # type: ignore[no-any-return]


_OF_CLIENTS = {"labels", "groups", "classes", "owners", "dataset", "rng", "seed", "clients"}
_OF_CLUSTERINGS = {"population", "network", "problem", "clock", "rng", "seed", "clusters", "rounds"}
_OF_METHODS = {"population", "clustering", "network", "phases", "pace", "clock", "module", "rule", "rounds", "seed"}
_OF_METHODS |= {"deadline_seconds", "encoder", "model_bytes", "shape", "classes", "make", "loss"}

CHOICES = (
    NamedChoice("method", "name", "fedcluster", "atoll.methods.named_methods:METHODS",
           frozenset(_OF_METHODS), lambda made: kind_of(made).parts),
    NamedChoice("method", "combine", "mean", "atoll.aggregation.robust:ROBUST", frozenset()),
    NamedChoice("method", "select", "uniform", "atoll.methods.selection:SELECTIONS",
           frozenset({"population", "clock", "seed"})),
    NamedChoice("method", "encoder", "start", "atoll.methods.papers.fmcl:ENCODERS", frozenset({"shape", "dataset"})),
    NamedChoice("clustering", "method", "random", "atoll.clustering.named_clusterings:CLUSTERINGS",
           frozenset(_OF_CLUSTERINGS)),
    NamedChoice("data", "dataset", "digits", "atoll.data.named_datasets:DATASETS",
           frozenset({"root", "fetch", "rng", "seed", "clients"})),
    NamedChoice("data", "partition", "iid", "atoll.data.dealing.partition:PARTITIONS", frozenset(_OF_CLIENTS)),
    NamedChoice("data", "skew", "none", "atoll.data.dealing.feature_skew:SKEWS",
           frozenset({"inputs", "level", "levels", "scale", "rng"})),
    NamedChoice("drift", "kind", "none", "atoll.data.dealing.drift:DRIFTS",
           frozenset({*_OF_CLIENTS, "concepts", "deal"})),
    NamedChoice("data", "augment", "none", "atoll.local.augment:AUGMENTS", frozenset({"inputs"})),
    NamedChoice("model", "name", "mlp", "atoll.local.models:MODELS", frozenset({"shape", "classes", "dataset"})),
    NamedChoice("travel", "stages", None, "atoll.codecs.named_codecs:STAGES", frozenset({"seed"})),
    NamedChoice("travel", "codec", "none", "atoll.codecs.named_codecs:CODECS", frozenset()),
    NamedChoice("local", "optimizer", "sgd", "atoll.local.rule:OPTIMIZERS", frozenset({"parameters", "params", "lr"})),
    NamedChoice("local", "schedule", "constant", "atoll.local.rates:SCHEDULES",
           frozenset({"optimizer", "round", "rounds", "lr"})),
    NamedChoice("network", "topology", "grid", "atoll.network.topology:TOPOLOGIES",
           frozenset({"aggregators", "rows", "columns", "rng"})),
    NamedChoice("privacy", "trust", "none", "atoll.privacy.named_trusts:TRUSTS", frozenset(), is_open=False),
)  # fmt: skip

SETTINGS_OF: Mapping[str, tuple[tuple[str, str], ...]] = {
    "problem": (
        ("clustering", "atoll.clustering.feduc.problem:BoundSettings"),
        ("method", "atoll.clustering.feduc.problem:PatternSettings"),
    ),
    "phases": (("clustering", "atoll.clustering.feduc.problem:BoundSettings"),),
}
"""The settings that sections gain if a function asks for an object: (section, class that takes them)."""


def method_kind(settings: Sections) -> MethodKind:
    """Return the settings' method with what it needs besides its function."""
    return kind_of(resolve("method.name", settings.method.name, _load("atoll.methods.named_methods:METHODS")))


def method_needs(settings: Sections, name: str) -> bool:
    """Return whether the method asks for an object of this name, such as ``clustering`` or ``network``."""
    return asks_for(method_kind(settings).make, name)


def uses_clusters(settings: Sections) -> bool:
    """Return whether the method asks for a clustering, or there are probes, which may."""
    return bool(settings.run.probes) or settings.run.heterogeneity or method_needs(settings, "clustering")


def clustering_needs(settings: Sections, *names: str) -> bool:
    """Return whether the clustering asks for one of these objects, such as ``problem``."""
    rules = _load("atoll.clustering.named_clusterings:CLUSTERINGS")
    rule = resolve("clustering.method", settings.clustering.method, rules)
    return any(asks_for(rule, name) for name in names)


def uses_network(settings: Sections) -> bool:
    """Return whether the method, or its clustering, asks for a network."""
    asks = method_needs(settings, "clustering") and clustering_needs(settings, "network", "problem")
    return asks or method_needs(settings, "network")


def chosen(table: Table) -> dict[NamedChoice, Function]:
    """Return the functions that a table of settings names; a tuple where it names a list."""
    found: dict[NamedChoice, Any] = {}
    for choice in CHOICES:
        section = table.get(choice.section, {})
        name = section.get(choice.key, choice.default) if isinstance(section, Mapping) else choice.default
        if isinstance(name, str) and choice.default is not None:  # anything else is refused later
            found[choice] = choice.resolve(name)
        elif choice.default is None and isinstance(name, list | tuple) and all(isinstance(each, str) for each in name):
            found[choice] = tuple(map(choice.resolve, name))
    return found


def taken(functions: Mapping[NamedChoice, Function]) -> dict[str, dict[str, list[Parameter]]]:
    """Return the settings that functions take, by section and key; several functions may take the same."""
    found: dict[str, dict[str, list[Parameter]]] = {choice.section: {} for choice in CHOICES}
    for choice, function in functions.items():
        for parameter in chain.from_iterable(settings_of(part, choice.given) for part in choice.parts(function)):
            found[choice.section].setdefault(parameter.name, []).append(parameter)
    for asked in SETTINGS_OF:
        if any(asks_for(part, asked) for choice, function in functions.items() for part in choice.parts(function)):
            for section, provider in SETTINGS_OF[asked]:
                for parameter in settings_of(_load(provider), frozenset()):
                    found[section].setdefault(parameter.name, [parameter])
    return found


@cache
def every_parameter(section: str) -> dict[str, list[tuple[NamedChoice, str, Parameter]]]:
    """Return a section's settings that built-in functions take, by key, with the choice and name of the function."""
    found: dict[str, list[tuple[NamedChoice, str, Parameter]]] = {}
    for choice in CHOICES:
        # The parameters of the others are not known without importing PyTorch.
        known = {name: each for name, each in choice.functions.items() if not getattr(each, "is_lazy", False)}
        for name, function in known.items():
            for key, parameters in taken({choice: function})[section].items():
                found.setdefault(key, []).extend((choice, name, each) for each in parameters)
    return found


@cache
def takers(section: str) -> dict[str, tuple[str, ...]]:
    """Return which built-in functions take each setting of a section, as ``section.key = 'name'``."""
    rows = every_parameter(section).items()
    return {key: tuple(dict.fromkeys(f"{choice.setting} = {name!r}" for choice, name, _ in each)) for key, each in rows}


def choices_that_take(section: str, key: str) -> list[NamedChoice]:
    """Return the choices among whose built-in functions take this setting; all of the section if none do."""
    named = {who.partition(" = ")[0] for who in takers(section).get(key, ())}
    return [choice for choice in CHOICES if (choice.setting in named if named else choice.section == section)]


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
