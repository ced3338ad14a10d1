"""Federated learning methods, their shared parts, and client selection."""
