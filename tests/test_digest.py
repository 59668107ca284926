"""The digest of spread arrays: the same wherever they lie, another after any change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab import parallel
from fedjax_lab.running import digest

A = np.random.default_rng(0).normal(size=(104, 6, 5)).astype(np.float32)
A[100:] = 0


@pytest.fixture(params=[0, 1 << 18])
def piece(request, monkeypatch):
    """Arrays on devices are digested by a program (0), or on the host as small ones are."""
    monkeypatch.setattr(digest, "PIECE", request.param)


def places():
    mesh = parallel.make_mesh(8)
    both = jax.make_mesh((4, 2), ("client", "fsdp"), axis_types=mesh.axis_types * 2)
    yield from (NamedSharding(mesh, spec) for spec in (P(), P("client")))
    yield from (NamedSharding(both, spec) for spec in (P("client", "fsdp"), P(None, ("fsdp",))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_neither_the_sharding_nor_zeros_at_the_end_matter(dtype, piece):
    a = jnp.asarray(A, dtype)
    (whole,) = digest.of([np.asarray(a)])
    assert digest.of([np.asarray(a)[:100]]) == digest.of([a[:100]]) == digest.of([a]) == [whole]
    for sharding in places():
        assert digest.of([jax.device_put(a, sharding)]) == [whole]


def test_a_host_array_is_digested_in_pieces(monkeypatch):
    whole = digest.of([A, A.T, np.float64(3), np.ones(3), np.zeros(0)])
    monkeypatch.setattr(digest, "PIECE", 64)
    assert digest.of([A, A.T, np.float64(3), np.ones(3), np.zeros(0)]) == whole


def changed():
    """A with one or two bits flipped, or with entries or rows that changed places."""
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
    yield -A  # all signs: flips of the highest bit, which a sum of products would let cancel
    yield np.concatenate([A[:1] * 0, A[:-1]])


def test_what_changes_is_found():
    whole = digest.of([A])
    for b in changed():
        assert (digest.of([b]) == whole) == (b.tobytes() == A.tobytes())


def test_the_order_of_arrays_matters():
    assert digest.of([A, -A]) != digest.of([-A, A])
    assert digest.of([A, A])[0] != digest.of([A, A])[1]


def test_a_program_is_compiled_once_for_each_shape(monkeypatch):
    monkeypatch.setattr(digest, "PIECE", 0)
    digest._program.cache_clear()
    for _ in range(2):
        digest.of([jnp.asarray(A), jnp.asarray(-A), jnp.zeros(3)])
    assert digest._program(None)._cache_size() == 2
