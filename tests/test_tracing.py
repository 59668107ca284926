"""Checks which arguments a function depends on, without running it."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_lab.engine.tracing import depends

A, B = jax.ShapeDtypeStruct((3,), jnp.float32), {"b": jax.ShapeDtypeStruct((2,), jnp.float32)}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: a, True),
        (lambda a, b: b["b"] + jnp.sum(jnp.where(a > 0, a, 0)), True),
        (lambda a, b: jax.lax.fori_loop(0, 3, lambda _, x: x + a[0], b["b"]), True),
        (lambda a, b: b, False),
        (lambda a, b: (jnp.zeros_like(a), len(a) * b["b"]), False),
        (lambda a, b: (jnp.linalg.norm(a), jnp.sin(b["b"]))[1], False),
    ],
)
def test_dependence_on_values_and_not_on_shapes(function, expected):
    assert depends(function, A, B) is expected
