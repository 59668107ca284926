"""Partitions: which client holds which training examples."""
