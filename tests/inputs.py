"""A helper for tests of invalid input."""

import pytest

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import check_settings


def checked(section, function):
    """A part as a run calls it: what its settings accept is checked before."""

    def call(*args, **settings):
        check_settings(section, function, settings)
        return function(*args, **settings)

    return call


def complaint(function, *args, **settings) -> str:
    """Returns the message, of one line, of the BadInput that a call must raise."""
    with pytest.raises(BadInput) as caught:
        function(*args, **settings)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable()
    return message
