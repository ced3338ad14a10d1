"""Executors: where cohorts are trained."""

from atoll.executors.base import Executor
from atoll.executors.serial import Serial

__all__ = ["Executor", "Serial"]
