"""Schedules: who trains when, and how models are merged, as a table known before training.

Durations never depend on the weights, so the whole table is computed first, in NumPy; the engine only reads it.
"""
