"""Runs: an experiment carried out into a folder, checkpointed, resumed and verified."""
