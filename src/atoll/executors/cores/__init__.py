"""Cohorts trained by worker processes, one per core."""
