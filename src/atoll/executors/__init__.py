"""Executors: where cohorts are trained."""

from atoll.executors.base import Average, Cohort, Executor, Trains, combine_outcomes
from atoll.executors.serial import Serial
from atoll.executors.weighted import Weighted, why_not_weighted

__all__ = ["Average", "Cohort", "Executor", "Serial", "Trains", "Weighted", "combine_outcomes", "why_not_weighted"]
