"""Tests FedPHP against FedAvg and NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from rounds import by_hand, rounds
from scipy.special import softmax

from fedjax_lab import tree
from fedjax_lab.methods.fedphp import mean_discrepancy


def distill(w, x, teacher):
    """Returns the gradient of the cross-entropy with the teacher's softmax."""
    d = naive.probabilities(w, x) - softmax(naive.logits(teacher, x) / 4, 1)
    return naive.backward(w, x, d / len(x))


@pytest.mark.slow
def test_fedphp_against_numpy():
    lam, mu, ramp = 0.4, 0.8, 2
    method = toys.make("fedphp", toys.TASK, lam=lam, mu=mu, ramp=ramp)
    p, played = [naive.first_weights()] * toys.C, [0] * toys.C

    def train(i, w, x, y):
        def total_gradient(v):
            risk = [(1 - lam) * g for g in naive.gradient(v, x, y)[1]]
            return naive.add(risk, distill(v, x, p[i]), lam)

        model = naive.descend(w, total_gradient)
        keep = mu * min(played[i] / ramp, 1)
        p[i] = naive.add([keep * a for a in p[i]], model, 1 - keep)
        played[i] += 1
        return model

    w, state = by_hand(method, 7, train), rounds(method, 7)
    assert max(played) > 2
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        naive.close(tree.take(state.private[0], i), p[i], rtol=1e-3, atol=1e-4)


def test_mean_discrepancy_against_numpy():
    """Padded rows have no effect, and the discrepancy of equal rows is 0."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 3))
    mask = np.array([1.0, 1, 1, 0, 0])
    rows = np.concatenate([a[:3], b[:3]])
    squared = ((rows[:, None] - rows) ** 2).sum(-1)
    bandwidth = squared.sum() / 30
    k = sum(np.exp(-squared / (bandwidth * c)) for c in (0.25, 0.5, 1, 2, 4))
    expected = k[:3, :3].mean() + k[3:, 3:].mean() - 2 * k[:3, 3:].mean()
    got = jax.jit(mean_discrepancy)(a, b, mask)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    value, slope = jax.jit(jax.value_and_grad(mean_discrepancy))(a, a, mask)
    assert abs(value) < 1e-6 and np.isfinite(slope).all()
