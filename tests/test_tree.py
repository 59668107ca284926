"""Operations on trees: split, join and mix."""

import jax.numpy as jnp
import numpy as np
import toys
from naive import KEYS

from fedjax_lab import tree


def test_split_join_and_mix():
    w = toys.NORM.init(KEYS.init)
    head, body = tree.split(lambda name: "head" in name, w)
    assert tree.names(head) == ["params/head/bias", "params/head/kernel"]
    toys.same(tree.join(head, body), w)
    stacked = {"a": jnp.arange(6.0).reshape(3, 2)}
    np.testing.assert_allclose(tree.mix(jnp.array([0.5, 0.5, 0]), stacked)["a"], [1, 2])
    two = tree.mix(jnp.array([[1.0, 0, 0], [0, 0, 1]]), stacked)["a"]
    np.testing.assert_allclose(two, [[0, 1], [4, 5]])
