"""From a config's text to an experiment: names, keys and their values, federation, method, task."""
