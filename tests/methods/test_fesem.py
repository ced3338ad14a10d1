"""FeSEM (Xie et al. 2020) against a loop by hand of its two steps."""

from itertools import pairwise

import numpy as np
import pytest

from atoll import fesem
from tests.by_hand import FIRST, POPULATION, best_means, groups_of, run, starts, trained
from tests.methods.twins import RULE
from tests.tiers import thinned


@pytest.mark.parametrize("clusters", thinned([1, 2, 3], 1))
def test_it_is_the_loop_by_hand(clusters: int) -> None:
    method = fesem(POPULATION, RULE, 8, clusters, seed=1)  # from whose starts k-means finds the best of all groupings
    labels, centres, found = np.zeros(8, np.int64), [FIRST] * clusters, run(method)
    for event, state in zip(method.schedule.events, found, strict=True):
        models = [trained(event, k, centres[labels[k]]) for k in range(8)]
        assert state.labels is not None
        if event.index:
            labels = np.array([np.argmin([((w - c) ** 2).sum() for c in centres]) for w in models])
        else:
            assert groups_of(state.labels) == best_means(np.stack(models), clusters)
            labels = state.labels
        assert np.array_equal(state.labels, labels)
        for k in set(labels.tolist()):
            centres[k] = np.mean([models[i] for i in np.flatnonzero(labels == k)], axis=0)
        np.testing.assert_allclose(starts(state), centres, rtol=0, atol=1e-10)


def test_a_centre_that_nobody_is_near_stays() -> None:
    stayed = 0
    for before, after in pairwise(run(fesem(POPULATION, RULE, 4, 6))):
        assert after.labels is not None
        for centre in set(range(6)) - set(after.labels.tolist()):
            assert all(after.starts[centre][name].equal(t) for name, t in before.starts[centre].items())
            stayed += 1
    assert stayed
