"""Differential privacy: clipping, noise, the privacy cost of a schedule, and the ledger of what was spent."""
