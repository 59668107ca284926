"""Checks the blocks of ResNets and of MobileNetV2 against naive NumPy, and their first weights."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from naive_layers import (
    BOTTLENECK,
    KEY,
    by_hand,
    close,
    dense,
    one_client,
    random_variables,
    relu,
    small,
)
from toys import normal, random_weights

from fedjax_lab.models import mobilenet, resnet
from fedjax_lab.models.kernels import CPU
from fedjax_lab.models.task import make_task


def applied(block, x):
    """The random variables of a block, and its output in evaluation mode."""
    variables = random_variables(block, x, False, None)
    return variables, jax.jit(lambda x: block.apply(variables, x, False, None))(x)


def convolutions(variables):
    return sum("Conv" in name for name in variables["params"])


@pytest.mark.parametrize(("stride", "channels"), [(1, 3), (1, 2), (2, 3)])
def test_a_basic_block_matches_numpy(stride, channels):
    x = normal(1, 2, 6, 5, channels)
    variables, y = applied(resnet.BasicBlock(3, stride, CPU), x)
    x = np.asarray(x)
    inner = by_hand(variables, relu(by_hand(variables, x, 0, stride)), 1)
    shortcut = x if (stride, channels) == (1, 3) else by_hand(variables, x, 2, stride)
    close(y, relu(inner + shortcut), atol=1e-3)


def bottleneck_by_hand(variables, x, stride):
    """A bottleneck in evaluation mode. A fourth convolution belongs to the shortcut."""
    y = relu(by_hand(variables, x, 0))
    y = relu(by_hand(variables, y, 1, stride))
    shortcut = by_hand(variables, x, 3, stride) if convolutions(variables) == 4 else x
    return relu(by_hand(variables, y, 2) + shortcut)


@pytest.mark.parametrize(("stride", "channels", "count"), [(1, 8, 3), (1, 3, 4), (2, 3, 4)])
def test_a_bottleneck_matches_numpy(stride, channels, count):
    """One side is even, one odd: at stride 2, "SAME" would pad the even one at its end only."""
    x = normal(1, 2, 6, 5, channels)
    variables, y = applied(resnet.Bottleneck(2, stride, CPU), x)
    assert convolutions(variables) == count
    assert y.shape == (2, -(-6 // stride), -(-5 // stride), 8)
    close(y, bottleneck_by_hand(variables, np.asarray(x), stride), atol=1e-3)


@pytest.mark.slow
def test_a_resnet_of_bottlenecks_matches_numpy():
    task, weights, x = small("bottleneck")
    weights, x = one_client(weights, x)
    y = relu(by_hand({"params": weights.params, "batch_stats": weights.stats}, np.asarray(x), 0))
    for name, stride in (("Bottleneck_0", 1), ("Bottleneck_1", 2)):
        block = {"params": weights.params[name], "batch_stats": weights.stats[name]}
        y = bottleneck_by_hand(block, y, stride)
    output = jax.jit(task.apply)(weights, x)
    close(output.features, y.mean((1, 2)), atol=1e-3)
    close(output.logits, dense(y.mean((1, 2)), weights.params["head"]), atol=1e-2)


def test_initial_weights_of_a_resnet():
    """Convolutions are normal with variance 2 / fan-out, not truncated; the head is uniform."""
    net = BOTTLENECK.clone(num_classes=10, stages=(1,), width=32)
    params = jax.jit(make_task(net, (4, 4, 3), 10).init)(KEY).params
    for i, fan_out in enumerate((32, 9 * 32, 128, 128)):
        layer = params["Bottleneck_0"][f"Conv_{i}"]
        assert set(layer) == {"kernel"}
        scaled = np.asarray(layer["kernel"]) / np.sqrt(2 / fan_out)
        assert abs(scaled.std() - 1) < 0.1
        assert np.abs(scaled).max() > 2.5
    bound = 128**-0.5
    assert 0.95 * bound < np.abs(params["head"]["kernel"]).max() <= bound
    assert np.asarray(params["Bottleneck_0"]["BatchNorm_2"]["scale"]).all()


def test_group_norm_matches_numpy():
    x = np.asarray(3 + 2 * normal(1, 2, 3, 4, 6))
    expected = np.empty_like(x)
    for image in range(2):
        for group in (slice(0, 3), slice(3, 6)):
            values = x[image, :, :, group]
            expected[image, :, :, group] = (values - values.mean()) / np.sqrt(values.var() + 1e-5)

    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x):
            return resnet.group_norm(x, True, None)

    y, variables = Norm().init_with_output(KEY, x)
    close(y, expected)
    assert variables["params"]["GroupNorm_0"].keys() == {"scale", "bias"}


def test_the_imagenet_stem_is_a_convolution_relu_and_max_pool():
    x = normal(1, 2, 13, 12, 3)
    y = resnet.imagenet_stem(
        x, 8, lambda x, width, kernel, stride: x[..., :1] + width + kernel, CPU
    )
    padded = np.pad(relu(x[..., :1] + 15), ((0, 0), (1, 1), (1, 1), (0, 0)))
    close(y[:, 2, 3], padded[:, 4:7, 6:9].max((1, 2)))
    assert y.shape == (2, 7, 6, 1)


# MobileNetV2


@pytest.mark.parametrize(
    ("expansion", "stride", "channels"), [(1, 1, 3), (2, 1, 3), (2, 1, 4), (2, 2, 3)]
)
def test_an_inverted_residual_matches_numpy(expansion, stride, channels):
    x = normal(1, 2, 6, 5, 3)
    variables, y = applied(mobilenet.InvertedResidual(channels, expansion, stride, CPU), x)
    assert convolutions(variables) == (2 if expansion == 1 else 3)
    z, first = np.asarray(x), 0
    if expansion > 1:
        z, first = np.clip(by_hand(variables, z, 0), 0, 6), 1
    z = np.clip(by_hand(variables, z, first, stride, depthwise=True), 0, 6)
    z = by_hand(variables, z, first + 1)
    if (stride, channels) == (1, 3):
        z = z + np.asarray(x)
    close(y, z, atol=1e-3)


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
