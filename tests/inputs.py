"""A helper for tests of invalid input."""

import pytest

from fedjax_lab.errors import BadInput


def complaint(function, *args, **settings) -> str:
    """Returns the message, of one line, of the BadInput that a call must raise."""
    with pytest.raises(BadInput) as caught:
        function(*args, **settings)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable()
    return message
