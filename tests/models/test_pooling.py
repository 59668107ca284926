"""Tests that both formulations of max-pooling have equal values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import normal

from fedjax_lab.models import kernels

WINDOWS = [(2, 2, 0), (3, 2, 0), (3, 1, 0), (3, 2, 1)]


def with_gradient(pool, x, window, stride, padding):
    y, back = jax.vjp(lambda x: pool(x, window, stride, padding), x)
    return y, *back(normal(1, *y.shape))


@pytest.mark.parametrize(("window", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize("kind", ["distinct", "tied", "below zero"])
def test_both_formulations_of_max_pooling_are_equal(window, stride, padding, kind):
    """After a ReLU most windows have ties at 0, whose gradient goes to the first element."""
    x = normal(0, 2, 7, 6, 3)
    if kind == "tied":
        x = jax.nn.relu(jnp.round(x))
    if kind == "below zero":
        x = -1 - jnp.abs(x)  # padding must never be the maximum
    pools = kernels.CPU.max_pool, kernels.TPU.max_pool
    slices, windows = (with_gradient(pool, x, window, stride, padding) for pool in pools)
    np.testing.assert_array_equal(slices[0], windows[0])
    np.testing.assert_allclose(slices[1], windows[1], rtol=1e-6, atol=1e-6)  # sums of overlaps


@pytest.mark.parametrize("kind", [kernels.CPU, kernels.TPU])
def test_the_gradient_of_ties_goes_to_the_first_element(kind):
    gradient = jax.grad(lambda x: kind.max_pool(x, 2).sum())(jnp.ones((1, 2, 2, 1)))
    assert gradient.ravel().tolist() == [1, 0, 0, 0]
