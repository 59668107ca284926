"""Checks the LSTM layers against Flax's own: first weights, outputs, and derivatives."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import KEY

from fedjax_lab.models import layers, recurrence
from fedjax_lab.models.char_lstm import LSTM
from fedjax_lab.types import Array

T, B, D, H = 4, 3, 2, 5
X = jax.random.normal(KEY, (T, B, D))


class Ours(nn.Module):
    @nn.compact
    def __call__(self, x: Array):
        return LSTM(H, name="OptimizedLSTMCell_0")(x)


class Reference(nn.Module):
    @nn.compact
    def __call__(self, x: Array):
        init = layers.torch_uniform(H)
        inits = {"kernel_init": init, "recurrent_kernel_init": init, "bias_init": init}
        return nn.RNN(nn.OptimizedLSTMCell(H, **inits, dtype=x.dtype), time_major=True)(x)


def loss(net, variables, x):
    return jnp.sum(jnp.sin(net.apply(variables, x)))


def same(actual, expected, rtol=1e-5, atol=1e-6):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol, atol)


@pytest.mark.slow
def test_first_weights_are_those_of_flax():
    ours, flax = (net.init(KEY, X) for net in (Ours(), Reference()))
    assert jax.tree.structure(ours) == jax.tree.structure(flax)
    assert all(map(jnp.array_equal, *map(jax.tree.leaves, (ours, flax))))


@pytest.mark.slow
def test_derivatives_are_those_of_flax():
    """Reverse, forward, and reverse over forward mode, and a gradient for each example."""

    def derivatives(net):
        def differentiate(variables, x):
            gradient = jax.grad(loss, (1, 2))
            along = jax.jvp(lambda w: gradient(net, w, x), (variables,), (variables,))
            each = jax.vmap(gradient, (None, None, 1))(net, variables, x[:, :, None])
            return loss(net, variables, x), *along, each

        return jax.jit(differentiate)

    variables = Reference().init(KEY, X)
    same(derivatives(Ours())(variables, X), derivatives(Reference())(variables, X))


@pytest.mark.slow
def test_the_backward_loop_has_no_gradient_of_the_kernel():
    """Its only product is that of the gates with the kernel; others are outside of the loop."""
    x, kernel, bias = jnp.ones((T, B, 4 * H)), jnp.ones((H, 4 * H)), jnp.ones(4 * H)
    gradient = jax.grad(lambda *a: recurrence.lstm(*a).sum(), (0, 1, 2))
    program = jax.make_jaxpr(gradient)(x, kernel, bias)
    loops = [e.params["jaxpr"].jaxpr for e in program.eqns if e.primitive.name == "scan"]
    products = [
        [e.outvars[0].aval.shape for e in loop.eqns if e.primitive.name == "dot_general"]
        for loop in loops
    ]
    assert products == [[(B, 4 * H)], [(B, H)]]


@pytest.mark.slow
def test_bfloat16_is_that_of_flax():
    variables, x = Reference().init(KEY, X), X.astype(jnp.bfloat16)
    halved = jax.tree.map(lambda a: a.astype(jnp.bfloat16), variables)
    gradient = {
        net: jax.jit(jax.value_and_grad(lambda w, net=net: loss(net, w, x)))(halved)
        for net in (Ours(), Reference())
    }
    ours, flax = gradient.values()
    assert [a.dtype for a in jax.tree.leaves(ours)] == [a.dtype for a in jax.tree.leaves(flax)]
    same(*(jax.tree.map(lambda a: a.astype(float), each) for each in (ours, flax)), 0.03, 0.03)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        x = jnp.ones((1, B, 4 * H), jnp.float64)
        shapes = jax.eval_shape(
            jax.value_and_grad(lambda *a: recurrence.lstm(*a).sum(), (0, 1, 2)),
            x,
            jnp.ones((H, 4 * H), jnp.float64),
            jnp.ones(4 * H, jnp.float64),
        )
        assert {a.dtype for a in jax.tree.leaves(shapes)} == {x.dtype}
