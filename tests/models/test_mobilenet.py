"""Tests MobileNetV2 against NumPy."""

from functools import partial

import jax
import numpy as np
import pytest
from naive_layers import by_hand, random_variables
from toys import normal, random_weights

from fedjax_lab.models import mobilenet
from fedjax_lab.models.kernels import CPU
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("expansion", "stride", "channels"), [(1, 1, 3), (2, 1, 3), (2, 1, 4), (2, 2, 3)]
)
def test_inverted_residual_against_numpy(expansion, stride, channels):
    block = mobilenet.InvertedResidual(channels, expansion, stride, CPU)
    x = normal(1, 2, 6, 5, 3)
    variables = random_variables(block, x, False, None)
    assert sum("Conv" in name for name in variables["params"]) == (2 if expansion == 1 else 3)
    z = np.asarray(x)
    first = 0
    if expansion > 1:
        z, first = np.clip(by_hand(variables, z, 0), 0, 6), 1
    z = np.clip(by_hand(variables, z, first, stride, depthwise=True), 0, 6)
    z = by_hand(variables, z, first + 1)
    if (stride, channels) == (1, 3):
        z = z + x
    close(block.apply(variables, x, False, None), z, atol=1e-3)


def test_first_weights_of_mobilenet_have_the_intended_scale():
    net = mobilenet.MobileNetV2(10, 32, ((1, 16, 1, 1),), 320)
    params = jax.jit(make_task(net, (8, 8, 3), 10).init)(KEY).params
    depthwise = params["InvertedResidual_0"]["Conv_0"]["kernel"]
    assert depthwise.shape == (3, 3, 1, 32)
    assert abs(depthwise.std() / np.sqrt(2 / (9 * 32)) - 1) < 0.15
    assert abs(params["head"]["kernel"].std() / 0.01 - 1) < 0.1
    assert not params["head"]["bias"].any()


def test_mobilenet_drops_a_fifth_of_its_features():
    assert mobilenet.mobilenet_v2(10).dropout == 0.2
    net = mobilenet.MobileNetV2(3, 4, (), 500, dropout=0.2)
    task = make_task(net, (4, 4, 1), 3)
    weights = random_weights(jax.eval_shape(task.init, KEY))
    norm = weights.params["BatchNorm_1"] | {"bias": np.full(500, 3.0)}
    weights = weights._replace(params=weights.params | {"BatchNorm_1": norm})
    apply, x = jax.jit(lambda key: task.apply(weights, x, key).features), normal(1, 8, 4, 4, 1)
    with_dropout, other = np.asarray(apply(KEY)), np.asarray(apply(jax.random.key(1)))
    alive = (with_dropout > 0) | (other > 0)  # nonzero in a pass; 1 in 25 is dropped in both
    assert 0.1 < (with_dropout[alive] == 0).mean() < 0.22
