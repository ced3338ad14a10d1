"""Tables, and their formats."""
