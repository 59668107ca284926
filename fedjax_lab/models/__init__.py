"""The models: Flax modules, their layers, and what makes two pure functions of a module."""
