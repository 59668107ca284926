"""Tests FedPAC against FedRep, its shares against SciPy, and rounds against NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from scipy.optimize import minimize

from fedjax_lab import tree
from fedjax_lab.methods.fedpac import shares


@pytest.mark.exhaustive
def test_fedpac_without_alignment_and_combination_is_fedrep():
    method = toys.make("fedpac", lam=0.0, combine=False)
    state, sums = toys.player(method)(KEYS, 0, 3)
    rep = toys.make("fedrep", body_epochs=toys.PLAN.epochs)
    plain, plain_sums = toys.player(rep)(KEYS, 0, 3)
    got, expected = (state.server.body, state.server.heads), (plain.server, plain.private)
    toys.close(got, expected, rtol=1e-5, atol=1e-6)
    toys.close(sums, plain_sums, rtol=1e-6)


def best_shares(i, H, V):
    """Returns the shares of all heads in the new head of client i, by SciPy."""
    H = [h.ravel() for h in H]

    def objective(a):
        return a**2 @ V + ((H[i] - a @ H) ** 2).sum()

    start = np.full(len(V), 1 / len(V))
    sums_to_one = {"type": "eq", "fun": lambda a: a.sum() - 1}
    bounds, options = [(0, 1)] * len(V), {"ftol": 1e-14, "maxiter": 1000}
    return minimize(objective, start, constraints=sums_to_one, bounds=bounds, options=options).x


def test_head_shares_against_scipy_and_of_lost_uploads():
    rng = np.random.default_rng(0)
    H, V = rng.normal(size=(5, 3, 2)), rng.uniform(0.1, 2.0, 5)
    got = jax.jit(shares, static_argnums=3)(H, V, jnp.ones(5, bool), 500)
    for i in range(5):
        np.testing.assert_allclose(got[i], best_shares(i, H, V), atol=1e-4)
    H, V = jnp.ones((3, 2, 2)), jnp.ones(3)
    got = shares(H.at[2].set(0), V.at[2].set(0), jnp.array([True, True, False]), 100)
    np.testing.assert_allclose(got[:2], [[0.5, 0.5, 0.0]] * 2, atol=1e-5)


def moments(w, x, y):
    """Returns a client's H [K, D] and V."""
    h = naive.features(w, x)
    H = np.array([h[y == k].sum(0) / len(y) for k in range(toys.K)])
    return H, ((h**2).sum(1).mean() - (H**2).sum()) / len(y)


def train(w, x, y, c, lam):
    """Trains the head, then the body, whose features are pulled to the class means c."""
    body, top = w[:2], w[2:]
    head_gradient = lambda v: naive.gradient(body + v, x, y)[1][2:]  # noqa: E731
    top = naive.descend(top, head_gradient, steps=2)
    target = np.array([c.get(k, np.nan * np.ones(16)) for k in y])

    def pull(h):
        return np.nan_to_num(2 * lam * (h - target) / h.size)

    body_gradient = lambda v: naive.gradient(v + top, x, y, pull=pull)[1][:2]  # noqa: E731
    return naive.descend(body, body_gradient) + top


@pytest.mark.slow
def test_fedpac_against_numpy():
    """Each client has few of the classes, so that some classes have no mean."""
    lam = 2.0
    method = toys.make("fedpac", toys.TASK, lam=lam, head_epochs=2, solver_steps=2000)
    first = naive.first_weights()
    body, heads, c = first[:2], [first[2:]] * toys.C, {}
    for t in range(3):
        ids = naive.cohort(method, t)
        data = [naive.data_of(i, toys.SKEWED) for i in ids]
        H, V = zip(
            *[moments(body + heads[i], *xy) for i, xy in zip(ids, data, strict=True)], strict=True
        )
        models = [train(body + heads[i], *xy, c, lam) for i, xy in zip(ids, data, strict=True)]
        body = naive.mean_by_size(ids, [m[:2] for m in models], toys.SKEWED)
        for j, i in enumerate(ids):
            heads[i] = naive.mean(best_shares(j, H, np.array(V)), [m[2:] for m in models])
        z = np.concatenate([naive.features(m, x) for m, (x, _) in zip(models, data, strict=True)])
        labels = np.concatenate([y for _, y in data])
        c = {k: z[labels == k].mean(0) for k in set(labels.tolist())}
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, 3)
    for i in range(toys.C):
        model = tree.join(tree.take(state.server.heads, i), state.server.body)
        naive.close(model, body + heads[i], rtol=2e-3, atol=1e-3)
    for k, mean in c.items():
        np.testing.assert_allclose(state.server.c[k], mean, rtol=2e-3, atol=1e-3)
    np.testing.assert_array_equal(np.flatnonzero(state.server.exists), sorted(c))
