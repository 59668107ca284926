"""Tests DSA-IGN, the network of Client2Vec's index."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from indices import KEYS, RNG, E
from naive_layers import dense, layer_norm, relu

from fedjax_lab import tree
from fedjax_lab.papers.client2vec import network

pytestmark = pytest.mark.usefixtures("small_network")


def test_network_has_the_published_size(monkeypatch):
    monkeypatch.setattr(network, "HIDDEN", 2048)
    monkeypatch.setattr(network, "LAYERS", 3)
    shapes = jax.eval_shape(network.Network().init, KEYS.init, jnp.zeros((1, 512)))
    assert sum(a.size for a in jax.tree.leaves(shapes)) == 937_312 + 32 * 32
    shapes = jax.eval_shape(network.Network(decoder="mlp").init, KEYS.init, jnp.zeros((1, 512)))
    assert tree.at(shapes, "params/hidden/kernel").shape == (1024, 512)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [False, True])
def test_both_halves_differ_only_with_positions(positions):
    net, D = network.Network(positions), jax.random.normal(KEYS.local, (5, E))
    z, u, made = net.apply(net.init(KEYS.init, D), D)
    assert z.shape == u.shape == made.shape == D.shape
    assert bool(jnp.allclose(z, u, atol=1e-6)) is not positions


@pytest.mark.slow
def test_encoder_layer_is_that_of_pytorch():
    """Recomputes a layer in NumPy: attention by heads, normalization after each sum."""
    x = RNG.normal(size=(3, 4, 32)).astype(np.float32)
    layer = network.EncoderLayer()
    w = layer.init(KEYS.init, x, False)["params"]
    w = jax.tree.map(lambda a: a + 0.1 * RNG.normal(size=a.shape), w)
    att = w["MultiHeadDotProductAttention_0"]

    q, k, v = (
        np.einsum("bnd,dhe->bhne", x, att[n]["kernel"]) + att[n]["bias"][None, :, None]
        for n in ("query", "key", "value")
    )
    share = scipy.special.softmax(q @ k.transpose(0, 1, 3, 2) / 2, -1)  # 4 numbers a head
    y = np.einsum("bhne,hed->bnd", share @ v, att["out"]["kernel"]) + att["out"]["bias"]
    x1 = layer_norm(x + y, w["LayerNorm_0"])
    hidden = relu(dense(x1, w["Dense_0"]))
    x2 = layer_norm(x1 + dense(hidden, w["Dense_1"]), w["LayerNorm_1"])
    np.testing.assert_allclose(layer.apply({"params": w}, x, False), x2, rtol=1e-4, atol=1e-4)
