"""The recurrence of an LSTM with few and large products.

The loop over the steps multiplies the state by its kernel, and nothing else: the input is
multiplied before the loop, and the gradients of kernel and bias are computed after it, each in one
product. Automatic differentiation of the loop would add to the gradient of the kernel in every
step. The derivative is a `custom_jvp`, so that derivatives of any order and direction exist.
"""

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array


@jax.custom_jvp
def lstm(x: Array, kernel: Array, bias: Array) -> Array:
    """The states h after each step, from c = h = 0: [T, B, H] float32, or float64 if x is.

    The gates i, f, g, o are computed in the type of `x`, and c and h in at least float32.

    x: the products of the input and its kernel, [T, B, 4 H].
    kernel: of the state, [H, 4 H].
    bias: [4 H].
    """
    return _states(x, kernel, bias)[0]


def multiply(x: Array, kernel: Array) -> Array:
    """x [T, B, D] times kernel [D, K] as one product of matrices: [T, B, K]."""
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _states(x, kernel, bias):
    """h [T, B, H] of all steps, and the factors of each step's tangents: see `_lstm_jvp`."""
    scale = _scale(x, len(kernel))

    def step(carry, x):
        h, c_before = carry
        z = x + (h.astype(x.dtype) @ kernel + bias)
        gates = scale * jnp.tanh(scale * z) + (1 - scale)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = f * c_before + i * g
        tanh = jnp.tanh(c)
        by_gate = i * (1 - i) * g, f * (1 - f) * c_before, (1 - g**2) * i, o * (1 - o) * tanh
        h = o * tanh
        return (h, c), (h, (f, o * (1 - tanh**2), by_gate))

    dtype = jnp.promote_types(x.dtype, jnp.float32)
    first = jnp.zeros((x.shape[1], len(kernel)), dtype)
    return jax.lax.scan(step, (first, first), x)[1]


def _scale(x, width):
    """Factors [4 H] with which all gates are one tanh: sigmoid(z) = tanh(z / 2) / 2 + 1 / 2."""
    return jnp.repeat(jnp.array([0.5, 0.5, 1, 0.5], x.dtype), width, total_repeat_length=4 * width)


@lstm.defjvp
def _lstm_jvp(primals, tangents):
    """The states, and their derivative by a loop that is linear in the tangents."""
    (_, kernel, _), (dx, d_kernel, d_bias) = primals, tangents
    h, factors = _states(*primals)
    h_before = jnp.concatenate([jnp.zeros_like(h[:1]), h[:-1]])
    dz = dx + (multiply(h_before.astype(dx.dtype), d_kernel) + d_bias)

    def step(carry, of_step):
        dh, dc = carry
        dz, (f, by_c, by_gate) = of_step
        dz = dz + dh.astype(dz.dtype) @ kernel
        di, df, dg, do = map(jnp.multiply, by_gate, jnp.split(dz, 4, axis=-1))
        dc = f * dc + di + df + dg
        dh = by_c * dc + do
        return (dh, dc), dh

    first = jnp.zeros_like(h[0])
    return h, jax.lax.scan(step, (first, first), (dz, factors))[1]
