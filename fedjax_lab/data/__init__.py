"""Data sources: each is a function of its settings that returns a `Dataset`."""
