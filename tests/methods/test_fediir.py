"""FedIIR: the head's gradient in closed form, both exchanges in NumPy, FedAvg as a special case."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods.fediir import head_gradient
from fedjax_lab.simulation import simulate
from fedjax_lab.types import Batch


def batch_of(rows, real):
    """A batch of these rows of the pool; rows that are not real have meaningless values."""
    rows, mask = np.array(rows), np.array(real, np.float32)
    x = np.where(mask[:, None] > 0, toys.FEDERATION.x[rows], 50.0)
    return Batch(jnp.asarray(x), toys.FEDERATION.y[rows], jnp.asarray(mask))


def test_the_closed_form_of_the_head_gradient_equals_autodiff():
    """In training mode, with padding and without; padding does not change the gradient."""
    w = toys.NORM.init(KEYS.init)

    @jax.jit
    def both(batch):
        def risk(head):
            out = toys.NORM.apply(w._replace(params={**w.params, "head": head}), *args)
            return losses.cross_entropy(out.logits, batch)

        args = batch.x, KEYS.local, batch.mask
        return head_gradient(toys.NORM.apply(w, *args), batch), jax.grad(risk)(w.params["head"])

    padded, expected = both(batch_of([3, 9, 4, 8, 5], [1, 1, 0, 1, 0]))
    assert float(tree.sq_norm(expected)) > 0.1
    toys.close(padded, expected, rtol=1e-5, atol=1e-6)
    whole, expected = both(batch_of([3, 9, 8], [1, 1, 1]))
    toys.close(whole, expected, rtol=1e-5, atol=1e-6)
    toys.close(padded, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_without_penalty_it_is_uniform_fedavg():
    """The parameters agree bit for bit; only running statistics are averaged by size."""
    state, sums = toys.player(toys.make("fediir", penalty=0.0))(KEYS, 0, 3)
    uniform = toys.make("fedavg")._replace(sample=sampling.equal)
    expected, expected_sums = toys.player(uniform)(KEYS, 0, 3)
    toys.same(state.server.w.params, expected.server.params)
    toys.same(sums.train_loss, expected_sums.train_loss)
    assert float(tree.sq_norm(state.server.g)) > 0


def head_errors(logits, y):
    """(p - y) / B and p, [B, K]."""
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    return (p - np.eye(toys.K)[y]) / len(y), p


def aligned(w, x, y, g, penalty):
    """Gradient of CE + penalty (|G_W - g_W|^2 + |G_b - g_b|^2) of the toy MLP, by hand."""
    h = naive.features(w, x)
    e, p = head_errors(h @ w[2] + w[3], y)
    R_W, R_b = 2 * penalty * (h.T @ e - g[0]), 2 * penalty * (e.sum(0) - g[1])
    back = h @ R_W + R_b
    d = p * (back - (p * back).sum(1, keepdims=True)) / len(y)
    dz = (d @ w[2].T + e @ R_W.T) * (h > 0)
    return naive.add(naive.gradient(w, x, y)[1], [x.T @ dz, dz.sum(0), h.T @ d, d.sum(0)])


@pytest.mark.slow
def test_rounds_against_numpy():
    """Three rounds with three of eight unequal clients, one batch each."""
    ema, penalty = 0.6, 2.0
    method = toys.make("fediir", toys.TASK, ema=ema, penalty=penalty)
    w, g = naive.first_weights(), [0.0, 0.0]
    for t in range(3):
        data = [naive.data_of(i) for i in naive.cohort(method, t)]
        third = np.full(3, 1 / 3)
        mean = naive.mean(third, [naive.gradient(w, *xy)[1][2:] for xy in data])
        g = [ema * a + (1 - ema) * b for a, b in zip(g, mean, strict=True)]
        models = [
            naive.descend(w, lambda v, xy=xy, g=g: aligned(v, *xy, g, penalty)) for xy in data
        ]
        w = naive.mean(third, models)
    server = toys.player(method, plan=naive.FULL)(KEYS, 0, 3)[0].server
    naive.close(server.w, w)
    toys.close((server.g["kernel"], server.g["bias"]), tuple(g), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_g_is_a_moving_average_of_the_mean_gradient_over_all_batches():
    """Batches of 8 in evaluation mode; a short batch counts as one, an empty batch as none."""
    method = toys.make("fediir", ema=0.7)
    play = toys.player(method, plan=toys.PLAN._replace(equal_steps=False))
    forward = jax.jit(toys.NORM.apply)
    state = simulate.init(method, KEYS, toys.C)
    g = [0.0, 0.0]
    for t in range(3):
        gradients = []
        for x, y in map(naive.data_of, naive.cohort(method, t, toys.PLAN.cohort)):
            out = forward(state.server.w, np.pad(x, [(0, toys.N - len(x)), (0, 0)]))
            h, logits = (np.asarray(a)[: len(x)] for a in (out.features, out.logits))
            for first in range(0, len(x), 8):
                batch = slice(first, first + 8)
                e, _ = head_errors(logits[batch], y[batch])
                gradients.append([h[batch].T @ e, e.sum(0)])
        assert len(gradients) > toys.PLAN.cohort
        mean = naive.mean(np.full(len(gradients), 1 / len(gradients)), gradients)
        g = [0.7 * a + (1 - 0.7) * b for a, b in zip(g, mean, strict=True)]
        state, _ = play(KEYS, t, 1, state)
        server_g = state.server.g["kernel"], state.server.g["bias"]
        toys.close(server_g, tuple(g), rtol=1e-4, atol=1e-5)
