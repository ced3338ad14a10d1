"""Aggregation: how the results of one cluster's cohort become the cluster's next model."""
