"""Data sources, one short module each: a function of settings that returns a `Dataset`."""
