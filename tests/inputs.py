"""What tests of bad input share."""

import pytest

from fedjax_lab.errors import BadInput


def complaint(function, *args, **settings) -> str:
    """The message of the BadInput that a call must raise: one line."""
    with pytest.raises(BadInput) as caught:
        function(*args, **settings)
    message = str(caught.value)
    assert "\n" not in message and message.isprintable()
    return message
