"""Tests hypernetworks against NumPy: generated models, the chain rule, inner products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from hypernetworks import KEY, PARAMS, clients, gradients, leaky

from fedjax_lab import tree
from fedjax_lab.methods.hfedf import alignment
from fedjax_lab.models.hypernetwork import embedding_size, first_weights, generate, inner_products


def small(width=5, inputs=2):
    return first_weights(KEY, PARAMS, inputs, width)


def test_sizes_of_a_hypernetwork_and_its_embeddings():
    theta = jax.eval_shape(lambda: first_weights(KEY, PARAMS, 1, 50))
    P = sum(a.size for a in jax.tree.leaves(PARAMS))
    assert sum(a.size for a in jax.tree.leaves(theta)) == 7_750 + 51 * P
    assert [embedding_size(n) for n in (3, 4, 7, 8, 20)] == [1, 2, 2, 3, 6]


@pytest.mark.slow
def test_generated_models_against_numpy():
    theta, (nu, _) = small(), clients()
    phi = generate(theta, nu[1], leaky)
    f = np.asarray(nu[1])
    for k, (A, a) in enumerate(theta.layers):
        f = np.where(f > 0, f, 0.01 * f) if k else f
        f = f @ np.asarray(A) + np.asarray(a)
    W, b = theta.kernel["head"]["kernel"], theta.bias["head"]["kernel"]
    expected = np.einsum("w,wdc->dc", f, W) + b
    np.testing.assert_allclose(phi["head"]["kernel"], expected, rtol=1e-4, atol=1e-5)
    bound = 1 / np.sqrt(5)
    assert np.abs(W).max() <= bound and np.abs(W).max() > 0.9 * bound


@pytest.mark.slow
def test_gradients_equal_the_block_form_of_the_paper():
    """Compares section 5.2, step 5, in NumPy with automatic differentiation."""
    theta, (nu, delta) = small(), clients()
    d = jax.tree.map(lambda a: np.asarray(a[0], float), delta)
    _, pull = jax.vjp(lambda theta, nu: generate(theta, nu, leaky), theta, nu[0])
    pulled, by_nu = pull(tree.take(delta, 0))
    s, f = [], [np.asarray(nu[0], float)]
    for k, (A, a) in enumerate(theta.layers):
        s.append(f[-1] @ np.asarray(A, float) + np.asarray(a, float))
        f.append(np.where(s[-1] > 0, s[-1], 0.01 * s[-1]) if k < 3 else s[-1])
    heads = jax.tree.map(
        lambda W, d: np.tensordot(np.asarray(W, float), d, d.ndim), theta.kernel, d
    )
    r = sum(jax.tree.leaves(heads))
    jax.tree.map(
        lambda g, d: np.testing.assert_allclose(
            g, np.multiply.outer(f[-1], d), rtol=1e-3, atol=1e-4
        ),
        pulled.kernel,
        d,
    )
    toys.close(pulled.bias, d, rtol=1e-5)
    for k in (3, 2, 1, 0):
        np.testing.assert_allclose(pulled.layers[k][0], np.outer(f[k], r), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(pulled.layers[k][1], r, rtol=1e-3, atol=1e-4)
        r = np.asarray(theta.layers[k][0], float) @ r
        r = r * np.where(s[k - 1] > 0, 1, 0.01) if k else r
    np.testing.assert_allclose(by_nu, r, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("with_nu", [True, False])
def test_inner_products_equal_those_of_the_gradients(with_nu):
    theta, (nu, delta) = small(), clients()
    g = gradients(theta, nu, delta, with_nu)
    gram = np.asarray(inner_products(theta, nu, delta, leaky, with_nu))
    np.testing.assert_allclose(gram, g @ g.T, rtol=1e-4, atol=1e-3)
    mean = g.mean(0)
    cosine = g @ mean / (np.linalg.norm(g, axis=1) * np.linalg.norm(mean))
    np.testing.assert_allclose(alignment(jnp.asarray(gram)), cosine, atol=1e-5)
