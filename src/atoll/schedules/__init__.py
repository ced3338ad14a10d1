"""Schedules: who trains when, and how models are merged, as a table known before training.

How long things take never depends on the weights, so the whole table is computed first, in NumPy; the engine
only consumes its rows.
"""
