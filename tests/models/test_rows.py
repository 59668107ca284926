"""Padded rows have no effect on a model, and clients trained together equal clients alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import KEY, SMALL, close, one_client, small
from slow_cases import exhaustive_but


def gradient(task, weights, x, mask):
    def loss(params):
        output = task.apply(weights._replace(params=params), x, KEY, mask)
        return jnp.sum(mask[:, None] * jnp.sin(output.logits)), output

    return jax.grad(loss, has_aux=True)(weights.params)


@pytest.mark.parametrize("name", exhaustive_but(["conv", "bottleneck"], SMALL))
def test_padded_rows_have_no_effect(name):
    """Outputs, running statistics and gradients of a padded batch are those of its real rows."""
    task, weights, x = small(name)
    w, x = one_client(weights, x)
    real, mask = np.array([0, 2, 3]), jnp.array([1.0, 0, 1, 1, 0])
    train = jax.jit(lambda x, mask: gradient(task, w, x, mask))
    slope, padded = train(x, mask)
    expected, alone = train(x[real], jnp.ones(3))
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: close(a, b, atol=1e-5 * largest), slope, expected)
    jax.tree.map(close, padded.stats, alone.stats)
    close(padded.logits[real], alone.logits)
    close(padded.features[real], alone.features)
    same = np.testing.assert_array_equal
    _, other = train(x.at[np.array([1, 4])].set(1.0), mask)
    jax.tree.map(same, other.stats, padded.stats)
    same(other.logits[real], padded.logits[real])
    for new, old in zip(jax.tree.leaves(padded.stats), jax.tree.leaves(w.stats), strict=True):
        assert not np.allclose(new, old)
