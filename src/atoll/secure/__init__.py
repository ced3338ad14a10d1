"""Secure aggregation: sums of updates that hide what each node adds, by masks that cancel (experimental)."""
