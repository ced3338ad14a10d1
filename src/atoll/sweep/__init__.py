"""Sweeps: an experiment with every combination of values, over seeds, or searched with Optuna."""

from atoll.sweep.axes import Axis, Interval, parse_axes, parse_space
from atoll.sweep.jobs import run_jobs
from atoll.sweep.sweep_plan import Member, check_members, claimed, make_members, require_folder
from atoll.sweep.sweep_table import Line, sum_up
from atoll.sweep.sweep_worker import Job, News
from atoll.sweep.trials import Trial
from atoll.sweep.tuning import Search

__all__ = [
    "Axis",
    "Estimate",
    "Interval",
    "Job",
    "Line",
    "Member",
    "News",
    "Search",
    "Trial",
    "check_members",
    "claimed",
    "estimate",
    "make_members",
    "parse_axes",
    "parse_space",
    "require_folder",
    "run_jobs",
    "sum_up",
]
