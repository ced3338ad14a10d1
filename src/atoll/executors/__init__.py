"""Executors: where cohorts are trained."""

from atoll.executors.base import Average, Cohort, Executor, Trains, carries_through, combine_outcomes
from atoll.executors.cores import Cores
from atoll.executors.fleet import OnFleet
from atoll.executors.ray_training import Ray
from atoll.executors.serial import Serial
from atoll.executors.stack_fit import why_not_stacked
from atoll.executors.stacked import Stacked
from atoll.executors.weighted import Weighted, why_not_weighted

__all__ = [
    "Average",
    "Cohort",
    "Cores",
    "Executor",
    "OnFleet",
    "Ray",
    "Serial",
    "Stacked",
    "Trains",
    "Weighted",
    "carries_through",
    "combine_outcomes",
    "why_not_stacked",
    "why_not_weighted",
]
