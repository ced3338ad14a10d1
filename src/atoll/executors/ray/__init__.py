"""Cohorts trained on a Ray cluster."""
