"""What a task says of its model."""

import pytest

from fedjax_lab.models import nets
from fedjax_lab.models.task import has_convolutions, make_task


@pytest.mark.parametrize("net, convolutional", [(nets.mlp, False), (nets.digit_cnn, True)])
def test_convolutions_are_noticed(net, convolutional):
    assert has_convolutions(make_task(net(3), (28, 28, 3), 3)) is convolutional
