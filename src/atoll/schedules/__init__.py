"""Schedules: who trains when, and how models are merged, as a table known before training.

How long things take never depends on the weights, so the whole table is computed first, in NumPy; the engine
only consumes its rows.
"""

from atoll.schedules.base import FROM_SERVER, Clock, Event, Ids, Mix, Schedule
from atoll.schedules.cycling import DAY_SECONDS, Order, all_together, cohort_size, cycling, next_time_of_day

__all__ = [
    "DAY_SECONDS",
    "FROM_SERVER",
    "Clock",
    "Event",
    "Ids",
    "Mix",
    "Order",
    "Schedule",
    "all_together",
    "cohort_size",
    "cycling",
    "next_time_of_day",
]
