"""Dealing samples out: partitions, and skews of what clients hold."""
