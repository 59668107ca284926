"""Tests the networks of FedPick's paper: FedBN's digit network and AlexNet with BatchNorm."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import pool_by_hand, relu
from toys import normal, random_weights

from fedjax_lab import registry
from fedjax_lab.errors import BadInput
from fedjax_lab.models import alexnet, kernels, nets
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def dense_inputs(task, weights, shape):
    """Returns the shape of the input of each Dense module for 7 images, by path."""
    shapes = {}

    def record(call, args, kwargs, context):
        if isinstance(context.module, nn.Dense):
            shapes["/".join(context.module.path)] = args[0].shape
        return call(*args, **kwargs)

    with nn.intercept_methods(record):
        x = jax.ShapeDtypeStruct((7, *shape), jnp.float32)
        output = jax.eval_shape(task.apply, weights, x)
    assert output.logits.shape == (7, 10)
    assert output.features.shape == shapes["head"]
    return shapes


CASES = [
    (nets.fedbn_cnn, (32, 32, 3), 18_151_370, {"Dense_0": 8192, "Dense_1": 2048, "head": 512}),
    (nets.fedbn_cnn, (28, 28, 3), 14_219_210, {"Dense_0": 6272, "Dense_1": 2048, "head": 512}),
    (
        alexnet.alexnet_bn,
        (256, 256, 3),
        57_063_498,
        {"Dense_0": 9216, "Dense_1": 4096, "head": 4096},
    ),
]


@pytest.mark.parametrize(("net", "shape", "count", "widths"), CASES)
def test_published_sizes(net, shape, count, widths):
    """FedPick cuts its encoder at the input of a Dense module, which must be the features."""
    task = make_task(net(10), shape, 10)
    weights = jax.eval_shape(task.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == count
    inputs = dense_inputs(task, weights, shape)
    assert inputs == {name: (7, width) for name, width in widths.items()}
    assert task.dense == tuple(widths)


@pytest.mark.parametrize(
    ("net", "shape", "affine", "encoder", "dense"),
    [
        (nets.fedbn_cnn, (32, 32, 3), 5_632, 312_768, "Dense_0"),
        (alexnet.alexnet_bn, (256, 256, 3), 18_688, 57_063_498 - 40_970, "head"),
    ],
)
def test_published_sizes_of_batch_norm_and_encoder(net, shape, affine, encoder, dense):
    """Counts the scales and shifts of BatchNorm, and all parameters before the cut."""
    task = make_task(net(10), shape, 10)
    params = jax.eval_shape(task.init, KEY).params
    size = {name: sum(leaf.size for leaf in layer.values()) for name, layer in params.items()}
    assert sum(size[name] for name in task.batch_norms) == affine
    assert sum(size[name] for name in task.layers[: task.layers.index(dense)]) == encoder


@pytest.mark.parametrize("name", ["fedbn_cnn", "alexnet_bn"])
def test_networks_are_registered_by_name(name):
    net = registry.NAMED["model"][name](10)
    assert net.name == name
    assert net.clone(kernels=kernels.TPU).kernels is kernels.TPU


@pytest.mark.parametrize(
    ("net", "shape"), [(nets.fedbn_cnn, (3, 32, 3)), (alexnet.alexnet_bn, (62, 256, 3))]
)
def test_images_of_unsuitable_shape_are_rejected(net, shape):
    with pytest.raises(BadInput) as error:
        make_task(net(10), shape, 10)
    assert net.__name__ in str(error.value)
    assert "x".join(map(str, shape)) in str(error.value)


def test_the_smallest_images_are_accepted():
    make_task(nets.fedbn_cnn(10), (4, 4, 1), 10)
    make_task(alexnet.alexnet_bn(10), (63, 63, 1), 10)


def normalize(x, weights, i):
    p, s = weights.params[f"BatchNorm_{i}"], weights.stats[f"BatchNorm_{i}"]
    return (x - s["mean"]) / np.sqrt(s["var"] + 1e-5) * p["scale"] + p["bias"]


def convolve(x, layer, stride, pad):
    """Convolves x [B, H, W, C], padded with zeros, one output pixel after the other."""
    size = len(layer["kernel"])
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = range(0, x.shape[1] - size + 1, stride)
    cols = range(0, x.shape[2] - size + 1, stride)
    patches = [[x[:, i : i + size, j : j + size].ravel() for j in cols] for i in rows]
    patches = np.array(patches).reshape(len(rows), len(cols), len(x), -1)
    y = patches @ layer["kernel"].reshape(-1, layer["kernel"].shape[-1])
    return y.transpose(2, 0, 1, 3) + layer["bias"]


def pool(x, size, stride):
    rows = range(0, x.shape[1] - size + 1, stride)
    cols = range(0, x.shape[2] - size + 1, stride)
    best = [[x[:, i : i + size, j : j + size].max((1, 2)) for j in cols] for i in rows]
    return np.array(best).transpose(2, 0, 1, 3)


def classify(z, weights, first):
    """Applies dense layers with ReLU and BatchNorm, numbered from `first`, then the head."""
    for i in (0, 1):
        layer = weights.params[f"Dense_{i}"]
        z = relu(normalize(z @ layer["kernel"] + layer["bias"], weights, first + i))
    head = weights.params["head"]
    return z @ head["kernel"] + head["bias"], z


def check_against(net, shape, by_hand):
    task = make_task(net, shape, 3)
    weights, x = random_weights(jax.eval_shape(task.init, KEY)), normal(1, 2, *shape)
    logits, features = by_hand(weights, np.asarray(x))
    output = jax.jit(task.apply)(weights, x)
    assert np.abs(features).max() > 1
    close(output.features, features, atol=1e-4 * np.abs(features).max())
    close(output.logits, logits, atol=1e-4 * np.abs(logits).max())


def test_fedbn_cnn_against_numpy():
    def by_hand(weights, x):
        for i, pooled in enumerate((True, True, False)):
            x = relu(normalize(convolve(x, weights.params[f"Conv_{i}"], 1, 2), weights, i))
            x = pool(x, 2, 2) if pooled else x
        return classify(x.reshape(len(x), -1), weights, 3)

    net = nets.fedbn_cnn(3).clone(channels=(2, 3, 4), widths=(5, 6))
    check_against(net, (9, 8, 2), by_hand)


@pytest.mark.slow
def test_alexnet_against_numpy():
    """At this height adaptive pooling repeats pixels; the width is the 256 of FedPick."""
    kernels = [(4, 2, True), (1, 2, True), (1, 1, False), (1, 1, False), (1, 1, True)]

    def by_hand(weights, x):
        for i, (stride, pad, pooled) in enumerate(kernels):
            x = relu(normalize(convolve(x, weights.params[f"Conv_{i}"], stride, pad), weights, i))
            x = pool(x, 3, 2) if pooled else x
        assert x.shape == (2, 2, 7, 3)
        return classify(pool_by_hand(x, 6).reshape(2, -1), weights, 5)

    net = alexnet.AlexNet(3, channels=(2, 3, 4, 2, 3), widths=(5, 6))
    shapes = jax.eval_shape(make_task(net, (100, 256, 3), 3).init, KEY).params
    assert [len(shapes[f"Conv_{i}"]["kernel"]) for i in range(5)] == [11, 5, 3, 3, 3]
    check_against(net, (100, 256, 3), by_hand)


def test_padded_rows_have_no_effect_on_the_norms_of_dense_layers():
    net = nets.ConvNet(3, (2,), (True,), (4,), kernel=3, norm=True, dense_norm=True)
    task = make_task(net, (6, 6, 1), 3)
    weights = random_weights(jax.eval_shape(task.init, KEY))
    x, mask = normal(1, 3, 6, 6, 1), jnp.array([1.0, 0, 1])
    apply = jax.jit(task.apply)
    one, other = (apply(weights, a, KEY, mask) for a in (x, x.at[1].set(9.0)))
    jax.tree.map(np.testing.assert_array_equal, one.stats, other.stats)
    np.testing.assert_array_equal(one.logits[::2], other.logits[::2])
    assert task.batch_norms == ("BatchNorm_0", "BatchNorm_1")
    for name in task.batch_norms:
        assert not np.allclose(one.stats[name]["mean"], weights.stats[name]["mean"])
