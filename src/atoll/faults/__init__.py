"""Faults: clients that drop out, and clients that attack."""
