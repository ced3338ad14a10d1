"""Executors: where cohorts are trained."""
