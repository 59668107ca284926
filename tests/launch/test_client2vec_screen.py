"""Tests the script that tries readings (interpretations) of Client2Vec's local term."""

from functools import partial

import client2vec_screen as screen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import losses
from fedjax_lab.methods._index_dsa_ign import reduction
from fedjax_lab.methods.client2vec import L_index
from fedjax_lab.models.task import with_side_head
from fedjax_lab.types import Batch

B_F = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8)), jnp.float32)
BATCH = Batch(jnp.asarray(toys.SKEWED.x[:12]), jnp.asarray(toys.SKEWED.y[:12]), jnp.ones(12))


@pytest.mark.slow
@pytest.mark.parametrize("reading, detach", [("both 5", False), ("both 5 without KL's", True)])
def test_the_objective_has_the_gradients_of_the_method(reading, detach):
    """The gradients of CE + 5 L_index and those of the reading agree."""
    task = with_side_head(toys.NORM, B_F.shape[1])
    w = task.init(jax.random.key(0))
    reading = reading + " gradient to o" if detach else reading
    given = screen.complete(screen.READINGS[reading])

    def of_method(params):
        out = task.apply(w._replace(params=params), BATCH.x, jax.random.key(0), BATCH.mask)
        term = L_index(out, BATCH, B_F, reduce=reduction("mean"), orth=True, detach=detach)
        return losses.cross_entropy(out.logits, BATCH) + 5 * term

    of_screen = partial(screen.objective, task, w.stats, BATCH, given, B_F)
    toys.close(jax.grad(lambda p: of_screen(p)[0])(w.params), jax.grad(of_method)(w.params))


def test_an_index_is_described_P_is_orthogonalized_and_gradients_are_clipped():
    """N orthogonal vectors of the same length have rank N; equal vectors have rank 1."""
    shown = screen.described(3 * np.eye(5))
    assert "mean length 3.00, effective rank 5.0 (of the squares 5.0), 5 singular" in shown
    assert "effective rank 1.0 (of the squares 1.0), 1 sing" in screen.described(np.ones((5, 4)))
    w = with_side_head(toys.NORM, 32).init(jax.random.key(0))
    P, Q = w.params["side"]["P"], screen.with_orthogonal_rows(w).params["side"]["P"]
    np.testing.assert_allclose(jnp.linalg.norm(Q), jnp.linalg.norm(P), rtol=1e-5)
    products = np.asarray(Q @ Q.T if len(Q) <= Q.shape[1] else Q.T @ Q)
    np.testing.assert_allclose(products, products[0, 0] * np.eye(len(products)), atol=1e-5)
    for limit, clipped in ((1.0, [0.6, 0.8]), (6.0, [3.0, 4.0])):
        g = screen.clipped({"a": jnp.array([3.0, 4.0])}, limit)
        np.testing.assert_allclose(g["a"], clipped, rtol=1e-6)
