"""APPLE: its gradients, learning rates and mixtures against NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import different_models, local_work

from fedjax_lab import optim, tree
from fedjax_lab.methods import apple

CLIENT = 2


def state_of(n):
    """A message with different core models of all clients, as arrays too."""
    models, arrays = different_models()
    return apple.Server(models.params, jnp.asarray(n), jnp.int32(1)), arrays


@pytest.mark.slow
def test_the_gradients_and_the_mixture_against_numpy():
    """Clients that have not taken part count as of mean size, and the first round's p_0 is 1/C."""
    n = np.asarray(toys.POPULATION.n) * (np.arange(toys.C) < 5)
    away = np.linspace(-0.2, 0.3, toys.C).astype(np.float32)
    message, arrays = state_of(n)
    private = apple.Private(jnp.asarray(away), toys.TASK.init(KEYS.init))
    method = toys.make("apple", toys.TASK, mu=0.6, L=4, scheduler="cosine")
    work = local_work(method, message, private, CLIENT, toys.FEDERATION)
    w_i, kept, [(loss, start, _)], batch = work
    mean = np.asarray(toys.POPULATION.n).mean()
    p = np.where(n > 0, n, mean) / (toys.C * mean) + away
    mixed = naive.mean(p, arrays)
    value, g = naive.gradient(mixed, np.asarray(batch.x), np.asarray(batch.y))
    weight = 0.3 * (np.cos(np.pi / 4) + 1) / 2
    (got, _), of = jax.value_and_grad(lambda w: loss(w, batch, None), has_aux=True)(start)
    assert got == pytest.approx(value + weight * (away**2).sum(), rel=1e-4)
    naive.close(start._replace(params=of.params[0]), [p[CLIENT] * a for a in g])
    slopes = [sum((a * b).sum() for a, b in zip(g, w, strict=True)) for w in arrays]
    np.testing.assert_allclose(of.params[1], slopes + 2 * weight * away, rtol=1e-3, atol=1e-3)
    arrays[CLIENT] = [a + 0.125 for a in arrays[CLIENT]]  # the training of `local_work`
    naive.close(start._replace(params=w_i), arrays[CLIENT])
    naive.close(kept.mixture, naive.mean(p + 0.125, arrays), rtol=1e-3)


def test_core_models_have_a_multiple_of_the_rate_of_the_config():
    optimizer = apple.joint_optimizer(optim.sgd(0.5), 8.0, 0.25)
    g = jnp.ones(3), jnp.ones(2)
    (w, p), state = optimizer.update(g, optimizer.init(g))
    assert (w == -4).all() and (p == -0.25).all()
    assert jnp.allclose(optimizer.update(g, state)[0][1], -0.475)  # with momentum


def test_the_weight_of_the_distance_decreases_to_zero():
    r = jnp.array([0, 2, 4, 9])
    np.testing.assert_allclose(apple.decayed(r, 4, "cosine"), [1, 0.5, 0, 0], atol=1e-6)
    np.testing.assert_allclose(apple.decayed(r, 4, "exponential"), [1, 0.001**0.5, 0, 0], atol=1e-6)


def test_the_server_keeps_the_last_core_models():
    message, _ = state_of(np.zeros(toys.C, np.float32))
    cohort = tree.take(toys.POPULATION, jnp.array([5, 1]))
    new = tree.take(message.w, jnp.array([0, 3]))
    after = apple.aggregate(message, new, cohort)
    for k, j in enumerate((5, 1)):
        toys.same(tree.take(after.w, j), tree.take(new, k))
    np.testing.assert_array_equal(np.flatnonzero(after.n), [1, 5])
    assert after.r == 2 and after.n[5] == cohort.n[0]
    toys.same(apple.updates(message, 3, None), tree.take(message.w, 3))
