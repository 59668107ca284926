"""Simulates a process that is killed before one of its operations."""

import itertools


class Killed(BaseException):
    """Raised instead of the operation."""


def at(step, then=lambda: None):
    """Returns `before`, which wraps functions: the `step`-th call of all of them raises Killed.

    then: called before, for what a killed process no longer does.
    """
    calls = itertools.count(1)

    def before(function):
        def counted(*args, **settings):
            if next(calls) == step:
                then()
                raise Killed
            return function(*args, **settings)

        return counted

    return before
