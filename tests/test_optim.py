"""Optimizers against PyTorch's rules, and clipping."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys

from fedjax_lab import optim, tree
from fedjax_lab.types import Weights


@pytest.mark.parametrize(
    "momentum, steps, expected",
    [(0.0, 7, 7.0), (0.9, 1, 1.0), (0.9, 5, (5 - 0.9 * (1 - 0.9**5) / 0.1) / 0.1)],
)
def test_reach(momentum, steps, expected):
    """FedNova's a_i times the learning rate; weight decay has no part in it."""
    reach = jax.jit(lambda k: optim.reach(optim.sgd(0.3, momentum, 0.1), k))
    assert float(reach(steps)) == pytest.approx(0.3 * expected, rel=1e-5)
    adam = optim.reach(optim.adam(0.3, 0.1), steps)
    assert float(adam) == pytest.approx(0.3 * steps, rel=1e-5)


def test_sgd_is_pytorchs():
    """d = g + decay w; m = d at first, then momentum m + d; w -= lr m."""
    tx, w = optim.sgd(0.1, 0.9, 0.01), 2.0
    params, opt = jnp.float32(w), None
    opt, m = tx.init(params), None
    for g in (0.5, -0.2, 0.3):
        updates, opt = tx.update(jnp.float32(g), opt, params)
        params = optax.apply_updates(params, updates)
        d = g + 0.01 * w
        m = d if m is None else 0.9 * m + d
        w -= 0.1 * m
        np.testing.assert_allclose(params, w, rtol=1e-6)


def test_adam_decay_is_coupled():
    """Decay joins the gradient before the moments: torch.optim.Adam, not AdamW."""
    tx, w = optim.adam(0.1, 0.5), 2.0
    params = jnp.float32(w)
    opt, m, v = tx.init(params), 0.0, 0.0
    for t, g in enumerate((0.5, -0.2, 0.3), 1):
        updates, opt = tx.update(jnp.float32(g), opt, params)
        params = optax.apply_updates(params, updates)
        d = g + 0.5 * w
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d * d
        w -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(params, w, rtol=1e-5)


# Clipping.


def test_a_gradient_is_shortened_as_a_whole():
    g = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    assert optim.clip(g, 0.0) is g
    run = jax.jit(optim.clip)  # the norm is traced, as in a joint run
    toys.same(run(g, 0.0), g)
    toys.same(run(g, 5.5), g)
    toys.same(optim.clip(g, 5.5), g)
    for clipped in (optim.clip(g, 0.5), run(g, 0.5)):
        toys.close(clipped, {"a": np.array([0.3, 0.0]), "b": np.array([[0.4]])}, rtol=1e-6)
    nothing = tree.zeros(g)
    toys.same(optim.clip(nothing, 0.5), nothing)


def test_clipping_has_pytorchs_small_number():
    """clip_grad_norm_ multiplies by norm / (||g|| + 1e-6): it matters for small gradients."""
    g = {"a": jnp.array([3e-6, 4e-6])}
    factor = 2e-6 / (5e-6 + 1e-6)
    toys.close(optim.clip(g, 2e-6), {"a": factor * np.array([3e-6, 4e-6])}, rtol=1e-5, atol=0)


def test_reach_does_not_know_of_clipping():
    """SCAFFOLD's control variate of a client is the mean of its clipped gradients."""
    largest, cut = 0.2, []
    method, w = toys.make("scaffold", toys.TASK), naive.first_weights()
    plan = naive.FULL._replace(clip=largest, optimizer=optim.sgd(naive.LR))
    state, _ = toys.player(method, plan=plan)(naive.KEYS, 0, 1)
    i = naive.cohort(method, 0)[0]
    x, y = naive.data_of(i)
    seen = []
    v = [a.copy() for a in w]
    for _ in range(naive.STEPS):
        _, g = naive.gradient(v, x, y)
        norm = np.sqrt(sum((a**2).sum() for a in g))
        cut.append(norm > largest)
        seen.append([a * min(1.0, largest / norm) for a in g])
        v = naive.add(v, seen[-1], -naive.LR)
    assert all(cut)
    mean = naive.mean(np.full(naive.STEPS, 1 / naive.STEPS), seen)
    naive.close(Weights(tree.take(state.private, i), {}), mean, rtol=1e-3)
