"""Differential privacy: what is clipped, where noise goes, what a schedule costs, and the ledger of what was spent."""
