"""Compares FedConcat-ID's outputs on noise and FedConcat-IB's biases with NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from scipy.special import softmax

from fedjax_lab import optim, tree
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedconcat_id import first_round, mean_outputs, noise
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task


def test_outputs_on_noise_against_numpy():
    """Eq. 3: the mean of softmax in evaluation mode over R uniform images, for all models."""
    models = clusters.distinct_starts(toys.NORM, jax.random.key(0), 3)
    models = models._replace(stats=jax.tree.map(lambda a: a + 0.5, models.stats))
    key = jax.random.key(5)
    p = np.asarray(mean_outputs(toys.NORM, models, key, 200))
    x = np.concatenate([noise(toys.NORM, k, 100) for k in jax.random.split(key, 2)])
    assert x.shape == (200, toys.D) and 0 <= x.min() < 0.01 and 0.99 < x.max() <= 1
    for k in range(3):
        logits = np.asarray(toys.NORM.apply(tree.take(models, k), x).logits)
        np.testing.assert_allclose(p[k], softmax(logits, 1).mean(0), rtol=1e-4)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)


def test_noise_has_the_range_of_the_inputs():
    low, high = jnp.array([-1.0, 0.0]), jnp.array([1.0, 3.0])
    task = make_task(nets.mlp(3), (4, 4, 2), 3, lowest=low, highest=high)
    x = np.asarray(noise(task, jax.random.key(0), 300))
    assert x.shape == (300, 4, 4, 2)
    np.testing.assert_allclose(x.min((0, 1, 2)), low, atol=0.02)
    np.testing.assert_allclose(x.max((0, 1, 2)), high, atol=0.02)
    np.testing.assert_allclose(x.mean((0, 1, 2)), (low + high) / 2, atol=0.05)


def test_one_step_from_a_zero_head_reveals_the_label_distribution():
    """-IB is then exact: - dL/db_c = share of class c - 1/K."""
    w = toys.TASK.init(naive.KEYS.init)
    w.params["head"] = jax.tree.map(jnp.zeros_like, w.params["head"])
    method = first_round(toys.TASK, 2)
    plan = naive.FULL._replace(epochs=1, optimizer=optim.sgd(0.1))
    state = method.init(naive.KEYS.init, toys.C)._replace(server=w)
    args = naive.KEYS, 0, 1, state
    state, _ = toys.player(method, plan=plan, federation=toys.SKEWED)(*args)
    for i in range(toys.C):
        count = naive.counts(i)
        np.testing.assert_allclose(state.private[1][i], count / count.sum(), atol=1e-5)


@pytest.mark.slow
def test_bias_formula_against_numpy():
    """(b_i - b_0) / (s eta) + softmax(b_0) for s steps of size eta; it ignores the momentum."""
    method = first_round(toys.TASK, 2)
    state, _ = toys.player(method, plan=naive.FULL)(
        naive.KEYS, 0, 1, method.init(naive.KEYS.init, 8)
    )
    start = naive.first_weights()
    models = [naive.sgd(start, *naive.data_of(i)) for i in range(toys.C)]
    for i, w in enumerate(models):
        expected = (w[3] - start[3]) / (naive.STEPS * naive.LR) + softmax(start[3])
        np.testing.assert_allclose(state.private[1][i], expected, rtol=1e-3, atol=1e-4)
        naive.close(tree.take(state.private[0], i), w)
    naive.close(state.server, naive.mean_by_size(range(toys.C), models))
