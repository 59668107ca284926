"""Tests FedPHP against FedAvg and NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import averaged
from scipy.special import softmax

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedphp import mean_discrepancy

KEYS = naive.KEYS


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["kd", "mmd"])
def test_fedphp_without_transfer_has_the_global_model_of_fedavg(transfer):
    state, sums = toys.player(toys.make("fedphp", lam=0.0, transfer=transfer))(KEYS, 0, 3)
    toys.close((state.server, sums), (averaged()[0].server, averaged()[1]), rtol=1e-5, atol=1e-6)


def logits(w, x):
    return naive.features(w, x) @ w[2] + w[3]


def distill(w, x, teacher):
    """Returns the gradient of the cross-entropy with the teacher's softmax."""
    h = naive.features(w, x)
    d = (softmax(logits(w, x), 1) - softmax(logits(teacher, x) / 4, 1)) / len(x)
    dh = d @ w[2].T * (h > 0)
    return [x.T @ dh, dh.sum(0), h.T @ d, d.sum(0)]


@pytest.mark.slow
def test_fedphp_against_numpy():
    lam, mu, ramp = 0.4, 0.8, 2
    method = toys.make("fedphp", toys.TASK, lam=lam, mu=mu, ramp=ramp)
    w = naive.first_weights()
    p, rounds = [w] * toys.C, [0] * toys.C
    for t in range(7):
        models = []
        for i in (ids := naive.cohort(method, t)):
            x, y = naive.data_of(i)

            def total_gradient(v, i=i, x=x, y=y):
                risk = [(1 - lam) * g for g in naive.gradient(v, x, y)[1]]
                return naive.add(risk, distill(v, x, p[i]), lam)

            models.append(naive.descend(w, total_gradient))
            keep = mu * min(rounds[i] / ramp, 1)
            p[i] = naive.add([keep * a for a in p[i]], models[-1], 1 - keep)
            rounds[i] += 1
        w = naive.mean_by_size(ids, models)
    assert max(rounds) > 2
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 7)
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
    got = mean_discrepancy(*map(jnp.asarray, (a, b, mask)))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    discrepancy_from_a = lambda rows: mean_discrepancy(rows, jnp.asarray(a), jnp.asarray(mask))  # noqa: E731
    value, slope = jax.value_and_grad(discrepancy_from_a)(jnp.asarray(a))
    assert abs(value) < 1e-6 and np.isfinite(slope).all()


def test_an_unknown_transfer_is_rejected():
    with pytest.raises(BadInput, match="transfer cannot be 'mmds'; did you mean 'mmd'"):
        toys.make("fedphp", transfer="mmds")
