"""Local training: models, batches, and what a client does with the model it was sent."""
