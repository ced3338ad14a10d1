"""Evaluation: scores of models, constants of losses, and the bounds that use them."""
