"""A fleet of Flower nodes."""
