"""Runs and their folders: training, evaluating, saving and resuming; and the cells of a sweep."""
