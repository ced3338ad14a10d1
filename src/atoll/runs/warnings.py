"""Warnings about an experiment before it runs."""

from collections.abc import Iterator

import numpy as np

from atoll.experiment.experiment import Experiment
from atoll.faults.attacks import STRENGTHS
from atoll.methods.papers.hierarchical import cut_by_empty
from atoll.network.completion import completion_of, event_seconds
from atoll.runs.client_probes import MEASURED
from atoll.runs.rows import first_of
from atoll.settings.choices import clustering_needs, method_kind, method_needs, uses_network

FREQUENCIES_AGREE = 1.1  # ratio up to which shares of merges count as equal

SEEDED = (
    "privacy.trust: noise is drawn from the seed, for reproducibility; it hides nothing from anyone who knows the seed"
)


def warnings_of(experiment: Experiment) -> list[str]:
    """Return warnings about an experiment's clustering, method, attack and privacy."""
    kinds = _left_out, _in_one, _too_slow, _contradicted_frequencies, _about_noise, _untested, _cut_off, _idle_strength
    return [warning for kind in kinds for warning in kind(experiment)]


def _left_out(experiment: Experiment) -> Iterator[str]:
    if len(left_out := experiment.clustering.left_out):
        yield f"clients that belong to no cluster and never train ({len(left_out)}): {first_of(left_out)}"


def _in_one(experiment: Experiment) -> Iterator[str]:
    sizes = experiment.clustering.sizes
    if len(sizes) > 1 == np.count_nonzero(sizes) and method_needs(experiment.settings, "phases"):
        keeps_limits = clustering_needs(experiment.settings, "problem")
        hint = "lower clustering.time_limit" if keeps_limits else "choose another clustering.method"
        yield f"all clients are in one of {len(sizes)} clusters, so patterns train alike; {hint}"


def _too_slow(experiment: Experiment) -> Iterator[str]:
    if experiment.settings.clustering.get("time_limit") is None or not uses_network(experiment.settings):
        return
    completion = completion_of(experiment.conditions.networks[0], experiment.clustering.labels)
    if len(over := np.flatnonzero(completion > experiment.plan.problem.limits)):
        limits = ", ".join(f"{limit:g}" for limit in np.unique(experiment.plan.problem.limits[over]))
        yield f"aggregators whose completion is above clustering.time_limit = {limits}: {first_of(over)}"


def _about_noise(experiment: Experiment) -> Iterator[str]:
    if private := experiment.planned.private:
        yield from filter(None, ("" if private.is_fleet else SEEDED, private.ends_early))


def _untested(experiment: Experiment) -> Iterator[str]:
    untested, probes = method_kind(experiment.settings).untested, experiment.settings.run.probes
    able = tuple(f"client_{kind}" for kind in MEASURED[experiment.clients.dealt.data.loss])
    if untested and not any(probe.endswith(able) for probe in probes):
        column = "test_accuracy" if able[0] == "client_accuracy" else "test_loss"
        yield f"{column} is that of a server's model without {untested}; set run.probes = ['{able[0]}']"


def _idle_strength(experiment: Experiment) -> Iterator[str]:
    wanted = experiment.settings.faults
    if wanted.attackers and wanted.attack_strength is not None and wanted.attack not in STRENGTHS:
        yield f"faults.attack_strength = {wanted.attack_strength:g}: faults.attack = {wanted.attack!r} has no strength"


def _cut_off(experiment: Experiment) -> Iterator[str]:
    """Warn of aggregators cut off by others without clients."""
    pattern = experiment.settings.method.get("pattern")
    if not method_needs(experiment.settings, "phases") or pattern not in ("decsyn", "decasy"):
        return
    cut = [phase.round for phase in experiment.plan.phases if cut_by_empty(phase.network, phase.clustering)]
    if cut:
        yield (
            f"from round {cut[0]} on, aggregators without clients cut the others into parts that never exchange "
            "models; another clustering, or a topology with more links, would connect them"
        )


def _contradicted_frequencies(experiment: Experiment) -> Iterator[str]:
    """Warn if the bound uses other frequencies than the virtual clock."""
    wanted, pattern = experiment.settings, str(experiment.settings.method.get("pattern"))
    if not wanted.clustering.get("frequencies") or not uses_network(experiment.settings) or not pattern.endswith("asy"):
        return
    labels, network = experiment.clustering.labels, experiment.conditions.networks[0]
    seconds = event_seconds(network, labels, pattern, experiment.plan.problem.intra_rounds)
    own = np.flatnonzero(seconds)
    given = experiment.plan.problem.frequencies
    counted, kept = (np.ones(len(own)) if given is None else given[own]), 1 / seconds[own]
    counted, kept = counted / counted.sum(), kept / kept.sum()
    worst = int(np.abs(np.log(counted / kept)).argmax())
    if max(counted[worst] / kept[worst], kept[worst] / counted[worst]) <= FREQUENCIES_AGREE:
        return
    yield (
        f"clustering.frequencies: the bound has aggregator {own[worst]} make {counted[worst]:.1%} of all merges, the "
        f"virtual clock {kept[worst]:.1%}; network.frequencies sets both"
    )
