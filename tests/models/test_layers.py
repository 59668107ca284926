"""Tests batch normalization and pooling against formulas written out here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import pool_by_hand
from toys import normal

from fedjax_lab.models import kernels, layers


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


# Pooling


@pytest.mark.slow
def test_adaptive_pool_is_the_mean_of_each_bin():
    """8 rows become 3: the means of rows 0 to 2, 2 to 5 and 5 to 7. Bins may outnumber pixels."""
    ramp = jnp.broadcast_to(jnp.arange(8.0)[:, None], (8, 8))[None, :, :, None]
    pooled = layers.adaptive_avg_pool(ramp, 3)[0, :, :, 0]
    np.testing.assert_array_equal(pooled, np.broadcast_to([[1.0], [3.5], [6.0]], (3, 3)))
    for shape, out in (((8, 11), 3), ((7, 7), 6), ((6, 3), 3), ((2, 5), 3), ((5, 6), 1)):
        x = normal(1, 2, *shape, 3)
        close(layers.adaptive_avg_pool(x, out), pool_by_hand(np.asarray(x), out))


@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 1), (2, None, 0), (3, 2, 1)])
def test_average_pooling_against_numpy(window, stride, padding):
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).astype(np.float32)
    actual = layers.avg_pool(x, window, stride, padding)
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))
    step = stride or window
    close(actual, windows.mean((-2, -1))[:, ::step, ::step])


def with_gradient(pool, x, *window):
    y, back = jax.vjp(lambda x: pool(x, *window), x)
    return y, *back(normal(1, *y.shape))


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 0), (3, 1, 0), (3, 2, 1)])
def test_both_formulations_of_max_pooling_are_equal(window):
    """window: its size, stride and padding. After a ReLU most windows have ties at 0."""
    x = normal(0, 2, 7, 6, 3)

    @jax.jit
    def both(x):
        pools = kernels.CPU.max_pool, kernels.TPU.max_pool
        return [with_gradient(pool, x, *window) for pool in pools]

    tied, negative = jax.nn.relu(jnp.round(x)), -1 - jnp.abs(x)  # padding is never the maximum
    for images in (x, tied, negative):
        slices, windows = both(images)
        np.testing.assert_array_equal(slices[0], windows[0])
        np.testing.assert_allclose(slices[1], windows[1], rtol=1e-6, atol=1e-6)  # sums of overlaps


@pytest.mark.parametrize("kind", [kernels.CPU, kernels.TPU])
def test_the_gradient_of_ties_goes_to_the_first_element(kind):
    gradient = jax.grad(lambda x: kind.max_pool(x, 2).sum())(jnp.ones((1, 2, 2, 1)))
    assert gradient.ravel().tolist() == [1, 0, 0, 0]


# BatchNorm


def norm_apply(x, mask=None, stats=None, params=None):
    """The output and the running statistics of BatchNorm in training mode."""
    module, width = layers.BatchNorm(), x.shape[-1]
    variables = {
        "params": params or {"scale": jnp.ones(width), "bias": jnp.zeros(width)},
        "batch_stats": stats or {"mean": jnp.zeros(width), "var": jnp.ones(width)},
    }
    apply = jax.jit(lambda v: module.apply(v, x, True, mask, mutable=["batch_stats"]))
    y, new = apply(variables)
    return y, new["batch_stats"]


@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 4, 3)])
def test_batch_norm_against_numpy(shape):
    x = np.asarray(2 + 3 * normal(0, *shape))
    old = {"mean": np.asarray(normal(1, 3)), "var": np.exp(normal(2, 3))}
    params = {"scale": np.asarray(normal(3, 3)), "bias": np.asarray(normal(4, 3))}
    y, new = norm_apply(jnp.asarray(x), stats=old, params=params)

    flat = x.reshape(-1, 3)
    mean, var = flat.mean(0), flat.var(0)
    close(y, (x - mean) / np.sqrt(var + 1e-5) * params["scale"] + params["bias"])
    close(new["mean"], 0.9 * old["mean"] + 0.1 * mean)
    close(new["var"], 0.9 * old["var"] + 0.1 * flat.var(0, ddof=1))

    variables = {"params": params, "batch_stats": old}
    evaluated = jax.jit(lambda v: layers.BatchNorm().apply(v, jnp.asarray(x), False))(variables)
    expected = (x - old["mean"]) / np.sqrt(old["var"] + 1e-5) * params["scale"] + params["bias"]
    close(evaluated, expected)


def test_batch_norm_without_enough_real_values_keeps_its_statistics():
    """Without a real row it keeps both moments; with a single value it keeps the variance."""
    old = {"mean": normal(1, 3), "var": jnp.exp(normal(2, 3))}
    y, new = norm_apply(normal(0, 4, 2, 2, 3), jnp.zeros(4), old)
    assert np.isfinite(y).all()
    jax.tree.map(np.testing.assert_array_equal, new, old)
    y, new = norm_apply(normal(0, 2, 3), jnp.array([1.0, 0.0]))
    assert np.isfinite(y).all()
    close(new["mean"], 0.1 * normal(0, 2, 3)[0])
    close(new["var"], jnp.ones(3))
