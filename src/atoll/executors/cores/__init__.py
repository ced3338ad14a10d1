"""Cohorts trained by worker processes, one a core."""
