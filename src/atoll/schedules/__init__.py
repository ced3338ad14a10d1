"""Schedules: who trains when, and how models are merged, as a table known before training.

How long things take never depends on the weights, so the whole table is computed first, in NumPy; the engine
only consumes its rows.
"""

from atoll.schedules.base import FROM_SERVER, Clock, Event, Ids, Mix, Schedule
from atoll.schedules.cycling import DAY_SECONDS, Order, all_together, cohort_size, cycling, next_time_of_day
from atoll.schedules.patterns import Phase, cut_by_empty, hierarchical_schedule

__all__ = [
    "DAY_SECONDS",
    "FROM_SERVER",
    "Clock",
    "Event",
    "Ids",
    "Mix",
    "Order",
    "Phase",
    "Schedule",
    "all_together",
    "cohort_size",
    "cut_by_empty",
    "cycling",
    "hierarchical_schedule",
    "next_time_of_day",
]
