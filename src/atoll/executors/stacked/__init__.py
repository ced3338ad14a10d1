"""Many clients trained in one batch."""
