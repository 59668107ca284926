"""Compares pFedLA with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import different_models

from fedjax_lab import tree
from fedjax_lab.methods import pfedla


def shares(psi, id, private_layers=0):
    """alpha_i [L, C] by the formulas."""
    h = psi["v"]
    for dense in psi["dense"]:
        h = np.maximum(h @ dense["kernel"] + dense["bias"], 0)
    a = np.stack([np.maximum(h @ kernel, 0) for kernel in psi["heads"]["kernel"]])
    alpha = a / a.sum(1, keepdims=True)
    alpha[np.argsort(-alpha[:, id])[:private_layers]] = np.eye(a.shape[1])[id]
    return alpha


def hypernetwork(id=2):
    """The first hypernetwork of a client, for two layers and all toy clients."""
    psi = tree.take(pfedla.first_hypernetworks(2, toys.C, KEYS.init), id)
    return psi, jax.tree.map(np.asarray, psi)


@pytest.mark.slow
def test_the_first_hypernetworks_differ_in_their_embeddings():
    (psi, _), (other, _) = hypernetwork(2), hypernetwork(3)
    assert not jnp.any(psi.pop("v") == other.pop("v"))
    toys.same(psi, other)


@pytest.mark.parametrize("private_layers", [0, 1])
def test_a_client_gets_a_mixture_of_each_layer(private_layers):
    psi, arrays = hypernetwork()
    models, lists = different_models()
    alpha = shares(arrays, 2, private_layers)
    sent = naive.weights_of(pfedla.mixed(private_layers, models, psi, 2))
    for k, of_layer in enumerate((slice(0, 2), slice(2, 4))):
        expected = naive.mean(alpha[k], [w[of_layer] for w in lists])
        for a, b in zip(sent[of_layer], expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_without_a_positive_share_a_client_keeps_its_layer():
    psi, _ = hypernetwork()
    psi["heads"]["bias"] = jnp.full((2, toys.C), -1e6).at[1].set(0)
    alpha = pfedla.shares(0, psi, 2)
    np.testing.assert_array_equal(alpha[0], np.eye(toys.C)[2])
    assert jnp.sum(alpha[1]) == pytest.approx(1) and alpha[1, 0] > 0


@pytest.mark.slow
def test_a_step_of_the_hypernetworks():
    """The gradient of <theta-_i, Delta_i> with respect to the biases, by the formula."""
    (exchange,) = toys.make("pfedla", toys.TASK, server_lr=0.5).round
    server = toys.make("pfedla", toys.TASK).init(KEYS.init, toys.C).server
    models, lists = different_models()
    server, ids = server._replace(models=models), jnp.array([6, 1])
    w = tree.take(models, jnp.array([0, 3]))
    after = exchange.aggregate(server, w, tree.take(toys.POPULATION, ids))
    psi = jax.tree.map(lambda a: np.asarray(a[6], float), server.psi)
    delta = naive.sub(naive.weights_of(exchange.send(server, 6)), lists[0])
    for k, of_layer in enumerate((slice(0, 2), slice(2, 4))):
        each = [
            sum(np.vdot(a, d) for a, d in zip(w[of_layer], delta[of_layer], strict=True))
            for w in lists
        ]
        h = psi["v"]
        for dense in psi["dense"]:
            h = np.maximum(h @ dense["kernel"] + dense["bias"], 0)
        total, alpha = (h @ psi["heads"]["kernel"][k]).sum(), shares(psi, 6)[k]
        gradient = (np.array(each) - alpha @ each) / total
        np.testing.assert_allclose(
            after.psi["heads"]["bias"][6, k], -0.5 * gradient, rtol=1e-2, atol=1e-5
        )
    toys.same(tree.take(after.models, ids), w)
    toys.same(tree.take(after.psi, 0), tree.take(server.psi, 0))
