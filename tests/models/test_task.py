"""Checks what a task reports about the layers of its model."""

import jax
import jax.numpy as jnp
import pytest
from inputs import complaint

from fedjax_lab.models import char_lstm, nets, vit
from fedjax_lab.models.task import has_convolutions, make_task


@pytest.mark.parametrize("net, convolutional", [(nets.mlp, False), (nets.digit_cnn, True)])
def test_convolutions_are_detected(net, convolutional):
    assert has_convolutions(make_task(net(3), (28, 28, 3), 3)) is convolutional


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "shape", "layer"),
    [
        (vit.vit(3, width=8, depth=2, heads=2), (8, 8, 3), "blocks/mlp_1"),
        (char_lstm.CharLSTM(3, width=4), (5,), "OptimizedLSTMCell_0/hi"),
    ],
)
def test_apply_at_rejects_a_layer_inside_a_loop(net, shape, layer):
    task = make_task(net, shape, 3)
    assert layer in task.layers
    weights, x = task.init(jax.random.key(0)), jnp.zeros((2, *shape))
    message = complaint(task.apply_at, layer, weights, x)
    assert f"layer {layer!r} is inside a loop of the model" in message
    assert task.apply_at("head", weights, x).features.shape[0] == 2
