"""Executors: where cohorts are trained."""

from atoll.executors.base import Executor, Trains
from atoll.executors.serial import Serial

__all__ = ["Executor", "Serial", "Trains"]
