"""Data: sets, partitions, and the population of clients that hold them."""
