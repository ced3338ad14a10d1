"""Reports on runs: reading their folders, curves, tables and pictures of data, clusters and schedules."""
