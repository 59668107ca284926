"""Compares FedMTL with plain NumPy."""

import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import different_models, local_work
from scipy.linalg import sqrtm

from fedjax_lab import tree
from fedjax_lab.methods.fedmtl import Server, inverse_root


@pytest.mark.parametrize("relation", ["mean", "learned"])
def test_a_step_is_the_gradient_of_the_objective(relation):
    """The term of client i is what depends on w_i in lam tr(W Omega W^T)."""
    method = toys.make("fedmtl", toys.TASK, lam=0.3, relation=relation)
    models, arrays = different_models()
    W, i = np.stack([naive.vector(w) for w in arrays]), 2
    server = Server(models.params, method.init(KEYS.init, toys.C).server.Omega)
    if relation == "learned":
        cohort = tree.take(toys.POPULATION, jnp.arange(2))
        server = method.round[0].aggregate(server, tree.take(models.params, jnp.arange(2)), cohort)
    Omega = np.asarray(server.Omega)
    message = method.round[0].send(server, i)
    private = tree.take(models, i)
    upload, kept, [(_, start, options)], _ = local_work(method, message, private, i)
    optimizer = options["optimizer"]
    zero = tree.zeros(start.params)
    step, _ = optimizer.update(zero, optimizer.init(zero), start.params)
    moved = naive.vector(
        naive.weights_of(optax.tree.scale(-1 / naive.LR, start._replace(params=step)))
    )
    expected = 2 * 0.3 * Omega[i] @ W
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-3)
    toys.same(upload, kept.params)


def test_omega_against_numpy():
    models, arrays = different_models()
    W = np.stack([naive.vector(w) for w in arrays])
    root = np.real(sqrtm(W @ W.T))
    expected = np.linalg.inv(root / np.trace(root))
    np.testing.assert_allclose(inverse_root(models.params, 1e-6), expected, rtol=1e-3, atol=1e-3)
    alike = tree.repeat(tree.take(models.params, 0), toys.C)
    mean = np.full((toys.C, toys.C), 1 / toys.C)
    expected = mean + (np.eye(toys.C) - mean) / 0.1
    np.testing.assert_allclose(inverse_root(alike, 0.1), expected, atol=1e-4)
    few = jnp.ones((toys.C, 1))
    np.testing.assert_allclose(inverse_root(few, 0.1), expected, atol=1e-4)


def test_the_fixed_relation_is_the_distance_to_the_mean():
    models, arrays = different_models()
    Omega = toys.make("fedmtl", toys.TASK, relation="mean").init(KEYS.init, toys.C).server.Omega
    W = np.stack([naive.vector(w) for w in arrays])
    far = ((W - W.mean(0)) ** 2).sum()
    assert np.trace(W.T @ np.asarray(Omega) @ W) == pytest.approx(far, rel=1e-4)
