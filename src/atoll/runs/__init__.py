"""Runs: an experiment run into a folder, checkpointed, resumed and verified."""
