"""Sweeps: every combination of an experiment's settings, over seeds, or a search with Optuna."""
