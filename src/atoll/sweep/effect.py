"""Checks before the first run that every setting swept over changes something; otherwise equal runs are compared."""

from collections.abc import Iterable, Mapping, Sequence

from atoll.runs.fingerprint import digest, free_settings
from atoll.settings.choices import method_needs
from atoll.settings.validation import Settings
from atoll.support.errors import InputError
from atoll.sweep.goal import Goal
from atoll.sweep.sweep_plan import Member

_ENDS = "run.stop_at"  # a run may resume with another one, but may end elsewhere


def require_effect(names: Iterable[str], members: Sequence[Member], goal: Goal) -> list[str]:
    """Reject a setting that changes no run of a sweep; return a warning for each that leaves some runs unchanged."""
    warnings = []
    for name in names:
        idle = {run: _is_idle(name, own) for run, own in _variants(name, members).items()}
        runs = [run for run, is_idle in idle.items() if is_idle]
        if not runs or name == _ENDS or (goal.metric == "wall_time" and name in free_settings()):
            continue
        if all(idle.values()):
            raise InputError(f"--over {name}: {_why(name, members[0].settings)}")
        warnings.append(f"--over {name}: changes nothing in {'; '.join(runs)}, so those runs will be identical")
    return warnings


def _variants(name: str, members: Sequence[Member]) -> Mapping[str, list[list[Settings]]]:
    """Return, for each of the experiment's runs, groups of settings that differ only in this one."""
    groups: dict[str, dict[str, list[Settings]]] = {}
    for member in members:
        others = str([(key, value) for key, value in member.values.items() if key != name])
        groups.setdefault(member.run, {}).setdefault(others, []).append(member.settings)
    return {run: [group for group in own.values() if len(group) > 1] for run, own in groups.items()}


def _is_idle(name: str, groups: Sequence[Sequence[Settings]]) -> bool:
    """Return whether no group has two runs that differ; False if no group has two runs."""
    if not groups:
        return False
    if name.startswith("clustering."):
        return not any(each.run.probes or method_needs(each, "clustering") for group in groups for each in group)
    # Executors may round differently.
    return all(len({(digest(settings), settings.run.executor) for settings in group}) == 1 for group in groups)


def _why(name: str, settings: Settings) -> str:
    if name in free_settings():
        return "changes no result of a run, only its wall time (to compare that: --metric wall_time --target ...)"
    if name.startswith("clustering."):
        return f"changes nothing, since method.name = {settings.method.name!r} uses no clustering"
    return "changes nothing in any run"
