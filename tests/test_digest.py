"""Digests of arrays do not depend on the sharding, and differ after any change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import in_ci

from fedjax_lab.engine import parallel
from fedjax_lab.running.storage import digest

A = np.random.default_rng(0).normal(size=(104, 6, 5)).astype(np.float32)
A[100:] = 0


DTYPES = ["float32", "bfloat16", "int8", "bool", "complex64"]


def shardings():
    mesh = parallel.make_mesh(8)
    both = jax.make_mesh((4, 2), ("client", "fsdp"), axis_types=mesh.axis_types * 2)
    yield from (NamedSharding(mesh, spec) for spec in (P(), P("client")))
    yield from (NamedSharding(both, spec) for spec in (P("client", "fsdp"), P(None, ("fsdp",))))


@pytest.mark.parametrize("dtype", in_ci(["bfloat16", "bool"], DTYPES))
def test_the_digest_ignores_the_sharding_and_trailing_zeros(dtype, monkeypatch):
    """Device arrays are digested by a compiled program (0), or on the host like small arrays."""
    a = jnp.asarray(A, dtype)
    (whole,) = digest.digests([np.asarray(a)])
    for piece in (0, 1 << 18):
        monkeypatch.setattr(digest, "PIECE", piece)
        assert digest.digests([a[:100]]) == digest.digests([a]) == [whole]
        for sharding in shardings():
            assert digest.digests([jax.device_put(a, sharding)]) == [whole]
    assert digest.digests([np.asarray(a)[:100]]) == [whole]


def test_digesting_a_host_array_in_pieces_gives_the_same_digest(monkeypatch):
    whole = digest.digests([A, A.T, np.float64(3), np.ones(3), np.zeros(0)])
    monkeypatch.setattr(digest, "PIECE", 64)
    assert digest.digests([A, A.T, np.float64(3), np.ones(3), np.zeros(0)]) == whole


def changed():
    """Copies of A with one or two bits flipped, or with swapped entries or rows, and others."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        b = A.copy()
        for at in rng.integers(0, b.size, rng.integers(1, 3)):
            b.view(np.uint32).flat[at] ^= np.uint32(1 << rng.integers(32))
        yield b
    for i, j in rng.choice(100, (100, 2)):
        for index, other in ((i, j), ((i, 1), (i, 2)), ((i, 1), (j, 2)), ((0, 1, 2), (1, 0, 2))):
            b = A.copy()
            b[index], b[other] = A[other], A[index]
            yield b
    yield -A  # all signs: flips of the highest bit, which would cancel in a sum of products
    yield np.concatenate([A[:1] * 0, A[:-1]])


def test_every_change_gives_another_digest():
    whole = digest.digests([A])
    for b in changed():
        assert (digest.digests([b]) == whole) == (b.tobytes() == A.tobytes())
    assert digest.digests([A, -A]) != digest.digests([-A, A])  # the order of arrays matters
    assert digest.digests([A, A])[0] != digest.digests([A, A])[1]


def test_a_program_is_compiled_once_for_each_shape(monkeypatch):
    monkeypatch.setattr(digest, "PIECE", 0)
    digest._program.cache_clear()
    for _ in range(2):
        digest.digests([jnp.asarray(A), jnp.asarray(-A), jnp.zeros(3)])
    assert digest._program(None)._cache_size() == 2
