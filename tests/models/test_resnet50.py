"""Checks the parts of ResNet-50 against naive NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import convolve, relu
from toys import normal, random_weights

from fedjax_lab.models import resnet
from fedjax_lab.models.kernels import CPU
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Weights

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def bottleneck_by_hand(weights, x, stride):
    """A bottleneck in evaluation mode. A fourth convolution belongs to the shortcut."""
    p, stats = weights.params, weights.stats

    def conv_norm(x, i, stride=1):
        norm, s = p[f"BatchNorm_{i}"], stats[f"BatchNorm_{i}"]
        y = convolve(x, p[f"Conv_{i}"]["kernel"], stride)
        return (y - s["mean"]) / np.sqrt(s["var"] + 1e-5) * norm["scale"] + norm["bias"]

    y = relu(conv_norm(x, 0))
    y = relu(conv_norm(y, 1, stride))
    y = conv_norm(y, 2)
    return relu(y + (conv_norm(x, 3, stride) if "Conv_3" in p else x))


@pytest.mark.parametrize(("stride", "channels", "convolutions"), [(1, 8, 3), (1, 3, 4), (2, 3, 4)])
def test_a_bottleneck_matches_numpy(stride, channels, convolutions):
    """One side is even, one odd: at stride 2, "SAME" would pad the even one at its end only."""
    block, x = resnet.Bottleneck(2, stride, CPU), normal(1, 2, 6, 5, channels)
    shapes = jax.eval_shape(lambda: block.init(KEY, x, False, None))
    weights = random_weights(Weights(shapes["params"], shapes["batch_stats"]))
    assert len(weights.params) == 2 * convolutions
    variables = {"params": weights.params, "batch_stats": weights.stats}
    y = block.apply(variables, x, False, None)
    assert y.shape == (2, -(-6 // stride), -(-5 // stride), 8)
    close(y, bottleneck_by_hand(weights, np.asarray(x), stride), atol=1e-3)


def small_resnet():
    net = resnet.ResNet(3, resnet.cifar_stem, resnet.Bottleneck, (1, 1), width=2)
    return make_task(net, (6, 6, 1), 3)


@pytest.mark.slow
def test_a_resnet_matches_numpy():
    task = small_resnet()
    weights, x = random_weights(jax.eval_shape(task.init, KEY)), normal(1, 2, 6, 6, 1)
    p, s = weights.params, weights.stats["BatchNorm_0"]
    y = convolve(np.asarray(x), p["Conv_0"]["kernel"]) - s["mean"]
    y = y / np.sqrt(s["var"] + 1e-5) * p["BatchNorm_0"]["scale"] + p["BatchNorm_0"]["bias"]
    y = relu(y)
    for name, stride in (("Bottleneck_0", 1), ("Bottleneck_1", 2)):
        y = bottleneck_by_hand(Weights(p[name], weights.stats[name]), y, stride)
    output = task.apply(weights, x)
    close(output.features, y.mean((1, 2)), atol=1e-3)
    close(output.logits, y.mean((1, 2)) @ p["head"]["kernel"] + p["head"]["bias"], atol=1e-2)


def test_padded_rows_do_not_affect_a_resnet():
    task = small_resnet()
    weights = random_weights(jax.eval_shape(task.init, KEY))
    x, mask = normal(1, 3, 6, 6, 1), jnp.array([1.0, 0, 1])
    apply = jax.jit(task.apply)
    one, other = (apply(weights, a, KEY, mask) for a in (x, x.at[1].set(9.0)))
    jax.tree.map(np.testing.assert_array_equal, one.stats, other.stats)
    np.testing.assert_array_equal(one.logits[::2], other.logits[::2])
    for name in task.batch_norms:
        new, old = one.stats, weights.stats
        for part in name.split("/"):
            new, old = new[part], old[part]
        assert not np.allclose(new["mean"], old["mean"]), name


def test_initial_weights_of_a_resnet():
    """Convolutions are normal with variance 2 / fan-out, not truncated; the head is uniform."""
    net = resnet.ResNet(10, resnet.cifar_stem, resnet.Bottleneck, (1,), width=32)
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
