"""Virtual time, by example."""

import numpy as np

from atoll.schedules.clock import Pace
from atoll.schedules.timeline import next_time_of_day


def test_half_the_pace_from_a_time_on_takes_twice_as_long() -> None:
    half = [(np.array([10.0]), np.array([0.5]))]
    assert Pace(half, half).times(np.array([0]), 9.0) == ([1.0], [1.0])
    assert Pace(half, half).times(np.array([0]), 10.0) == ([2.0], [2.0])


def test_the_next_time_of_day_may_be_tomorrow() -> None:
    assert (next_time_of_day(0.0, 6.0), next_time_of_day(7 * 3600.0, 6.0)) == (21600.0, 108000.0)
