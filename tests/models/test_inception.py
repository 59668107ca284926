"""Tests hFedF's client network against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_lab.models import inception
from fedjax_lab.models.kernels import CPU


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


def windows_of(x, padding):
    """The 3x3 windows of x [B, H, W, C] at stride 1, in the last two axes."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=padding)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))


POOLED = {  # the zeros of the padding count in the mean
    "max": lambda x: windows_of(x, -np.inf).max((-2, -1)),
    "avg": lambda x: windows_of(x, 0).mean((-2, -1)),
    "identity": lambda x: x,
}


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("pool", POOLED)
def test_the_second_module_appends_the_pooled_output_of_the_first(small, pool):
    """At the paper's width these are the channels 112 to 287; the others do not depend on the pool.

    The network has max-pooling.
    """
    _, variables, *_, outputs = small
    x, variables = outputs["Inception_0"], {"params": variables["params"]["Inception_1"]}
    plain = inception.Inception((4, 8, 2), "max", CPU)
    expected, actual = plain.apply(variables, x), plain.clone(pool=pool).apply(variables, x)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(expected, outputs["Inception_1"])
    close(actual[..., 14:], POOLED[pool](x))
    np.testing.assert_array_equal(actual[..., :14], expected[..., :14])
    assert actual.shape[-1] == 14 + 22 and (actual >= 0).all() and (actual[..., :14] > 0).any()


@pytest.mark.slow
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


@pytest.mark.exhaustive
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
