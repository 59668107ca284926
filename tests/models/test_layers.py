"""Tests batch normalization and adaptive pooling against formulas written out here."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import pool_by_hand
from toys import normal

from fedjax_lab.models import layers

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


# Adaptive pooling


def test_adaptive_pool_of_a_ramp_along_height_and_width():
    """8 rows become 3: the means of rows 0 to 2, 2 to 5 and 5 to 7."""
    ramp = jnp.broadcast_to(jnp.arange(8.0)[:, None], (8, 8))[None, :, :, None]
    pooled = layers.adaptive_avg_pool(ramp, 3)[0, :, :, 0]
    close(pooled, np.broadcast_to([[1.0], [3.5], [6.0]], (3, 3)))
    close(layers.adaptive_avg_pool(ramp.swapaxes(1, 2), 3)[0, :, :, 0], pooled.T)


def test_adaptive_pool_from_7_to_6_is_a_2x2_pool_of_stride_1():
    x = normal(0, 2, 7, 7, 3)
    close(layers.adaptive_avg_pool(x, 6), nn.avg_pool(x, (2, 2), (1, 1)))


@pytest.mark.parametrize("shape", [(8, 5), (6, 3), (1, 7)])
def test_adaptive_pool_is_the_mean_of_each_bin(shape):
    """There may be more bins than pixels."""
    x = normal(1, 2, *shape, 3)
    close(layers.adaptive_avg_pool(x, 3), pool_by_hand(np.asarray(x), 3))


close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


# BatchNorm


def norm_apply(x, mask=None, stats=None, params=None):
    """Returns the output and the running statistics of BatchNorm in training mode."""
    module, width = layers.BatchNorm(), x.shape[-1]
    variables = {
        "params": params or {"scale": jnp.ones(width), "bias": jnp.zeros(width)},
        "batch_stats": stats or {"mean": jnp.zeros(width), "var": jnp.ones(width)},
    }
    y, new = module.apply(variables, x, True, mask, mutable=["batch_stats"])
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

    evaluated = layers.BatchNorm().apply(
        {"params": params, "batch_stats": old}, jnp.asarray(x), False
    )
    expected = (x - old["mean"]) / np.sqrt(old["var"] + 1e-5) * params["scale"] + params["bias"]
    close(evaluated, expected)


def test_batch_norm_without_a_real_row_keeps_its_statistics():
    old = {"mean": normal(1, 3), "var": jnp.exp(normal(2, 3))}
    y, new = norm_apply(normal(0, 4, 2, 2, 3), jnp.zeros(4), old)
    assert np.isfinite(y).all()
    jax.tree.map(np.testing.assert_array_equal, new, old)


def test_batch_norm_of_a_single_value_keeps_its_variance():
    y, new = norm_apply(normal(0, 2, 3), jnp.array([1.0, 0.0]))
    assert np.isfinite(y).all()
    close(new["mean"], 0.1 * normal(0, 2, 3)[0])
    close(new["var"], jnp.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "out", "bins"),
    [
        (8, 3, [(0, 3), (2, 6), (5, 8)]),
        (7, 6, [(k, k + 2) for k in range(6)]),
        (6, 3, [(0, 2), (2, 4), (4, 6)]),
        (2, 3, [(0, 1), (0, 2), (1, 2)]),
        (5, 1, [(0, 5)]),
    ],
)
def test_adaptive_pool_against_listed_bins(n, out, bins):
    x = np.random.default_rng(0).normal(size=(2, n, n + out, 3)).astype(np.float32)
    got = layers.adaptive_avg_pool(x[:, :, :n], out)
    assert got.shape == (2, out, out, 3)
    for i, (a, b) in enumerate(bins):
        for j, (c, d) in enumerate(bins):
            np.testing.assert_allclose(got[:, i, j], x[:, a:b, c:d].mean((1, 2)), atol=1e-6)
    wide = layers.adaptive_avg_pool(x, out)  # height and width are pooled by their own bins
    assert wide.shape == (2, out, out, 3)


def test_adaptive_pool_of_a_ramp_is_exact():
    ramp = jnp.broadcast_to(jnp.arange(8.0)[:, None], (8, 8))[None, ..., None]
    np.testing.assert_array_equal(layers.adaptive_avg_pool(ramp, 3)[0, :, 0, 0], [1.0, 3.5, 6.0])
