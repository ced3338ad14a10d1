"""Reports on runs: reading their folders, tables, and figures of curves, data, clusters and schedules."""
