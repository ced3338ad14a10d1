"""A shared link, by example."""

import numpy as np

from atoll.network.sharing import fair_rates


def test_a_slow_sender_leaves_the_others_more() -> None:
    assert fair_rates(np.array([1.0, 5.0, 9.0]), np.ones((1, 3), bool), np.array([9.0])).tolist() == [1, 4, 4]
