"""The engine: the state of a run, and the only event loop."""
