"""Marks the parameters of a test that only the slow suite runs."""

import pytest


def slow_but(fast, values):
    """Returns the parameters `values`, all of which are marked slow except those in `fast`."""
    return [value if value in fast else _slow(value) for value in values]


def _slow(value):
    each = value if isinstance(value, tuple) else (value,)
    return pytest.param(*each, marks=pytest.mark.slow)
