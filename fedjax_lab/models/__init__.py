"""Models: Flax modules, their layers, and their conversion to pure functions."""
