"""Evaluation: scores of models and constants of losses."""
