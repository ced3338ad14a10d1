"""Trackers: log a run's rows to TensorBoard, MLflow or Weights & Biases, as plain code around its generator."""

from atoll.trackers.tracker import Opened, Tracked, hyperparameters, numbers_of
from atoll.trackers.tracking import TRACKERS, require_trackers, tracked

__all__ = ["TRACKERS", "Opened", "Tracked", "hyperparameters", "numbers_of", "require_trackers", "tracked"]
