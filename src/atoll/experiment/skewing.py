"""From settings to clients with skewed inputs (`data.skew`)."""

from dataclasses import replace
from functools import partial

import numpy as np

from atoll.data.dataset import Dataset
from atoll.data.dealing.feature_skew import SKEWS, Inputs, changed, level_of_rows, with_colours
from atoll.data.dealing.ranges import Parts
from atoll.settings.plugins import call, resolve
from atoll.settings.validation import Settings
from atoll.support.arrays import Ids
from atoll.support.errors import InputError
from atoll.support.seeds import generator

_GROUPED = ("rotated", "planted")  # partitions by groups already in the data


def require_skew(settings: Settings, data: Dataset) -> Dataset:
    """Return a data set that can be skewed as the settings say, with the channels that clients will have."""
    wanted = settings.data
    if wanted.skew == "none":
        if wanted.skew_levels is not None:
            raise InputError(f"data.skew_levels = {wanted.skew_levels}: needs a data.skew, which is 'none'")
        return data
    if wanted.skew == "noise" and wanted.standardise == "none" and data.scale != 1:
        told = "data.standardise = 'none': cannot be used with data.skew = 'noise', whose inputs are between 0 and 1"
        raise InputError(f"{told}; {data.name}'s go up to {1 / data.scale:g}")
    copied = len(data.turns) > 1 or wanted.rotations or wanted.swaps
    if data.groups is not None or copied or wanted.partition in _GROUPED:
        raise InputError(
            f"data.skew = {wanted.skew!r}: its levels are planted groups, but {data.name} as partitioned here already "
            "has groups; leave out data.skew, or data.rotations, data.group or the partition by groups"
        )
    return with_colours(data) if wanted.skew == "colour" else data


def skew_clients(settings: Settings, data: Dataset, parts: Parts, test_parts: Parts | None = None) -> Dataset:
    """Return the pool with the skew of the clients that hold these parts, and their levels as planted groups.

    Test samples get their owners' levels, or those of `test_parts`; others are spread over all levels.
    """
    wanted = settings.data
    levels = levels_of(settings)
    own = np.arange(len(parts)) * levels // len(parts)
    groups = level_of_rows(parts, own, np.zeros(len(data), np.int64))
    spread = generator(settings.seed, "skew of tests").permutation(len(data.test_inputs)) % levels
    if data.owners is not None and data.test_owners is not None and wanted.partition == "natural":
        spread = _of_owners(data.owners, data.test_owners, parts, own, spread)
    elif test_parts is not None:
        spread = level_of_rows(test_parts, np.arange(len(test_parts)) * levels // len(test_parts), spread)
    change = partial(_change, settings, data, levels)
    inputs = changed(data.inputs, groups, partial(change, "skew"))
    tests = changed(data.test_inputs, spread, partial(change, "skew of test"))
    return replace(data, inputs=inputs, test_inputs=tests, groups=groups, test_groups=spread)


def levels_of(settings: Settings) -> int:
    """Return the number of levels: one per client unless the settings say otherwise."""
    clients = settings.data.clients + settings.data.held_out_clients
    wanted = settings.data.skew_levels or clients
    if wanted > clients:
        raise InputError(f"data.skew_levels = {wanted}: must be at most the number of clients, {clients}")
    return wanted


def _change(settings: Settings, data: Dataset, levels: int, purpose: str, rows: Inputs, level: int) -> Inputs:
    name = settings.data.skew
    given = {
        **dict(settings.data),
        "inputs": rows,
        "level": level,
        "levels": levels,
        "scale": data.scale,
        "rng": generator(settings.seed, purpose, level),
    }
    made = np.asarray(call("data.skew", resolve("data.skew", name, SKEWS), given, settings.data.model_extra))
    if made.shape != rows.shape or made.dtype.kind not in "biuf":
        told = f"data.skew = {name!r}: must return numbers of the inputs' shape {list(rows.shape)},"
        raise InputError(f"{told} it returned {made.dtype} of {list(made.shape)}")
    return made


def _of_owners(owners: Ids, test_owners: Ids, parts: Parts, own: Ids, otherwise: Ids) -> Ids:
    """Return the level of each test sample: its owner's, if that is one of the clients."""
    level_of = np.full(1 + max(int(owners.max()), int(test_owners.max())), -1)
    level_of[[owners[part[0]] for part in parts]] = own
    return np.where(level_of[test_owners] < 0, otherwise, level_of[test_owners])
