"""FedAvg and FedProx against naive NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import simulate, tree

KEYS = naive.KEYS


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_two_rounds_against_numpy(mu):
    """FedAvg and FedProx with three of eight unequal clients per round."""
    method = toys.make("fedprox", toys.TASK, mu=mu)
    w = naive.weights_of(simulate.init(method, KEYS, toys.C).server)
    for t in range(2):
        ids = naive.cohort(method, t)
        assert len(set(ids)) == 3
        pull = lambda v, w=w: [mu * (a - b) for a, b in zip(v, w, strict=True)]  # noqa: E731
        w = naive.mean_by_size(ids, [naive.sgd(w, *naive.data_of(i), pull) for i in ids])
    state, sums = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    naive.close(state.server, w)
    assert float(sums.steps) == 2 * 3 * naive.STEPS


def test_the_training_loss_is_the_mean_over_the_cohort_weighted_by_size():
    """Each client makes one full-batch step, whose loss is that of the sent model."""
    method = toys.make("fedavg", toys.TASK)
    w = naive.weights_of(simulate.init(method, KEYS, toys.C).server)
    ids = naive.cohort(method, 0)
    n = np.array([len(naive.data_of(i)[1]) for i in ids])
    expected = np.average([naive.gradient(w, *naive.data_of(i))[0] for i in ids], weights=n)
    _, sums = toys.player(method, plan=naive.FULL._replace(epochs=1))(KEYS, 0, 1)
    assert float(sums.train_loss) == pytest.approx(expected, rel=1e-5)
    assert float(sums.examples) == n.sum()


def test_the_gradient_of_the_proximal_term_is_zero_at_the_start():
    w = toys.TASK.init(KEYS.init)
    value = lambda p: tree.sq_norm(tree.sub(p, w.params))  # noqa: E731
    toys.same(jax.grad(value)(w.params), jax.tree.map(jnp.zeros_like, w.params))
