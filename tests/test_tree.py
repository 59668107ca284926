"""Operations on trees: split, join and mix."""

import jax
import jax.numpy as jnp
import numpy as np
import toys

from fedjax_lab import streams, tree

KEYS = streams.make_keys(jax.random.key(0))


def test_split_and_join():
    w = toys.NORM.init(KEYS.init)
    head, body = tree.split(lambda name: "head" in name, w)
    assert tree.names(head) == ["params/head/bias", "params/head/kernel"]
    toys.same(tree.join(head, body), w)


def test_mix():
    stacked = {"a": jnp.arange(6.0).reshape(3, 2)}
    np.testing.assert_allclose(tree.mix(jnp.array([0.5, 0.5, 0]), stacked)["a"], [1, 2])
    two = tree.mix(jnp.array([[1.0, 0, 0], [0, 0, 1]]), stacked)["a"]
    np.testing.assert_allclose(two, [[0, 1], [4, 5]])
