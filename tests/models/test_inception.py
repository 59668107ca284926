"""Tests hFedF's client network against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint

from fedjax_lab import registry
from fedjax_lab.models import inception, layers
from fedjax_lab.models.kernels import CPU
from fedjax_lab.models.task import make_task


@pytest.mark.parametrize(
    ("num_classes", "pool", "count"),
    [
        (7, "max", 928_199),
        (5, "max", 927_685),
        (65, "max", 943_105),
        (7, "avg", 928_199),
        (7, "identity", 928_199),
    ],
)
def test_published_sizes(num_classes, pool, count):
    net = inception.hfedf_cnn(num_classes, inception_pool=pool)
    task = make_task(net, (32, 32, 3), num_classes)
    params = jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)).params)
    assert sum(leaf.size for leaf in params) == count
    assert len(params) == 22 and len(task.layers) == 11 and not task.batch_norms
    assert task.dense[-1] == "head" and len(task.dense) == 2


def test_layers_have_the_shapes_of_table_7_of_the_paper():
    net = inception.hfedf_cnn(7)
    x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(net.init, jax.random.key(0), x)
    _, captured = jax.eval_shape(partial(net.apply, capture_intermediates=True), variables, x)
    captured = captured["intermediates"]
    shapes = {
        name: part["__call__"][0].shape[1:] for name, part in captured.items() if name[0] != "_"
    }
    assert shapes == {
        "Conv_0": (32, 32, 32),
        "Conv_1": (16, 16, 32),
        "Conv_2": (16, 16, 64),
        "Inception_0": (8, 8, 176),
        "Inception_1": (8, 8, 288),
        "Dropout_0": (2592,),
        "Dense_0": (256,),
        "head": (7,),
    }
    branches = [captured["Inception_1"][f"Conv_{i}"]["__call__"][0].shape[1:] for i in range(3)]
    assert branches == [(8, 8, 32), (8, 8, 64), (8, 8, 16)]
    kernels = [variables["params"]["Inception_0"][f"Conv_{i}"]["kernel"].shape for i in range(3)]
    assert kernels == [(1, 1, 64, 32), (3, 3, 64, 64), (5, 5, 64, 16)]


def pooled_by_hand(x):
    """Returns the 3x3 maximum with stride 1, padded with -inf."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return windows.max((-2, -1))


@pytest.fixture(scope="module")
def small():
    """A network of width 4, its weights, two images, its output and that of each layer."""
    net = inception.hfedf_cnn(3, width=4)
    x = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)), jnp.float32)
    variables = jax.jit(net.init)(jax.random.key(0), x)
    apply = jax.jit(partial(net.apply, capture_intermediates=True))
    out, captured = apply(variables, x)
    outputs = {
        name: np.asarray(part["__call__"][0])
        for name, part in captured["intermediates"].items()
        if name[0] != "_"
    }
    return net, variables, x, out, outputs


@pytest.mark.slow
def test_the_second_module_appends_the_pooled_output_of_the_first(small):
    """At the paper's width these are the channels 112 to 287."""
    *_, outputs = small
    assert outputs["Inception_1"].shape[-1] == 14 + 22
    np.testing.assert_array_equal(
        outputs["Inception_1"][..., 14:], pooled_by_hand(outputs["Inception_0"])
    )
    assert (outputs["Inception_1"] >= 0).all() and (outputs["Inception_1"][..., :14] > 0).any()


def averaged_by_hand(x):
    """Returns the 3x3 mean with stride 1; the zeros of the padding count."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return windows.sum((-2, -1)) / 9


@pytest.mark.parametrize(
    ("pool", "by_hand"), [("avg", averaged_by_hand), ("identity", lambda x: x)]
)
def test_other_pools_change_only_the_last_channels_of_a_module(small, pool, by_hand):
    """The other channels, and the weights, are those of a module with max-pooling."""
    x = small[-1]["Inception_0"]
    plain = inception.Inception((4, 8, 2), "max", CPU)
    variables = {"params": small[1]["params"]["Inception_1"]}
    expected = plain.apply(variables, x)
    actual = plain.clone(pool=pool).apply(variables, x)
    np.testing.assert_allclose(actual[..., 14:], by_hand(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(actual[..., :14], expected[..., :14])
    assert not np.allclose(actual[..., 14:], expected[..., 14:])


def test_pools_are_chosen_by_name():
    net = registry.NAMED["model"]["hfedf_cnn"](3, width=4, inception_pool="avg")
    assert net.pool == "avg" and inception.hfedf_cnn(3).pool == "max"
    message = complaint(inception.hfedf_cnn, 7, inception_pool="mean")
    assert message.startswith("config.model.inception_pool cannot be 'mean'")


@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 1), (2, None, 0), (3, 2, 1)])
def test_average_pooling_against_numpy(window, stride, padding):
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).astype(np.float32)
    actual = layers.avg_pool(x, window, stride, padding)
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))
    step = stride or window
    np.testing.assert_allclose(actual, windows.mean((-2, -1))[:, ::step, ::step], atol=1e-6)


def test_hfedf_cnn_against_numpy(small):
    """Computes the output of each layer from that of the layer before it."""
    _, variables, _, (logits, features), outputs = small
    params = jax.tree.map(np.asarray, variables["params"])

    def halved(y):
        b, h, w, c = y.shape
        return np.maximum(y.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4)), 0)

    pointwise = halved(outputs["Conv_0"]) @ params["Conv_1"]["kernel"][0, 0]
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(outputs["Conv_1"], pointwise + params["Conv_1"]["bias"])
    assert (outputs["Conv_1"] < 0).any()
    first = params["Inception_0"]["Conv_0"]
    ones = halved(outputs["Conv_2"]) @ first["kernel"][0, 0] + first["bias"]
    close(outputs["Inception_0"][..., :4], np.maximum(ones, 0))
    bins = ((0, 3), (2, 6), (5, 8))
    flat = np.concatenate(
        [outputs["Inception_1"][:, a:b, c:d].mean((1, 2)) for a, b in bins for c, d in bins],
        axis=-1,
    )
    close(outputs["Dropout_0"], flat)
    close(features, flat @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    assert (np.asarray(features) < 0).any()
    close(logits, features @ params["head"]["kernel"] + params["head"]["bias"])


@pytest.mark.slow
def test_training_drops_a_fifth_of_the_features(small):
    net, variables, x, _, outputs = small
    apply = partial(net.apply, capture_intermediates=True, train=True)
    _, training = apply(variables, x, rngs={"dropout": jax.random.key(1)})
    dropped = np.asarray(training["intermediates"]["Dropout_0"]["__call__"][0])
    whole = outputs["Dropout_0"]
    lost = (dropped == 0)[whole > 0]
    assert 0.1 < lost.mean() < 0.3
    kept = (dropped != 0) & (whole > 0)
    np.testing.assert_allclose(dropped[kept], whole[kept] / 0.8, rtol=1e-4)


def test_unsuitable_widths_and_images_are_rejected():
    for width in (0, 3):
        assert "config.model.width" in complaint(inception.hfedf_cnn, 7, width=width)
    message = complaint(make_task, inception.hfedf_cnn(7), (3, 32, 3), 7)
    assert "hfedf_cnn" in message and "3x32x3" in message
