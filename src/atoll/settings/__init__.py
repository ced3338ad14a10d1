"""Settings: the experiment file, its sections, and how each is checked."""
