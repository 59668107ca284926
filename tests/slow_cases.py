"""Marks the parameters of a test that only the slow or the exhaustive suite runs."""

import pytest


def slow_but(fast, values):
    """Returns the parameters `values`, all of which are marked slow except those in `fast`."""
    return [value if value in fast else _marked(value, pytest.mark.slow) for value in values]


def exhaustive_but(slow, values):
    """Returns `values` marked slow if they or their first elements are in `slow`, or exhaustive."""
    marks = {True: pytest.mark.slow, False: pytest.mark.exhaustive}
    return [_marked(value, marks[_elements(value)[0] in slow or value in slow]) for value in values]


def _elements(value):
    return value if isinstance(value, tuple) else (value,)


def _marked(value, mark):
    return pytest.param(*_elements(value), marks=mark)
