"""Data sources, one file for each data set or kind of file: functions that return a `Dataset`.

They raise BadInput if a setting is invalid, if a file is missing, damaged or does not hold what its
name says, or if the examples do not fit in memory.
"""
