"""Data sources, one file for each data set or kind of file: functions that return a `Dataset`."""
