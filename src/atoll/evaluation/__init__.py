"""Evaluation: scores of models, constants of losses, and the bounds made of them."""
