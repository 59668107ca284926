"""Checks that dividing arrays among devices changes only placement and communication."""

import jax
import jax.numpy as jnp
import numpy as np
import toys
from jax.sharding import PartitionSpec as P

from fedjax_lab.engine import parallel, shards

MESH = parallel.make_mesh(4)


def on_shares(fn, **specs):
    return jax.jit(jax.shard_map(fn, mesh=MESH, check_vma=False, **specs))


ODD = {  # values that a sum with zeros could change, in every type that a state may have
    "floats": np.array([[-0.0, np.inf, np.nan], [1e-45, -1.5, 3]] * 4, np.float32),
    "halves": jnp.arange(8, dtype=jnp.bfloat16) - 3,
    "flags": np.arange(8) % 3 == 0,
    "numbers": np.arange(8, dtype=np.int32) - 4,
    "bytes": np.arange(8, dtype=np.uint8) + 200,
}


def bits(a):
    return jax.tree.map(lambda x: np.asarray(x).tobytes(), a)


def test_take_and_put_preserve_every_bit():
    ids = np.array([7, 0, 3, 3, 5, 1, 6, 2])
    take = on_shares(shards.take, in_specs=(P("client"), P()), out_specs=P("client"))
    keys = jax.random.split(jax.random.key(0), 8)
    taken, taken_keys = take((ODD, keys), ids)
    assert bits(taken) == bits(jax.tree.map(lambda a: a[ids], ODD))
    toys.same(taken_keys, keys[ids])
    put = on_shares(shards.put, in_specs=(P("client"), P(), P("client")), out_specs=P("client"))
    padded = np.array([7, 0, 3, -1, 5, 1, 6, -1])  # entries with id -1 are left out
    new = jax.tree.map(lambda a: a[::-1], ODD)
    expected = jax.tree.map(lambda a: np.array(a), ODD)
    for name, a in new.items():
        expected[name][padded[padded >= 0]] = np.asarray(a)[padded >= 0]
    assert bits(put(ODD, padded, new)) == bits(expected)
