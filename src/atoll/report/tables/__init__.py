"""Tables and their formats."""
