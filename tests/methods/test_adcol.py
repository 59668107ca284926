"""Compares ADCOL with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work
from scipy.special import log_softmax

from fedjax_lab import tree
from fedjax_lab.methods import adcol

MU, ROWS = 0.7, 6


def guessed(D, h):
    """The log-probabilities of the clients, by the formula."""
    D = jax.tree.map(np.asarray, D)
    for layer, norm in zip(D["layers"], D["norms"], strict=False):
        a = h @ layer["kernel"] + layer["bias"]
        a = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
        h = np.maximum(a * norm["scale"] + norm["shift"], 0)
    return log_softmax(h @ D["layers"][2]["kernel"] + D["layers"][2]["bias"], -1)


def made():
    """The method, its first discriminator and the first model of a client."""
    method = toys.make("adcol", toys.TASK, mu=MU, rows=ROWS, hidden=5, server_steps=30)
    state = method.init(KEYS.init, toys.C)
    return method, state.server, tree.take(state.private, 0)


@pytest.mark.slow
def test_the_loss_and_the_upload_against_numpy():
    method, D, w = made()
    (h, mask), kept, [(loss, start, _)], batch = local_work(method, D, w)
    x, y = naive.data_of(0, toys.SKEWED)
    model = naive.weights_of(start)
    log = guessed(D, naive.features(model, x))
    uniform = np.full(toys.C, 1 / toys.C)
    apart = (uniform * (np.log(uniform) - log)).sum(1).mean()
    expected = naive.gradient(model, x, y)[0] + MU * apart
    assert loss(start, batch, None)[0] == pytest.approx(expected, rel=1e-5)
    after = naive.features([a + 0.125 for a in model], x[:ROWS])
    np.testing.assert_allclose(h, after, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(mask, np.ones(ROWS))
    naive.close(kept, [a + 0.125 for a in model])


def test_guesses_of_missing_examples_and_lost_uploads_do_not_count():
    D = adcol.first_discriminator(KEYS.init, (16, 5, 5, toys.C))
    h = np.random.default_rng(0).normal(size=(3, ROWS, 16)).astype(np.float32)
    mask, ids = np.ones((3, ROWS), np.float32), np.array([4, 1, toys.C])
    mask[1, 4:], mask[2] = 0, 0
    log = guessed(D, h)
    expected = -(log[0, :, 4].sum() + log[1, :4, 1].sum()) / (ROWS + 4)
    got = adcol.risk_of_guesses(h, mask, ids, D)
    assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_the_discriminator_learns_whose_features_they_are():
    method, D, _ = made()
    h = np.random.default_rng(0).normal(size=(2, ROWS, 16)).astype(np.float32)
    uploads, cohort = (h, jnp.ones((2, ROWS))), tree.take(toys.POPULATION, jnp.array([4, 1]))
    after = method.round[0].aggregate(D, uploads, cohort)
    before, later = (adcol.risk_of_guesses(*uploads, cohort.id, d) for d in (D, after))
    assert later < before - 0.01
